"""Operations on HTB as the `tc` commands that an operator would type for the same effect."""

from __future__ import annotations

from collections.abc import Iterator

from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.vocabulary import class_ids
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic, format_classid, format_handle

_ROOT = format_handle(class_ids.HANDLE)


def commands(
    operation: op.InstallHtb | op.ClassOperation | op.RestoreQdisc, interface: str, filtered: MarkedTraffic | None
) -> Iterator[str]:
    """The commands of one operation, in order; `filtered` is what the filter leads to classes, None without it."""
    match operation:
        case op.InstallHtb(default_minor):
            yield f"tc qdisc replace dev {interface} root handle {_ROOT} htb default {default_minor:x}"
            if filtered is not None:
                yield (
                    f"tc filter add dev {interface} parent {_ROOT} protocol all prio 1 handle 1"
                    f" bpf bytecode '{htb.filter_bytecode(filtered)}'"
                )
        case op.AddClass(minor, rate):
            yield _class_command("add", interface, minor, rate)
            classid = format_classid(class_ids.classid(minor))
            yield f"tc qdisc add dev {interface} parent {classid} pfifo limit {htb.LEAF_PACKETS}"
        case op.ChangeClass(minor, rate):
            yield _class_command("change", interface, minor, rate)
        case op.DeleteClass(minor):
            yield f"tc class del dev {interface} classid {format_classid(class_ids.classid(minor))}"
        case op.RestoreQdisc():
            yield f"tc qdisc del dev {interface} root  # then the saved qdisc, if any"


def _class_command(verb: str, interface: str, minor: int, rate: Rate) -> str:
    burst = htb.burst_bytes(rate)
    return (
        f"tc class {verb} dev {interface} parent {_ROOT} classid {format_classid(class_ids.classid(minor))} htb"
        f" rate {rate} ceil {rate} burst {burst} cburst {burst} quantum {htb.quantum_bytes(rate)}"
    )
