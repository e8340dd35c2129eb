"""Which subflows the proxy's kernel throttles, and which it may, as iproute2 and the firewall tools show it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab import oracle
from mptcp_lab.class_assignments import SHOW_ASSIGNMENTS, parse_assignments
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_lab.host import Host
    from mptcp_lab.topology import AccessLink

# One process instead of four: tests poll this.
_SHOW: Final = f"""\
{SHOW_ASSIGNMENTS}
echo ---
tc class show dev eth0
tc filter show dev eth0 parent 4d50: 2>&1
true"""
_CLASS: Final = re.compile(r"^class htb 4d50:(\w+) .*\brate (\d+)([KMG]?)bit\b", re.M)
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_UNLIMITED: Final = 10**9  # bits per second, faster than any shaped link of the lab


class Client(NamedTuple):
    """The client's end of a subflow."""

    address: str
    port: int


def throttled(proxy: Host) -> dict[Client, int]:
    """The throttled subflows, and their rates in bits per second.

    A subflow counts if everything is there: its class, and its socket's priority or jump, rule and filter.
    """
    shown, qdisc = proxy.run("sh", "-c", _SHOW).stdout.split("---\n")
    rates = {int(minor, 16): int(number) * _UNITS[unit] for minor, number, unit in _CLASS.findall(qdisc)}
    rates_of_clients = {
        Client(m.client, m.client_port): rates.get(m.minor, _UNLIMITED)
        for m in parse_assignments(shown)
        if not m.mask or " bpf " in qdisc
    }
    return {client: rate for client, rate in rates_of_clients.items() if rate < _UNLIMITED}


def paced(proxy: Host) -> set[Client]:
    """The subflows whose socket has a maximum pacing rate, which ss(8) shows behind its pacing rate."""
    sockets = (socket for socket in oracle.sockets(proxy, PORT) if socket.own.port == PORT)
    return {Client(*socket.peer) for socket in sockets if re.search(r"pacing_rate \S+/", socket.info)}


def held(proxy: Host, clients: Iterable[Host]) -> set[Client]:
    """The subflows that MPTCP at the proxy takes for backups although their clients have not asked for it."""
    backups = {Client(*socket.peer) for socket in oracle.sockets(proxy, PORT) if "B" in oracle.flags(socket)}
    if not backups:
        return set()
    asked = (socket for client in clients for socket in oracle.sockets(client, PORT) if "b" in oracle.flags(socket))
    return backups - {Client(*socket.own) for socket in asked}


def may_be_throttled(proxy: Host, preferred: AccessLink) -> set[Client]:
    """The subflows on other links whose connection has an established, non-backup subflow on `preferred`."""
    alive = oracle.listed(proxy, PORT)
    better = {ends.token for ends, (_, backup) in alive.items() if not backup and _is_on(preferred, ends.client)}
    return {
        Client(ends.client, ends.client_port)
        for ends in alive
        if ends.token in better and not _is_on(preferred, ends.client)
    }


def _is_on(link: AccessLink, address: str) -> bool:
    return ip_address(address) in link.v4 or ip_address(address) in link.v6
