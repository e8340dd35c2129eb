"""Changes after a log-in: the same as those of the CLI, each attempt logged."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from mptcp_throttle.config.validation import Name, Section, text_that
from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.logs import about
from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttle.units import MAX_DURATION

_log = logging.getLogger("mptcp-throttle-web.changes")
_MALFORMED: Final = about("malformed changes")

Seconds = Annotated[float, Field(gt=0, le=MAX_DURATION)]


class SetRate(Section):
    """Override a rate of a network; `rate` null is unlimited, `seconds` null is until reset."""

    network: Name
    direction: Literal["downlink", "uplink"]
    kind: Literal["cap", "limit"]
    rate: Annotated[str, text_that(lambda text: len(text) <= 32, "up to 32 printable characters")] | None
    seconds: Seconds | None = None


class ResetRate(Section):
    """Return to the configured rates of a network."""

    network: Name


class Pause(Section):
    """Free all subflows; `seconds` null is until resumed."""

    seconds: Seconds | None = None


class Resume(Section):
    """End a pause."""


_CHANGES: Final[dict[str, type[Section]]] = {
    "set_rate": SetRate,
    "reset_rate": ResetRate,
    "pause": Pause,
    "resume": Resume,
}


def _parsed(method: str, body: Json) -> Section:
    """Raises UserError."""
    try:
        return _CHANGES[method].model_validate(body)
    except KeyError as error:
        raise UserError(f"{shown(method)}: no such change; allowed: {', '.join(_CHANGES)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        keys = ".".join(map(str, first["loc"])) or "request"
        # An unknown key may be any text.
        where = keys if keys.isidentifier() else shown(keys)
        raise UserError(f"{where}: {shown(first['input'])}: {first['msg']}") from error


class Control:
    """Makes changes through `call`, which calls a method of the daemon and raises RpcError."""

    def __init__(self, call: Callable[..., Awaitable[Json]]) -> None:
        self._call = call
        # Each attempt is logged, whatever `log_level` is.
        _log.setLevel(logging.INFO)

    def note_malformed(self, method: str, who: str, problem: Exception) -> None:
        """Log an attempt that is refused because it cannot be parsed."""
        _log.info("%s by %s: refused: %s", shown(method), who, problem, extra=_MALFORMED)

    async def change(self, method: str, body: Json, who: str) -> Json:
        """What the daemon answers. Raises RpcError if it refuses, UserError if the request is malformed."""
        try:
            parameters = _parsed(method, body)
        except UserError as error:
            self.note_malformed(method, who, error)
            raise
        values = parameters.model_dump()
        asked = " ".join((method, *(f"{key}={value}" for key, value in values.items())))
        try:
            answer = await self._call(method, *values.values())
        except RpcError as error:
            _log.info("%s by %s: refused: %s", asked, who, error)
            raise
        _log.info("%s by %s: done", asked, who)
        return answer
