"""Assignments by the classifier `nft`, as the `nft` commands that an operator would type for the same effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mptcp_throttle.model import OWN_TABLE, FourTuple
from mptcp_throttled.answers.plan_commands.by_client import by_client
from mptcp_throttled.kernel.classes.nft_messages import CHAIN, FAMILIES, MAP
from mptcp_throttled.vocabulary import class_ids
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.class_ids import format_classid

_ADDRESSES: Final = {4: "ipv4_addr", 6: "ipv6_addr"}


def commands(operation: op.MakeAssignments | op.ChangeAssignments | op.RemoveAssignments, _mask: int) -> Iterator[str]:
    """The commands of one operation, in order."""
    family = FAMILIES[operation.ip_version]
    table = f"{family} {OWN_TABLE}"
    match operation:
        case op.MakeAssignments(ip_version, made):
            address = _ADDRESSES[ip_version]
            fields = f"{family} daddr . tcp dport . {family} saddr . tcp sport"
            key = f"{address} . inet_service . {address} . inet_service"
            yield f"nft delete table {table}  # if it exists"
            yield f"nft add table {table}"
            yield f"nft add map {table} {MAP} '{{ type {key} : classid; }}'"
            yield f"nft add chain {table} {CHAIN} '{{ type filter hook postrouting priority mangle; }}'"
            yield f"nft add rule {table} {CHAIN} meta priority set {fields} map @{MAP}"
            for assignment in by_client(made):
                yield _element("add", table, *assignment)
        case op.ChangeAssignments(_, add, remove):
            for assignment in by_client(remove):
                yield _element("delete", table, *assignment)
            for assignment in by_client(add):
                yield _element("add", table, *assignment)
        case op.RemoveAssignments():
            yield f"nft delete table {table}"


def _element(verb: str, table: str, ends: FourTuple, minor: int) -> str:
    client, proxy = ends.client, ends.proxy
    key = f"{client.address} . {client.port} . {proxy.address} . {proxy.port}"
    return f"nft {verb} element {table} {MAP} '{{ {key} : {format_classid(class_ids.classid(minor))} }}'"
