"""The operator state: rates set by hand (overrides) and a pause. They survive restarts and may expire.

The file in the state directory: `{"version": 2, "overrides": [...], "pause": null or {"expires_at"}}`, overrides as in
`policy.overrides`. Version 1 had no pause.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import AccessNetwork
from mptcp_throttled.durable_file import write_atomically
from mptcp_throttled.policy.overrides import (
    Override,
    decode_expiry,
    decode_override,
    encode_override,
    no_such_network,
    objection,
)

_log = logging.getLogger("mptcp-throttled")

_FORMAT_VERSION: Final = 2
_READABLE_VERSIONS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Pause:
    """No subflow is throttled until `expires_at` (seconds since the epoch); None: until resumed."""

    expires_at: float | None


@dataclass(frozen=True, slots=True)
class OperatorState:
    """Everything set by hand that has not expired."""

    overrides: tuple[Override, ...] = ()
    pause: Pause | None = None

    @property
    def next_expiry(self) -> float | None:
        """When the first of them expires, in seconds since the epoch; None if none does."""
        ends = [override.expires_at for override in self.overrides]
        if self.pause is not None:
            ends.append(self.pause.expires_at)
        return min((end for end in ends if end is not None), default=None)


class OperatorStore:
    """The operator state, in memory and on disk. For one thread."""

    def __init__(self, path: Path, networks: Sequence[AccessNetwork]) -> None:
        self._path = path
        self._state = self._load()
        self._networks = networks
        self.adopt(networks)

    def current(self, now: float) -> OperatorState:
        """The state at `now` (seconds since the epoch); what has expired is removed."""
        overrides = tuple(o for o in self._state.overrides if not _is_over(o, now))
        for expired in set(self._state.overrides) - set(overrides):
            _log.info("override of %s %s expired", expired.network, expired.kind)
        pause = self._state.pause
        if pause is not None and _is_over(pause, now):
            _log.info("pause expired")
            pause = None
        self._keep(OperatorState(overrides, pause))
        return self._state

    def adopt(self, networks: Sequence[AccessNetwork]) -> tuple[str, ...]:
        """Use these access networks from now on; a line for every override that does not fit them and is dropped."""
        self._networks = networks
        before = self._state.overrides
        objections = {override: objection(override, before, networks) for override in before}
        dropped = tuple(f"override of {o.network} {o.kind} dropped: {why}" for o, why in objections.items() if why)
        for line in dropped:
            _log.warning("%s", line)
        self._keep(replace(self._state, overrides=tuple(o for o, why in objections.items() if why is None)))
        return dropped

    def set(self, override: Override) -> None:
        """Set an override in place of an earlier one. Raises UserError with what is allowed."""
        others = (o for o in self._state.overrides if (o.network, o.kind) != (override.network, override.kind))
        overrides = (*others, override)
        problem = objection(override, overrides, self._networks)
        if problem is not None:
            raise UserError(problem)
        self._store(replace(self._state, overrides=overrides))

    def reset(self, network: str) -> None:
        """Return to the configured rates of a network. Raises UserError for an unknown one."""
        if network not in [known.name for known in self._networks]:
            raise UserError(no_such_network(network, self._networks))
        overrides = tuple(o for o in self._state.overrides if o.network != network)
        self._store(replace(self._state, overrides=overrides))

    def pause(self, pause: Pause | None) -> None:
        """Pause, in place of an earlier pause, or, with None, resume. Raises UserError if it cannot be written."""
        self._store(replace(self._state, pause=pause))

    def _store(self, state: OperatorState) -> None:
        document = {
            "version": _FORMAT_VERSION,
            "overrides": [encode_override(o) for o in state.overrides],
            "pause": None if state.pause is None else {"expires_at": state.pause.expires_at},
        }
        try:
            write_atomically(self._path, json.dumps(document))
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._state = state

    def _keep(self, state: OperatorState) -> None:
        """Store the state if it has changed, and use it even if that fails."""
        if state == self._state:
            return
        try:
            self._store(state)
        except UserError as error:
            self._state = state
            _log.error("%s", error)

    def _load(self) -> OperatorState:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["version"] not in _READABLE_VERSIONS:
                raise ValueError(f"version {document['version']}")
            overrides = tuple(decode_override(item) for item in document["overrides"])
            pause = document.get("pause")
            return OperatorState(overrides, None if pause is None else Pause(decode_expiry(pause)))
        except FileNotFoundError:
            return OperatorState()
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            _log.error("%s: cannot be used (%s): there is no override and no pause", self._path, error)
            return OperatorState()


def _is_over(one: Override | Pause, now: float) -> bool:
    return one.expires_at is not None and one.expires_at <= now
