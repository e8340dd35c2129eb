"""What `benchmarks/soak --leak` leaves behind in each round, to show that it is reported."""

from __future__ import annotations

import socket
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Final

from mptcp_lab import namespaces
from mptcp_lab.soak.bpf_objects import make_map

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mptcp_lab.host import Host

_NOWHERE: Final = IPv4Network("198.18.0.0/15")  # RFC 2544: for benchmarks
_open: Final[list[socket.socket]] = []


def _map(_proxy: Host, _number: int) -> None:
    make_map()


def _route(proxy: Host, number: int) -> None:
    proxy.ip([f"route add blackhole {_NOWHERE[number]}/32"])


def _table(proxy: Host, number: int) -> None:
    proxy.run("nft", "add", "table", "ip", f"soak-{number}")


def _socket(proxy: Host, _number: int) -> None:
    with namespaces.in_namespace(proxy.namespace):
        _open.append(socket.socket())
    _open[-1].bind(("127.0.0.1", 0))
    _open[-1].listen()


LEAKS: Final[Mapping[str, Callable[[Host, int], None]]] = {
    "map": _map,
    "route": _route,
    "table": _table,
    "socket": _socket,
}
"""Each leaves one object at the proxy, or in this process, in the round of that number."""
