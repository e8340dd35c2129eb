"""Operations as the commands that an operator would type for the same effect.

These are `tc` and the commands of the classifier, or with Open vSwitch its own commands.
"""

from __future__ import annotations

from collections.abc import Iterator

from mptcp_throttle.model import BackEnd, ClassifierKind
from mptcp_throttle.own_chains import BEFORE_NAT
from mptcp_throttled.answers.plan_commands import openvswitch, tc
from mptcp_throttled.answers.plan_commands.assignments import assignment_commands, by_client
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic


def as_commands(
    operation: op.Operation,
    interfaces: tuple[str, ...],
    marking: MarkedTraffic,
    classifier: str,
    priority: int = BEFORE_NAT,
) -> Iterator[str]:
    """The commands of one operation, in order; what no command can do is a comment.

    `classifier` is `socket`, `nft`, `rules` or `ovs`; `priority` is that of chains of `nft`.
    """
    match operation:
        case op.ChangePaces(add, remove):
            for ends, pace in by_client(add):
                yield f"# SO_MAX_PACING_RATE of {ends.proxy} to {ends.client}: {pace} bytes/s"
            for ends, _ in by_client(remove):
                yield f"# SO_MAX_PACING_RATE of {ends.proxy} to {ends.client}: none"
        case _ if classifier == BackEnd.OVS:
            yield from openvswitch.commands(operation, interfaces[0])
        case op.MakeAssignments() | op.ChangeAssignments() | op.RemoveAssignments():
            yield from assignment_commands(operation, classifier, marking.mask, priority)
        case _:
            filtered = marking if classifier == ClassifierKind.RULES else None
            named = operation.interface if isinstance(operation, op.RestoreQdisc) else None
            for interface in interfaces if named is None else (named,):
                yield from tc.commands(operation, interface, filtered)
