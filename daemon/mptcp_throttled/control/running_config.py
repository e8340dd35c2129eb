"""The configuration in force: the last valid one. And why later ones were refused."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from mptcp_throttle.config.changes import Change, changes
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.logs import with_fields
from mptcp_throttle.rpc import Json
from mptcp_throttled.reporting.instruments import count_errors
from mptcp_throttled.vocabulary.events import EventKind

_log = logging.getLogger("mptcp-throttled")

_RELOADED: Final = with_fields(EventKind.RELOADED.fields)
_REFUSED: Final = with_fields(EventKind.REFUSED.fields)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether loaded files become the configuration in force: with these `changes`, or not because of `problems`.

    Not `valid`: the files are no valid configuration at all.
    """

    changes: tuple[Change, ...] = ()
    problems: tuple[str, ...] = ()
    valid: bool = True


def judge(present: Config, loaded: Config | ConfigError) -> Judgement:
    """Whether `loaded` can replace `present` without a restart."""
    if not isinstance(loaded, Config):
        return Judgement(problems=tuple(loaded.problems), valid=False)
    changed = changes(present, loaded)
    refused = tuple(str(change) for change in changed if change.restart)
    return Judgement(problems=refused) if refused else Judgement(changed)


class RunningConfig:
    """The configuration in force. `take` is for one thread; times are in seconds since the epoch."""

    def __init__(self, config: Config, now: float) -> None:
        self.config = config
        self._loaded_at = now
        self._problems: tuple[str, ...] = ()

    def take(self, loaded: Config | ConfigError, now: float) -> Judgement:
        """Put a configuration in force if it can replace the present one without a restart; logs what has changed."""
        judgement = judge(self.config, loaded)
        self._problems = judgement.problems
        for problem in judgement.problems:
            _log.error("reload refused: %s", problem, extra=_REFUSED)
        if judgement.problems:
            count_errors("reload")
        if isinstance(loaded, Config) and not judgement.problems:
            self.config = loaded
            self._loaded_at = now
            for change in judgement.changes:
                _log.info("reloaded: %s", change, extra=_RELOADED)
            if not judgement.changes:
                _log.info("reloaded: nothing changed", extra=_RELOADED)
        return judgement

    def status(self) -> Json:
        """`{loaded_at, problems}`: since when the configuration is in force, and why the last reload was refused."""
        return {"loaded_at": self._loaded_at, "problems": list(self._problems)}
