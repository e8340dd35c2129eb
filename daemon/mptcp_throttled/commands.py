"""Operations as the `tc` and `iptables` commands an operator would type for the same effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttled.kernel import htb
from mptcp_throttled.kernel.marks import CHAIN
from mptcp_throttled.kernel.netlink import format_classid, format_handle
from mptcp_throttled.operations import (
    AddClass,
    ChangeClass,
    ChangeMarks,
    ChangePaces,
    DeleteClass,
    InstallHtb,
    Operation,
    RemoveChain,
    RestoreQdisc,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_throttle.model import FourTuple
    from mptcp_throttle.units import Rate

_IPTABLES = {4: "iptables-legacy", 6: "ip6tables-legacy"}
_ROOT = format_handle(htb.HANDLE)


def as_commands(operation: Operation, interface: str, marking: htb.Marking) -> Iterator[str]:
    """The commands of one operation, in order."""
    match operation:
        case InstallHtb(default_minor):
            yield f"tc qdisc replace dev {interface} root handle {_ROOT} htb default {default_minor:x}"
            yield (
                f"tc filter add dev {interface} parent {_ROOT} protocol all prio 1 handle 1"
                f" bpf bytecode '{htb.filter_bytecode(marking)}'"
            )
        case AddClass(minor, rate):
            yield _class_command("add", interface, minor, rate)
            classid = format_classid(htb.classid(minor))
            yield f"tc qdisc add dev {interface} parent {classid} pfifo limit {htb.LEAF_PACKETS}"
        case ChangeClass(minor, rate):
            yield _class_command("change", interface, minor, rate)
        case DeleteClass(minor):
            yield f"tc class del dev {interface} classid {format_classid(htb.classid(minor))}"
        case ChangeMarks(ip_version, add, remove):
            yield f"{_IPTABLES[ip_version]} -t mangle -N {CHAIN}  # unless it exists"
            yield f"{_IPTABLES[ip_version]} -t mangle -I POSTROUTING -p tcp -j {CHAIN}  # unless it exists"
            for ends, minor in remove.items():
                yield _mark_command("-D", ends, minor, marking.mask)
            for ends, minor in add.items():
                yield _mark_command("-A", ends, minor, marking.mask)
        case ChangePaces(add, remove):
            for ends, pace in add.items():
                yield f"# SO_MAX_PACING_RATE of {ends.proxy} to {ends.client}: {pace} bytes/s"
            for ends in remove:
                yield f"# SO_MAX_PACING_RATE of {ends.proxy} to {ends.client}: none"
        case RemoveChain(ip_version):
            yield f"{_IPTABLES[ip_version]} -t mangle -D POSTROUTING -p tcp -j {CHAIN}"
            yield f"{_IPTABLES[ip_version]} -t mangle -F {CHAIN}"
            yield f"{_IPTABLES[ip_version]} -t mangle -X {CHAIN}"
        case RestoreQdisc(other):
            yield f"tc qdisc del dev {other or interface} root  # then the recorded one, if any"


def _class_command(verb: str, interface: str, minor: int, rate: Rate) -> str:
    burst = htb.burst_bytes(rate)
    return (
        f"tc class {verb} dev {interface} parent {_ROOT} classid {format_classid(htb.classid(minor))} htb"
        f" rate {rate} ceil {rate} burst {burst} cburst {burst} quantum {htb.quantum_bytes(rate)}"
    )


def _mark_command(verb: str, ends: FourTuple, minor: int, mask: int) -> str:
    return (
        f"{_IPTABLES[ends.client.address.version]} -t mangle {verb} {CHAIN} -s {ends.proxy.address}"
        f" -d {ends.client.address} -p tcp -m tcp --sport {ends.proxy.port} --dport {ends.client.port}"
        f" -j MARK --set-xmark {minor << htb.mark_shift(mask):#x}/{mask:#x}"
    )
