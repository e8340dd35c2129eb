"""The proxy's MPTCP subflows, read with ss(8) instead of our code."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mptcp_lab.host import Host
    from mptcp_throttle.rpc import Json


class Ends(NamedTuple):
    """A subflow, by connection and client; a test has one proxy port, and one proxy address per family."""

    token: str
    client: str
    client_port: int


class End(NamedTuple):
    """One end of a subflow."""

    address: str
    port: int


class Socket(NamedTuple):
    """An established TCP socket of a host, and what ss(8) shows of it."""

    own: End
    peer: End
    info: str


def sockets(host: Host, port: int) -> Iterator[Socket]:
    """The established sockets of `host` with this port at either end."""
    ours = ("(", "sport", "=", f":{port}", "or", "dport", "=", f":{port}", ")")
    lines = host.run("ss", "-tinH", "state", "established", *ours).stdout.splitlines()
    for ends, info in zip(lines[::2], lines[1::2], strict=True):
        own, peer = (each.rsplit(":", 1) for each in ends.split()[2:4])
        yield Socket(_end(*own), _end(*peer), info)


def _end(address: str, port: str) -> End:
    return End(plain(address.partition("%")[0].strip("[]")), int(port))


def flags(socket: Socket) -> str:
    """The letters of an MPTCP subflow: B if its peer wants it as a backup, b if this side does; empty for plain TCP."""
    found = re.search(r"flags:(\w+) token:", socket.info)
    return "" if found is None else found[1]


def listed(proxy: Host, port: int) -> dict[Ends, tuple[int, bool]]:
    """The address id and backup flag of every established MPTCP subflow of `proxy`, as ss(8) shows it."""
    subflows = {}
    for socket in sockets(proxy, port):
        mptcp = re.search(r"token:\w+\(id:(\d+)\)/(\w+)\(id:\d+\)", socket.info)
        if mptcp is not None and socket.own.port == port:
            key = Ends(mptcp[2].rjust(8, "0"), *socket.peer)
            subflows[key] = (int(mptcp[1]), bool({"b", "B"} & set(flags(socket))))
    return subflows


def published(connections: Iterable[Json]) -> dict[Ends, tuple[int, bool]]:
    """What `listed` returns, from a table that the sniffer published."""
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
