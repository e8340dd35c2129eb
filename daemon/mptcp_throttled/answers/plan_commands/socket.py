"""Assignments by the classifier `socket`, as comments: no command sets the priority of another program's socket."""

from __future__ import annotations

from collections.abc import Iterator

from mptcp_throttle.model import FourTuple
from mptcp_throttled.answers.plan_commands.by_client import by_client
from mptcp_throttled.vocabulary import class_ids
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.class_ids import format_classid


def commands(operation: op.MakeAssignments | op.ChangeAssignments | op.RemoveAssignments, _mask: int) -> Iterator[str]:
    """One comment per subflow."""
    match operation:
        case op.MakeAssignments(_, made):
            for assignment in by_client(made):
                yield _in_class(*assignment)
        case op.ChangeAssignments(_, add, remove):
            for ends, _ in by_client(remove):
                yield f"# SO_PRIORITY of {ends.proxy} to {ends.client}: as before"
            for assignment in by_client(add):
                yield _in_class(*assignment)
        case op.RemoveAssignments():
            yield "# SO_PRIORITY of all sockets: as before"


def _in_class(ends: FourTuple, minor: int) -> str:
    return f"# SO_PRIORITY of {ends.proxy} to {ends.client}: {format_classid(class_ids.classid(minor))}"
