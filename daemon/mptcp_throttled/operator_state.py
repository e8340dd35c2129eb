"""What the operator wants beside the configuration: rates set by hand, and a pause. Persisted, and gone on expiry.

A file in the state directory keeps it across restarts: `{"version": 2, "overrides": [...], "pause": null or
{"expires_at"}}`, overrides as in `overrides`. Version 1 had no pause.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mptcp_throttle.errors import UserError
from mptcp_throttled.durable_file import write_atomically
from mptcp_throttled.policy.overrides import (
    Override,
    decode_expiry,
    decode_override,
    encode_override,
    no_such_network,
    objection,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mptcp_throttle.model import AccessNetwork
    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-throttled")

_FORMAT_VERSION: Final = 2
_READABLE_VERSIONS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Pause:
    """Nobody is held to a rate until `expires_at` (seconds since the epoch); None: until resumed."""

    expires_at: float | None


@dataclass(frozen=True, slots=True)
class OperatorState:
    """All that the operator has asked for and that has not ended."""

    overrides: tuple[Override, ...] = ()
    pause: Pause | None = None

    @property
    def next_expiry(self) -> float | None:
        """When the first of them ends by itself, in seconds since the epoch; None: none does."""
        ends = [override.expires_at for override in self.overrides]
        if self.pause is not None:
            ends.append(self.pause.expires_at)
        return min((end for end in ends if end is not None), default=None)


class OperatorStore:
    """The wishes in force, on disk and in memory. Not for concurrent use."""

    def __init__(self, path: Path, networks: Sequence[AccessNetwork]) -> None:
        self._path = path
        self._wishes = self._load()
        self._networks = networks
        self.adopt(networks)

    def current(self, now: float) -> OperatorState:
        """Those in force at `now` (seconds since the epoch); expired ones are forgotten."""
        overrides = tuple(o for o in self._wishes.overrides if not _is_over(o, now))
        for expired in set(self._wishes.overrides) - set(overrides):
            _log.info("override of %s %s expired", expired.network, expired.rule)
        pause = self._wishes.pause
        if pause is not None and _is_over(pause, now):
            _log.info("pause expired")
            pause = None
        self._keep(OperatorState(overrides, pause))
        return self._wishes

    def adopt(self, networks: Sequence[AccessNetwork]) -> tuple[str, ...]:
        """Go on with these access networks; a line for every override that no longer fits and is therefore dropped."""
        self._networks = networks
        before = self._wishes.overrides
        objections = {override: objection(override, before, networks) for override in before}
        dropped = tuple(f"override of {o.network} {o.rule} dropped: {why}" for o, why in objections.items() if why)
        for line in dropped:
            _log.warning("%s", line)
        self._keep(replace(self._wishes, overrides=tuple(o for o, why in objections.items() if why is None)))
        return dropped

    def set(self, override: Override) -> None:
        """Put an override in force in place of an earlier one. Raises UserError with what is allowed."""
        others = (o for o in self._wishes.overrides if (o.network, o.rule) != (override.network, override.rule))
        overrides = (*others, override)
        problem = objection(override, overrides, self._networks)
        if problem is not None:
            raise UserError(problem)
        self._store(replace(self._wishes, overrides=overrides))

    def reset(self, network: str) -> None:
        """Return to the configured rates of a network. Raises UserError for an unknown one."""
        if network not in [known.name for known in self._networks]:
            raise UserError(no_such_network(network, self._networks))
        overrides = tuple(o for o in self._wishes.overrides if o.network != network)
        self._store(replace(self._wishes, overrides=overrides))

    def pause(self, pause: Pause | None) -> None:
        """Pause, in place of an earlier pause, or, with None, resume. Raises UserError if it cannot be kept."""
        self._store(replace(self._wishes, pause=pause))

    def _store(self, wishes: OperatorState) -> None:
        document = {
            "version": _FORMAT_VERSION,
            "overrides": [encode_override(o) for o in wishes.overrides],
            "pause": None if wishes.pause is None else {"expires_at": wishes.pause.expires_at},
        }
        try:
            write_atomically(self._path, json.dumps(document))
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._wishes = wishes

    def _keep(self, wishes: OperatorState) -> None:
        """Store what is left, and go on with it even if that fails."""
        if wishes == self._wishes:
            return
        try:
            self._store(wishes)
        except UserError as error:
            self._wishes = wishes
            _log.error("%s", error)

    def _load(self) -> OperatorState:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["version"] not in _READABLE_VERSIONS:
                raise ValueError(f"version {document['version']}")
            overrides = tuple(decode_override(item) for item in document["overrides"])
            return OperatorState(overrides, _decode_pause(document.get("pause")))
        except FileNotFoundError:
            return OperatorState()
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            _log.error("%s: cannot be used (%s): no override and no pause is in force", self._path, error)
            return OperatorState()


def _is_over(wish: Override | Pause, now: float) -> bool:
    return wish.expires_at is not None and wish.expires_at <= now


def _decode_pause(data: Json) -> Pause | None:
    return None if data is None else Pause(decode_expiry(data))
