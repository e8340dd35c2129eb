"""A second interface of the proxy, through which one client's Ethernet subflows come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tun_interface import connected, tun

from mptcp_lab.topology import ETHERNET, ClientSpec, Topology

if TYPE_CHECKING:
    from proxy_world import Hosts

    from mptcp_lab.host import Host

TWO_CLIENTS: Final = Topology(clients=(ClientSpec(families=(4,)), ClientSpec("second", families=(4,))))


def add_second_interface(hosts: Hosts) -> None:
    """Give the proxy eth1, for what the client `second` and the proxy send each other over Ethernet."""
    hosts.lab.router.ip([f"link add proxy2 type veth peer name eth1 netns {hosts.lab.proxy.namespace}"])
    _route_second_client(hosts, "eth1")


@contextmanager
def second_interface_of_tun(hosts: Hosts) -> Iterator[None]:
    """As `add_second_interface`, inside the block, with tun0 of type tun."""
    router, proxy = hosts.lab.router, hosts.lab.proxy
    with tun(router.namespace, "proxy2") as near, tun(proxy.namespace, "tun0") as far:
        _route_second_client(hosts, "tun0")
        with connected(near, far):
            yield


def _route_second_client(hosts: Hosts, name: str) -> None:
    router, proxy, second = hosts.lab.router, hosts.lab.proxy, hosts.lab.clients["second"]
    client, server = second.address(ETHERNET, 4), hosts.lab.proxy_address(4)
    router.ip(["address add 10.9.0.1/24 dev proxy2", "link set proxy2 up"])
    address_second_interface(hosts, name)
    router.ip([f"route add {server} via 10.9.0.2 dev proxy2 table 7"])
    # The rules stay when the interface goes.
    if f"from {client} " not in router.run("ip", "rule").stdout:
        router.ip([f"rule add from {client} to {server} table 7"])
        proxy.ip([f"rule add to {client} table main priority 10"])  # before those of the lab, by source address


def address_second_interface(hosts: Hosts, name: str) -> None:
    """Give it what it loses when it is moved to another network namespace."""
    client = hosts.lab.clients["second"].address(ETHERNET, 4)
    hosts.lab.proxy.ip(
        [f"address add 10.9.0.2/24 dev {name}", f"link set {name} up", f"route add {client} via 10.9.0.1 dev {name}"]
    )


def send_small_pulses(client: Host) -> None:
    """Let a client upload with Reno: the pulses of BBR, the lab's default here, are several times as large."""
    client.sysctl({"net/ipv4/tcp_congestion_control": "reno"})
