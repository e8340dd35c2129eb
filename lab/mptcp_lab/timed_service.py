"""A service that notes when each JOIN has passed it: `python -m mptcp_lab.timed_service FILE NAME ARGUMENT...`.

NAME is mptcp-sniffer or mptcp-throttled; it is the real one with its arguments, only what its stages hand on is noted.
At its end FILE gets a line of JSON per note: `[stage, key, monotonic seconds]`. Keys are `TOKEN SUBFLOW`; of
`paced` `SUBFLOW`, of `marked` `SUBFLOW MINOR`, of `classed` `MINOR`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import mptcp_sniffer.main
import mptcp_throttled.main
from mptcp_sniffer.events import Event, EventKind
from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.tracker import Tracker
from mptcp_throttled.control.source import Follower, TableUpdate
from mptcp_throttled.kernel.linux_kernel import LinuxKernel
from mptcp_throttled.vocabulary.operations import AddClass, ChangeAssignments, ChangePaces, MakeAssignments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mptcp_sniffer.kernel_list import KernelList
    from mptcp_sniffer.segment import Segment
    from mptcp_sniffer.tracker import TableChange
    from mptcp_throttle.linux.kernel_error import KernelError
    from mptcp_throttle.model import Connection
    from mptcp_throttled.vocabulary.operations import ClassOperation, OtherOperation

_notes: list[tuple[str, str, float]] = []


def _note(stage: str, keys: Iterable[object], at: float) -> None:
    _notes.extend((stage, str(key), at) for key in keys)


def _keys(connections: Iterable[Connection | None]) -> Iterator[str]:
    return (f"{c.token} {subflow.ends}" for c in connections if c is not None for subflow in c.subflows)


def _time_sniffer() -> None:
    observe, apply_kernel_list, publish = Tracker.observe_all, Tracker.apply_kernel_list, PublishedTable.publish

    def timed_observe(tracker: Tracker, segments: Iterable[tuple[Segment, float, bool | None]]) -> list[TableChange]:
        return _noted(tracker, lambda: observe(tracker, segments))

    def timed_apply_kernel_list(tracker: Tracker, kernel_list: KernelList) -> list[TableChange]:
        return _noted(tracker, lambda: apply_kernel_list(tracker, kernel_list))

    def timed_publish(table: PublishedTable, changes: Iterable[TableChange]) -> None:
        changes = list(changes)
        publish(table, changes)
        now = time.monotonic()
        _note("published", _keys(change.connection for change in changes), now)

    Tracker.observe_all = timed_observe  # type: ignore[method-assign, assignment]
    Tracker.apply_kernel_list = timed_apply_kernel_list  # type: ignore[method-assign, assignment]
    PublishedTable.publish = timed_publish  # type: ignore[method-assign, assignment]


def _noted(tracker: Tracker, change: Callable[[], list[TableChange]]) -> list[TableChange]:
    """Call `change`, and note which subflows ask, are in the table and have gone from it."""
    events: list[Event] = []
    listener, tracker.on_event = tracker.on_event, events.append
    changes = change()
    tracker.on_event = listener
    for event in events:
        if event.subflow is not None:
            key = f"{event.token} {event.subflow.ends}"
            # Of what is known from the kernel alone, the time of the SYN is not known.
            if event.kind in (EventKind.JOINING, EventKind.ESTABLISHED) and event.subflow.opened_at != event.at:
                _note("asked", [key], event.subflow.opened_at)
            if event.kind is EventKind.ESTABLISHED:
                _note("proved", [key], event.at)
            elif event.kind is EventKind.CLOSED:
                _note("closed", [key], event.at)
        if listener is not None:
            listener(event)
    return changes


def _time_daemon() -> None:
    take, apply, change = Follower.take, LinuxKernel.apply, LinuxKernel.change_classes

    def timed_take(source: Follower) -> TableUpdate | None:
        update = take(source)
        if update is not None:
            _note("delivered", _keys(update.connections.values()), time.monotonic())
        return update

    def timed_change(kernel: LinuxKernel, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        refusals = change(kernel, operations)
        now = time.monotonic()
        _note("classed", (o.minor for o in operations if isinstance(o, AddClass)), now)
        return refusals

    def timed_apply(kernel: LinuxKernel, operation: OtherOperation) -> None:
        apply(kernel, operation)
        now = time.monotonic()
        match operation:
            case MakeAssignments(assignments=add) | ChangeAssignments(add=add):
                _notes.extend(("marked", f"{ends} {minor}", now) for ends, minor in add.items())
            case ChangePaces(add=add):
                _note("paced", add, now)

    LinuxKernel.change_classes = timed_change  # type: ignore[method-assign, assignment]
    Follower.take, LinuxKernel.apply = timed_take, timed_apply  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    file, name, *arguments = sys.argv[1:]
    services = {
        "mptcp-sniffer": (_time_sniffer, mptcp_sniffer.main.main),
        "mptcp-throttled": (_time_daemon, mptcp_throttled.main.main),
    }
    prepare, main = services[name]
    prepare()
    status = main(arguments)
    Path(file).write_text("".join(json.dumps(note) + "\n" for note in _notes), encoding="ascii")
    sys.exit(status)
