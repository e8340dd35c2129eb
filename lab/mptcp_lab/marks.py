"""The packet marks that our iptables chain and ipsets give to subflows, read with iptables(8) and ipset(8)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

CHAIN: Final = "MPTCP-THROTTLE"

SHOW_MARKS: Final = """\
iptables-legacy -t mangle -S
ip6tables-legacy -t mangle -S
ipset save 2>/dev/null
true
"""
"""A script for sh(1) whose output `parse_marks` reads. ipset fails on a kernel without sets."""

_RULE: Final = re.compile(
    rf"^-A {CHAIN} -s (\S+)/\d+ -d (\S+)/\d+ -p tcp -m tcp --sport (\d+) --dport (\d+)"
    r" -j MARK --set-xmark (0x\w+)/(0x\w+)$",
    re.MULTILINE,
)
_LOOK_UP: Final = re.compile(
    rf"^-A {CHAIN} -p tcp -m tcp --sport (\d+) -j SET --map-set (\S+) dst,dst,src --map-mark$", re.MULTILINE
)
_ELEMENT: Final = re.compile(r"^add (\S+) ([^,]+),tcp:(\d+),(\S+) skbmark (0x\w+)/(0x\w+)$", re.MULTILINE)
_JUMP: Final = re.compile(rf"^-A POSTROUTING -p tcp -j {CHAIN}$", re.MULTILINE)


class Mark(NamedTuple):
    """The mark of packets from the proxy to the client of a subflow."""

    client: str
    client_port: int
    proxy: str
    proxy_port: int
    mark: int
    mask: int


def parse_marks(shown: str) -> list[Mark]:
    """The marks in the output of `SHOW_MARKS`, of a chain only if there is a jump to it."""
    # Each table begins with the policies of its chains.
    tables = re.split(r"^(?=-P PREROUTING)", shown, flags=re.MULTILINE)
    reached = "".join(table for table in tables if _JUMP.search(table))
    found = [
        Mark(client, int(client_port), proxy, int(proxy_port), int(mark, 16), int(mask, 16))
        for proxy, client, proxy_port, client_port, mark, mask in _RULE.findall(reached)
    ]
    ports = {name: int(port) for port, name in _LOOK_UP.findall(reached)}
    found += [
        Mark(client, int(client_port), proxy, ports[name], int(mark, 16), int(mask, 16))
        for name, client, client_port, proxy, mark, mask in _ELEMENT.findall(shown)
        if name in ports
    ]
    return sorted(found)
