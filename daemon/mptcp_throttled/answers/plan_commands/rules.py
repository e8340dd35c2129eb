"""Assignments by the classifier `rules`, as the `iptables` commands that an operator would type for the same effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mptcp_throttle.model import OWN_CHAIN, FourTuple
from mptcp_throttled.answers.plan_commands.by_client import by_client
from mptcp_throttled.kernel.classes.iptables import TOOLS
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.class_ids import mark_shift

_JUMP: Final = f"POSTROUTING -p tcp -j {OWN_CHAIN}"


def commands(operation: op.MakeAssignments | op.ChangeAssignments | op.RemoveAssignments, mask: int) -> Iterator[str]:
    """The commands of one operation, in order."""
    mangle = f"{TOOLS[operation.ip_version]} -t mangle"
    match operation:
        case op.MakeAssignments(_, made):
            yield f"{mangle} -N {OWN_CHAIN}  # or -F, if it exists"
            yield f"{mangle} -I {_JUMP}  # unless it exists"
            for assignment in by_client(made):
                yield f"{mangle} -A {_rule(*assignment, mask)}"
        case op.ChangeAssignments(_, add, remove):
            for assignment in by_client(remove):
                yield f"{mangle} -D {_rule(*assignment, mask)}"
            for assignment in by_client(add):
                yield f"{mangle} -A {_rule(*assignment, mask)}"
        case op.RemoveAssignments():
            yield f"{mangle} -D {_JUMP}"
            yield f"{mangle} -F {OWN_CHAIN}"
            yield f"{mangle} -X {OWN_CHAIN}"


def _rule(ends: FourTuple, minor: int, mask: int) -> str:
    return (
        f"{OWN_CHAIN} -s {ends.proxy.address} -d {ends.client.address} -p tcp -m tcp"
        f" --sport {ends.proxy.port} --dport {ends.client.port}"
        f" -j MARK --set-xmark {minor << mark_shift(mask):#x}/{mask:#x}"
    )
