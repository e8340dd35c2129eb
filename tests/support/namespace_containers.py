"""Network namespaces behind the proxy host that stand for containers: it translates ports to them, as Docker does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mptcp_lab.host import Host
from mptcp_lab.process import run
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from mptcp_lab.topology import Lab

NAT: Final = ("iptables-legacy", "-t", "nat")
CONTAINER_ADDRESSES: Final = ("172.17.0.2", "172.17.1.2")
"""The addresses of the containers, by their numbers."""


def add_container(lab: Lab, number: int = 0) -> Host:
    """A container to which the proxy translates a port (PORT + `number`)."""
    address = CONTAINER_ADDRESSES[number]
    container = Host(f"container{number}", _namespace(lab, number), lab.directory / f"container{number}")
    start_container(lab, container, number)
    lab.proxy.sysctl({"net/ipv4/ip_forward": "1"})
    to_container = ("--dport", str(PORT + number), "-j", "DNAT", "--to-destination", f"{address}:{PORT}")
    lab.proxy.run(*NAT, "-A", "PREROUTING", "-i", "eth0", "-p", "tcp", *to_container)
    lab.proxy.run(*NAT, "-A", "POSTROUTING", "-s", f"{address}/32", "-o", "eth0", "-j", "MASQUERADE")
    return container


def start_container(lab: Lab, container: Host, number: int = 0) -> None:
    """Make the namespace of a container, and its interface, again if it has been ended."""
    address, gateway = CONTAINER_ADDRESSES[number], f"172.17.{number}.1"
    run(["ip", "netns", "add", container.namespace])
    lab.proxy.ip(
        [
            f"link add container{number} type veth peer name eth0 netns {container.namespace}",
            f"address add {gateway}/24 dev container{number}",
            f"link set container{number} up",
        ]
    )
    ends = [f"address add {address}/24 dev eth0", "link set lo up", "link set eth0 up"]
    container.ip([*ends, f"route add default via {gateway}"])
    container.sysctl(lab.description.hosts["proxy"].sysctls)


def remove_container(lab: Lab, container: Host, number: int = 0) -> None:
    """End what runs in a container, and remove its interface and its namespace, as Docker does."""
    container.stop()
    lab.proxy.ip([f"link delete container{number}"])
    run(["ip", "netns", "delete", container.namespace])


def _namespace(lab: Lab, number: int) -> str:
    return f"{lab.proxy.namespace.removesuffix('proxy')}container{number}"
