"""Which subflows the proxy's kernel throttles, and which it may, as iproute2 and the firewall tools show it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab import oracle
from mptcp_lab.marks import SHOW_MARKS, parse_marks
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mptcp_lab.host import Host
    from mptcp_lab.topology import AccessLink

# One process instead of four: tests poll this.
_SHOW: Final = f"""\
{SHOW_MARKS}
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
        for m in parse_marks(shown)
        if not m.mask or " bpf " in qdisc
    }
    return {client: rate for client, rate in rates_of_clients.items() if rate < _UNLIMITED}


def paced(proxy: Host) -> set[Client]:
    """The subflows whose socket has a maximum pacing rate, which ss(8) shows behind its pacing rate."""
    lines = proxy.run("ss", "-tinH", "state", "established", "sport", "=", f":{PORT}").stdout.splitlines()
    peers = (ends.split()[3].rsplit(":", 1) for ends, info in pairwise(lines) if re.search(r"pacing_rate \S+/", info))
    return {Client(oracle.plain(address.strip("[]")), int(port)) for address, port in peers}


def held(proxy: Host, clients: Iterable[Host]) -> set[Client]:
    """The subflows that MPTCP at the proxy takes for backups although their clients have not asked for it.

    ss(8) shows `B` where the other side has asked for it, and `b` at that side.
    """
    backups = {peer for _, peer in _flagged(proxy, "B")}
    return backups - {own for client in clients for own, _ in _flagged(client, "b")} if backups else set()


def _flagged(host: Host, flag: str) -> Iterator[tuple[Client, Client]]:
    """Both ends of the subflows of a host with this flag, its own end first."""
    ours = ("(", "sport", "=", f":{PORT}", "or", "dport", "=", f":{PORT}", ")")
    lines = host.run("ss", "-tinH", "state", "established", *ours).stdout.splitlines()
    for ends, info in pairwise(lines):
        flags = re.search(r"flags:(\w+) token:", info)
        if flags is not None and flag in flags[1]:
            own, peer = (each.rsplit(":", 1) for each in ends.split()[2:4])
            yield _client(*own), _client(*peer)


def _client(address: str, port: str) -> Client:
    return Client(oracle.plain(address.strip("[]").split("%")[0]), int(port))


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
