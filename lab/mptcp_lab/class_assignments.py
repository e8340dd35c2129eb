"""Which subflows are assigned to our classes: by our iptables chain, a table of nftables, or their sockets.

Read with iptables(8), nft(8) and ss(8).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mptcp_lab.oracle import plain

CHAIN: Final = "MPTCP-THROTTLE"

SHOW_ASSIGNMENTS: Final = """\
iptables-legacy -t mangle -S
ip6tables-legacy -t mangle -S
for family in ip ip6; do nft list table $family mptcp-throttle 2>/dev/null; done
ss -tnH --tos state established
true
"""
"""A script for sh(1) whose output `parse_assignments` reads. nft fails without our table."""

_RULE: Final = re.compile(
    rf"^-A {CHAIN} -s (\S+)/\d+ -d (\S+)/\d+ -p tcp -m tcp --sport (\d+) --dport (\d+)"
    r" -j MARK --set-xmark (0x\w+)/(0x\w+)$",
    re.MULTILINE,
)
_PRIORITY: Final = re.compile(r"^\d+ +\d+ +(\S+):(\d+) +(\S+):(\d+) .*class_id:0x4d50(\w{4})", re.MULTILINE)
TABLE: Final = re.compile(r"^table (?:ip|ip6) mptcp-throttle \{$.*?^\}$", re.MULTILINE | re.DOTALL)
_MAP_RULE: Final = re.compile(r"^\t\tmeta priority set .* map @subflows$", re.MULTILINE)
_MAP_ELEMENT: Final = re.compile(r"([0-9a-f.:]+) \. (\S+) \. ([0-9a-f.:]+) \. (\S+) : 4d50:(\w{1,4})\b")
_JUMP: Final = re.compile(rf"^-A POSTROUTING -p tcp -j {CHAIN}$", re.MULTILINE)


class ClassAssignment(NamedTuple):
    """A subflow, by its ends, and the minor of the class that carries what the proxy sends on it.

    `mask`: the bits of the packet mark that name the class; 0: the priority of the packet or of the socket does.
    """

    client: str
    client_port: int
    proxy: str
    proxy_port: int
    minor: int
    mask: int


def parse_assignments(shown: str) -> list[ClassAssignment]:
    """The assignments in the output of `SHOW_ASSIGNMENTS`, sorted. A chain counts only if there is a jump to it."""
    # Each table begins with the policies of its chains.
    tables = re.split(r"^(?=-P PREROUTING)", shown, flags=re.MULTILINE)
    reached = "".join(table for table in tables if _JUMP.search(table))
    found = [
        _of_rule(client, client_port, proxy, proxy_port, mark, mask)
        for proxy, client, proxy_port, client_port, mark, mask in _RULE.findall(reached)
    ]
    found += [
        ClassAssignment(client, int(client_port), proxy, int(proxy_port), int(minor, 16), 0)
        for table in TABLE.findall(shown)
        if _MAP_RULE.search(table)
        for client, client_port, proxy, proxy_port, minor in _MAP_ELEMENT.findall(table)
    ]
    found += [
        ClassAssignment(_plain(client), int(client_port), _plain(proxy), int(proxy_port), int(minor, 16), 0)
        for proxy, proxy_port, client, client_port, minor in _PRIORITY.findall(shown)
    ]
    return sorted(found)


def _of_rule(client: str, client_port: str, proxy: str, proxy_port: str, mark: str, mask: str) -> ClassAssignment:
    bits = int(mask, 16)
    return ClassAssignment(client, int(client_port), proxy, int(proxy_port), int(mark, 16) // (bits & -bits), bits)


def _plain(address: str) -> str:
    """An address as ss(8) shows it, without brackets, and as IPv4 if it is mapped."""
    return plain(address.strip("[]"))
