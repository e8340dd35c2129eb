"""Operations as the `ovs-vsctl` and `ovs-ofctl` commands that an operator would type for the same effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mptcp_throttled.answers.plan_commands.assignments import by_client
from mptcp_throttled.kernel.openvswitch.openflow import add_line, delete_all_line, delete_line, queue_of
from mptcp_throttled.kernel.openvswitch.queues import add_queue, delete_queue, make_qos, set_queue
from mptcp_throttled.vocabulary import operations as op


def commands(operation: op.Operation, port: str) -> Iterator[str]:
    """The commands of one operation but `ChangePaces`, in order."""
    match operation:
        case op.InstallHtb(default_minor):
            yield _transaction(make_qos(port, default_minor))
        case op.AddClass(minor, rate):
            yield _transaction(add_queue(port, minor, rate))
        case op.ChangeClass(minor, rate):
            yield _transaction([set_queue(_queue(port, minor), rate)])
        case op.DeleteClass(minor):
            yield _transaction(delete_queue(port, minor, _queue(port, minor)))
        case op.MakeAssignments(ip_version, assignments):
            added = [add_line(*assignment) for assignment in by_client(assignments)]
            yield from _bundle(port, [delete_all_line(ip_version), *added])
        case op.ChangeAssignments(_, add, remove):
            removed = [delete_line(ends) for ends, _ in by_client(remove) if ends not in add]
            yield from _bundle(port, [*removed, *(add_line(*assignment) for assignment in by_client(add))])
        case op.RemoveAssignments(ip_version):
            yield from _bundle(port, [delete_all_line(ip_version)])
        case op.RestoreQdisc(interface):
            yield f"ovs-vsctl clear Port {interface or port} qos  # then destroy the records of QoS and Queue"


def _transaction(commands: Sequence[Sequence[str]]) -> str:
    return "ovs-vsctl " + " ".join(f"-- {' '.join(command)}" for command in commands)


def _bundle(port: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"ovs-ofctl --bundle add-flows $(ovs-vsctl port-to-br {port}) - <<END"
    yield from lines
    yield "END"


def _queue(port: str, minor: int) -> str:
    return f"$(ovs-vsctl get QoS {port} queues:{queue_of(minor)})"
