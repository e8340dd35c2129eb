"""What MPTCP at the proxy makes of subflows, by ss(8) and the kernel's counters; what the steering programs count."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab import oracle
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI

if TYPE_CHECKING:
    from collections.abc import Collection

    from proxy_world import ProxyWorld

    from mptcp_lab.host import Host

_FILTERS: Final = re.compile(r"pref (\d+) bpf chain 0 handle 0x4d51 mptcp-throttle-steering ")


class ProxySubflow(NamedTuple):
    """An established subflow at the proxy.

    `is_backup`: an MP_PRIO or a JOIN of the client has said so, or what the proxy took for one.
    """

    network: str
    client_port: int
    is_backup: bool


class Priorities(NamedTuple):
    """MP_PRIO options that a host has received and sent."""

    received: int
    sent: int


def subflows_at_proxy(world: ProxyWorld) -> list[ProxySubflow]:
    """The subflows of all clients."""
    return [
        ProxySubflow(link.network, socket.peer.port, "B" in oracle.flags(socket))
        for socket in oracle.sockets(world.proxy, PORT)
        for link in (ETHERNET, WIFI)
        if any(ip_address(socket.peer.address) in subnet for subnet in (link.v4, link.v6))
    ]


def are_backups(world: ProxyWorld, network: str = "ethernet", count: int | None = None) -> bool:
    """Whether all subflows on that network, at least one, are backups at the proxy; with `count`: that many."""
    found = [subflow.is_backup for subflow in subflows_at_proxy(world) if subflow.network == network]
    return all(found) and (bool(found) if count is None else len(found) == count)


def are_regular(world: ProxyWorld) -> bool:
    """Whether no subflow is a backup at the proxy, and there is at least one."""
    found = subflows_at_proxy(world)
    return bool(found) and not any(subflow.is_backup for subflow in found)


def priorities(host: Host) -> Priorities:
    """What the host has counted so far."""
    return Priorities(host.counter("MPTcpExtMPPrioRx"), host.counter("MPTcpExtMPPrioTx"))


def complaints(host: Host) -> dict[str, int]:
    """How many segments IP and TCP have refused so far, by reasons that an ACK of ours could give them."""
    names = ("IpExtInCsumErrors", "TcpInCsumErrors", "TcpInErrs", "TcpExtPAWSEstab", "TcpExtTCPChallengeACK")
    return {name: host.counter(name) for name in names}


def steering_counters(world: ProxyWorld) -> dict[str, int]:
    """What the programs had counted when the daemon looked last."""
    counters: dict[str, int] = world.services.status()["daemon"]["features"]["steering"]["counters"]
    return counters


def filters(host: Host, interfaces: Collection[str] = ("eth0",)) -> dict[str, list[int]]:
    """The priorities of steering's filters at interfaces, by interface and direction."""
    return {
        f"{interface} {direction}": [
            int(priority)
            for priority in _FILTERS.findall(
                host.run("tc", "filter", "show", "dev", interface, direction, check=False).stdout
            )
        ]
        for interface in interfaces
        for direction in ("ingress", "egress")
    }
