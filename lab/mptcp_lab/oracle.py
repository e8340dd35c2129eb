"""The proxy's MPTCP subflows, read with ss(8) instead of our code."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_lab.host import Host
    from mptcp_throttle.rpc import Json


class Ends(NamedTuple):
    """A subflow, by connection and client; a test has one proxy port, and one proxy address per family."""

    token: str
    client: str
    client_port: int


def listed(proxy: Host, port: int) -> dict[Ends, tuple[int, bool]]:
    """The address id and backup flag of every established MPTCP subflow of `proxy`, as ss(8) shows it."""
    lines = proxy.run("ss", "-tinH", "state", "established", "sport", "=", f":{port}").stdout.splitlines()
    subflows = {}
    for ends, info in zip(lines[::2], lines[1::2], strict=True):
        mptcp = re.search(r"flags:(\w+) token:\w+\(id:(\d+)\)/(\w+)\(id:\d+\)", info)
        if mptcp is None:
            continue
        address, client_port = ends.split()[3].rsplit(":", 1)
        key = Ends(mptcp[3].rjust(8, "0"), plain(address.strip("[]")), int(client_port))
        subflows[key] = (int(mptcp[2]), bool({"b", "B"} & set(mptcp[1])))
    return subflows


def published(connections: Iterable[Json]) -> dict[Ends, tuple[int, bool]]:
    """The same, from a table that the sniffer published."""
    return {
        Ends(connection["token"], subflow["client"], subflow["client_port"]): (subflow["address_id"], subflow["backup"])
        for connection in connections
        for subflow in connection["subflows"]
    }


def plain(text: str) -> str:
    """The address as it is on the wire: an IPv4-mapped IPv6 address as IPv4."""
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
