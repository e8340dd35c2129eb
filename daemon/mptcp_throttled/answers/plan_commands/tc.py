"""Operations as the commands that an operator would type for the same effect.

tc, nft, iptables, ipset or those of Open vSwitch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mptcp_throttle.model import OWN_CHAIN, BackEnd, ClassifierKind, FourTuple
from mptcp_throttle.units import Rate
from mptcp_throttled.answers.plan_commands.nft import nft_commands
from mptcp_throttled.answers.plan_commands.openvswitch import openvswitch_commands
from mptcp_throttled.kernel.classes.ipset import MAX_MARKS, SET_TYPE, OwnSet
from mptcp_throttled.kernel.classes.iptables import TOOLS
from mptcp_throttled.kernel.classes.sets import LOOKED_UP
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.vocabulary import class_ids
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic, format_classid, format_handle

_ROOT = format_handle(class_ids.HANDLE)


def as_commands(
    operation: op.Operation, interfaces: tuple[str, ...], marking: MarkedTraffic, classifier: str
) -> Iterator[str]:
    """The commands of one operation, in order; `classifier` is `socket`, `nft`, `ipset`, `rules` or `ovs`.

    What no command can do is a comment.
    """
    if classifier == BackEnd.OVS and not isinstance(operation, op.ChangePaces):
        yield from openvswitch_commands(operation, interfaces[0])
        return
    match operation:
        case op.InstallHtb() | op.AddClass() | op.ChangeClass() | op.DeleteClass() | op.RestoreQdisc(None):
            for interface in interfaces:
                yield from _tc_commands(operation, interface, marking, classifier)
        case op.RestoreQdisc(interface) if interface is not None:
            yield from _tc_commands(operation, interface, marking, classifier)
        case op.MakeAssignments(_, add) if classifier == ClassifierKind.SOCKET:
            yield from _socket_comments(add, {})
        case op.ChangeAssignments(_, add, remove) if classifier == ClassifierKind.SOCKET:
            yield from _socket_comments(add, remove)
        case op.RemoveAssignments() if classifier == ClassifierKind.SOCKET:
            yield "# SO_PRIORITY of all sockets: as before"
        case op.MakeAssignments() | op.ChangeAssignments() | op.RemoveAssignments() if classifier == ClassifierKind.NFT:
            yield from nft_commands(operation)
        case op.MakeAssignments(ip_version, made):
            yield f"{TOOLS[ip_version]} -t mangle -N {OWN_CHAIN}  # or -F, if it exists"
            yield f"{TOOLS[ip_version]} -t mangle -I POSTROUTING -p tcp -j {OWN_CHAIN}  # unless it exists"
            if classifier == ClassifierKind.IPSET:
                for port in marking.ports:
                    yield from _set_commands(OwnSet(ip_version, port))
            for ends, minor in sorted(made.items(), key=_by_client):
                yield _mark_command(classifier, ends, minor, marking.mask, add=True)
        case op.ChangeAssignments(ip_version, add, remove):
            for ends, minor in sorted(remove.items(), key=_by_client):
                yield _mark_command(classifier, ends, minor, marking.mask, add=False)
            for ends, minor in sorted(add.items(), key=_by_client):
                yield _mark_command(classifier, ends, minor, marking.mask, add=True)
        case op.ChangePaces(add, remove):
            for ends, pace in sorted(add.items(), key=_by_client):
                yield f"# SO_MAX_PACING_RATE of {ends.proxy} to {ends.client}: {pace} bytes/s"
            for ends, _ in sorted(remove.items(), key=_by_client):
                yield f"# SO_MAX_PACING_RATE of {ends.proxy} to {ends.client}: none"
        case op.RemoveAssignments(ip_version):
            yield f"{TOOLS[ip_version]} -t mangle -D POSTROUTING -p tcp -j {OWN_CHAIN}"
            yield f"{TOOLS[ip_version]} -t mangle -F {OWN_CHAIN}"
            yield f"{TOOLS[ip_version]} -t mangle -X {OWN_CHAIN}"
            if classifier == ClassifierKind.IPSET:
                for port in marking.ports:
                    yield f"ipset destroy {OwnSet(ip_version, port).name}"


def _tc_commands(operation: op.Operation, interface: str, marking: MarkedTraffic, classifier: str) -> Iterator[str]:
    match operation:
        case op.InstallHtb(default_minor):
            yield f"tc qdisc replace dev {interface} root handle {_ROOT} htb default {default_minor:x}"
            if classifier not in (ClassifierKind.SOCKET, ClassifierKind.NFT):
                yield (
                    f"tc filter add dev {interface} parent {_ROOT} protocol all prio 1 handle 1"
                    f" bpf bytecode '{htb.filter_bytecode(marking)}'"
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


def _by_client(item: tuple[FourTuple, int]) -> tuple[int, int]:
    client = item[0].client
    return int(client.address), client.port


def _socket_comments(add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> Iterator[str]:
    for ends, _ in sorted(remove.items(), key=_by_client):
        yield f"# SO_PRIORITY of {ends.proxy} to {ends.client}: as before"
    for ends, minor in sorted(add.items(), key=_by_client):
        yield f"# SO_PRIORITY of {ends.proxy} to {ends.client}: {format_classid(class_ids.classid(minor))}"


def _class_command(verb: str, interface: str, minor: int, rate: Rate) -> str:
    burst = htb.burst_bytes(rate)
    return (
        f"tc class {verb} dev {interface} parent {_ROOT} classid {format_classid(class_ids.classid(minor))} htb"
        f" rate {rate} ceil {rate} burst {burst} cburst {burst} quantum {htb.quantum_bytes(rate)}"
    )


def _set_commands(own: OwnSet) -> Iterator[str]:
    family = {4: "inet", 6: "inet6"}[own.ip_version]
    yield f"ipset create {own.name} {SET_TYPE} family {family} maxelem {MAX_MARKS} skbinfo"
    yield (
        f"{TOOLS[own.ip_version]} -t mangle -A {OWN_CHAIN} -p tcp -m tcp --sport {own.port}"
        f" -j SET --map-set {own.name} {LOOKED_UP} --map-mark"
    )


def _mark_command(classifier: str, ends: FourTuple, minor: int, mask: int, *, add: bool) -> str:
    assignment = f"{minor << class_ids.mark_shift(mask):#x}/{mask:#x}"
    version = ends.client.address.version
    if classifier == ClassifierKind.IPSET:
        subflow = f"{ends.client.address},{ends.client.port},{ends.proxy.address}"
        element = f"{OwnSet(version, ends.proxy.port).name} {subflow}"
        return f"ipset add {element} skbmark {assignment}" if add else f"ipset del {element}"
    return (
        f"{TOOLS[version]} -t mangle {'-A' if add else '-D'} {OWN_CHAIN} -s {ends.proxy.address}"
        f" -d {ends.client.address} -p tcp -m tcp --sport {ends.proxy.port} --dport {ends.client.port}"
        f" -j MARK --set-xmark {assignment}"
    )
