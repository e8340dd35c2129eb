"""Assignments as the commands that an operator would type for the same effect, by classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from mptcp_throttle.model import ClassifierKind, FourTuple
from mptcp_throttle.own_chains import AFTER_NAT, BEFORE_NAT, OWN_CHAIN, OWN_TABLE
from mptcp_throttled.kernel.classes.iptables import TOOLS
from mptcp_throttled.kernel.classes.nft_messages import CHAIN, FAMILIES, MAP
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.class_ids import classid, format_classid, mark_shift

_ADDRESSES: Final = {4: "ipv4_addr", 6: "ipv6_addr"}
_PRIORITIES: Final = {BEFORE_NAT: "mangle", AFTER_NAT: "srcnat + 1"}
_JUMP: Final = f"POSTROUTING -p tcp -j {OWN_CHAIN}"

_T = TypeVar("_T")


class _Commands(NamedTuple):
    """The commands of a classifier: before the assignments of an IP version, for each of them, and to remove all."""

    begin: Callable[[int, int], Sequence[str]]
    """Arguments: an IP version, and the priority of chains of `nft`."""

    add: Callable[[FourTuple, int, int], str]
    """Arguments: a subflow, its class minor, and the mask of fwmarks. Those of `remove` are the same."""

    remove: Callable[[FourTuple, int, int], str]
    end: Callable[[int], Sequence[str]]


def assignment_commands(
    operation: op.MakeAssignments | op.ChangeAssignments | op.RemoveAssignments,
    classifier: str,
    mask: int,
    priority: int,
) -> Iterator[str]:
    """The commands of one operation, in order; comments for `socket`."""
    commands = _COMMANDS[classifier]
    add: Mapping[FourTuple, int] = {}
    remove: Mapping[FourTuple, int] = {}
    match operation:
        case op.MakeAssignments(ip_version, add):
            yield from commands.begin(ip_version, priority)
        case op.ChangeAssignments(_, add, remove):
            pass
        case op.RemoveAssignments(ip_version):
            yield from commands.end(ip_version)
    for ends, minor in by_client(remove):
        yield commands.remove(ends, minor, mask)
    for ends, minor in by_client(add):
        yield commands.add(ends, minor, mask)


def by_client(of_subflows: Mapping[FourTuple, _T]) -> list[tuple[FourTuple, _T]]:
    """The items by address and port of the client."""
    return sorted(of_subflows.items(), key=lambda item: (int(item[0].client.address), item[0].client.port))


def _priority(ends: FourTuple, value: str) -> str:
    # No command sets the priority of another program's socket.
    return f"# SO_PRIORITY of {ends.proxy} to {ends.client}: {value}"


def _table(ip_version: int) -> str:
    return f"{FAMILIES[ip_version]} {OWN_TABLE}"


def _new_table(ip_version: int, priority: int) -> list[str]:
    family, address, table = FAMILIES[ip_version], _ADDRESSES[ip_version], _table(ip_version)
    fields = f"{family} daddr . tcp dport . {family} saddr . tcp sport"
    key = f"{address} . inet_service . {address} . inet_service"
    return [
        f"nft delete table {table}  # if it exists",
        f"nft add table {table}",
        f"nft add map {table} {MAP} '{{ type {key} : classid; }}'",
        f"nft add chain {table} {CHAIN} '{{ type filter hook postrouting priority {_PRIORITIES[priority]}; }}'",
        f"nft add rule {table} {CHAIN} meta priority set {fields} map @{MAP}",
    ]


def _element(verb: str, ends: FourTuple, minor: int) -> str:
    client, proxy = ends.client, ends.proxy
    key = f"{client.address} . {client.port} . {proxy.address} . {proxy.port}"
    table = _table(client.address.version)
    return f"nft {verb} element {table} {MAP} '{{ {key} : {format_classid(classid(minor))} }}'"


def _mangle(ip_version: int, *arguments: str) -> list[str]:
    return [f"{TOOLS[ip_version]} -t mangle {argument}" for argument in arguments]


def _rule(verb: str, ends: FourTuple, minor: int, mask: int) -> str:
    (command,) = _mangle(
        ends.client.address.version,
        f"{verb} {OWN_CHAIN} -s {ends.proxy.address} -d {ends.client.address} -p tcp -m tcp"
        f" --sport {ends.proxy.port} --dport {ends.client.port}"
        f" -j MARK --set-xmark {minor << mark_shift(mask):#x}/{mask:#x}",
    )
    return command


_COMMANDS: Final[Mapping[str, _Commands]] = {
    ClassifierKind.SOCKET: _Commands(
        lambda _version, _priority: (),
        lambda ends, minor, _: _priority(ends, format_classid(classid(minor))),
        lambda ends, _minor, _mask: _priority(ends, "as before"),
        lambda _: ("# SO_PRIORITY of all sockets: as before",),
    ),
    ClassifierKind.NFT: _Commands(
        _new_table,
        lambda ends, minor, _: _element("add", ends, minor),
        lambda ends, minor, _: _element("delete", ends, minor),
        lambda ip_version: (f"nft delete table {_table(ip_version)}",),
    ),
    ClassifierKind.RULES: _Commands(
        lambda ip_version, _: _mangle(
            ip_version, f"-N {OWN_CHAIN}  # or -F, if it exists", f"-I {_JUMP}  # unless it exists"
        ),
        lambda ends, minor, mask: _rule("-A", ends, minor, mask),
        lambda ends, minor, mask: _rule("-D", ends, minor, mask),
        lambda version: _mangle(version, f"-D {_JUMP}", f"-F {OWN_CHAIN}", f"-X {OWN_CHAIN}"),
    ),
}
