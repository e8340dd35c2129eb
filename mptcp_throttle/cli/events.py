"""`mptcp-throttle events`: prints what has happened, and with `--follow` what happens, until it is ended."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from mptcp_throttle.rpc import Json, RpcError

_WAIT_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 1.0
# While the daemon is away, or before it has given its socket to the group.
_AWAY: Final = frozenset({os.EX_UNAVAILABLE, os.EX_NOPERM})

Ask = Callable[["Position", float], Json]
"""The daemon's answer to `events` for a reader at a position that waits so many seconds. Raises RpcError."""


class Position(NamedTuple):
    """How far a reader has come: the last event that it knows, of an instance of the daemon; None: of no instance."""

    instance: str | None = None
    number: int = 0


def unseen(position: Position, answer: Json) -> tuple[Position, list[Json]]:
    """The events that a reader does not know, each with `instance`, and with how many were `missed` before it."""
    instance = answer["instance"]
    known = position.number if position.instance == instance else 0
    events = []
    for event in answer["events"]:
        events.append({"instance": instance, **event, "missed": event["number"] - known - 1})
        known = event["number"]
    return Position(instance, answer["latest"]), events


def latest(answer: Json, number: int) -> tuple[Position, list[Json]]:
    """The latest events, up to `number`."""
    instance, events = answer["instance"], answer["events"][-number:] if number else []
    known = Position(instance, events[0]["number"] - 1 if events else answer["latest"])
    return unseen(known, {**answer, "events": events})


def as_text(event: Json) -> str:
    """An event in a line for people, in the time zone of this process; before it, that others were missed."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
    missed = f"({event['missed']} events missed)\n" if event["missed"] else ""
    return f"{missed}{at}  {event['kind']:<22}  {event['text']}\n"


def as_json(document_format: int, event: Json) -> str:
    """An event as a JSON object in a line."""
    return json.dumps({"format": document_format, **event}) + "\n"


def show(ask: Ask, number: int, line: Callable[[Json], str]) -> Position:
    """Print the latest events, up to `number`, each as `line` says. Raises RpcError."""
    position, events = latest(ask(Position(), 0.0), number)
    _write(map(line, events))
    return position


def follow(ask: Ask, number: int, line: Callable[[Json], str]) -> None:
    """As `show`, and then print what happens, until the reader of the output has closed it.

    While the daemon is away, it is asked again each second. Raises RpcError if it is at the beginning, and
    BrokenPipeError.
    """
    position = show(ask, number, line)
    is_away = False
    while True:
        asked = time.monotonic()
        try:
            position, events = unseen(position, ask(position, _WAIT_SECONDS))
            is_away = False
        except RpcError as error:
            if error.status not in _AWAY:
                raise
            if not is_away:
                sys.stderr.write(f"waiting for the daemon: {error}\n")
            is_away, events = True, []
        _write(map(line, events))
        _require_reader()
        if not events:
            time.sleep(max(0.0, asked + _ASK_SECONDS - time.monotonic()))


def _write(lines: Iterable[str]) -> None:
    text = "".join(lines)
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def _require_reader() -> None:
    """Raise BrokenPipeError if nobody can read the output any more, although nothing may be written for long."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(seen & (select.POLLERR | select.POLLHUP) for _, seen in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
