"""Network namespaces behind the proxy host, to which it translates ports as Docker does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mptcp_lab.host import Host
from mptcp_lab.process import run
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from mptcp_lab.topology import Lab

NAT: Final = ("iptables-legacy", "-t", "nat")
BOXES: Final = ("172.17.0.2", "172.17.1.2")
"""The addresses of boxes."""


def add_box(lab: Lab, number: int = 0) -> Host:
    """A box to which the proxy translates a port (PORT + `number`)."""
    address = BOXES[number]
    box = Host(f"box{number}", _namespace(lab, number), lab.directory / f"box{number}")
    start_box(lab, box, number)
    lab.proxy.sysctl({"net/ipv4/ip_forward": "1"})
    to_box = ("--dport", str(PORT + number), "-j", "DNAT", "--to-destination", f"{address}:{PORT}")
    lab.proxy.run(*NAT, "-A", "PREROUTING", "-i", "eth0", "-p", "tcp", *to_box)
    lab.proxy.run(*NAT, "-A", "POSTROUTING", "-s", f"{address}/32", "-o", "eth0", "-j", "MASQUERADE")
    return box


def start_box(lab: Lab, box: Host, number: int = 0) -> None:
    """Make the namespace of a box, and its interface, again if it has been ended."""
    address, gateway = BOXES[number], f"172.17.{number}.1"
    run(["ip", "netns", "add", box.namespace])
    lab.proxy.ip(
        [
            f"link add box{number} type veth peer name eth0 netns {box.namespace}",
            f"address add {gateway}/24 dev box{number}",
            f"link set box{number} up",
        ]
    )
    ends = [f"address add {address}/24 dev eth0", "link set lo up", "link set eth0 up"]
    box.ip([*ends, f"route add default via {gateway}"])
    box.sysctl(lab.description.hosts["proxy"].sysctls)


def end_box(lab: Lab, box: Host, number: int = 0) -> None:
    """End what runs in a box, and remove its interface and its namespace, as Docker does."""
    box.stop()
    lab.proxy.ip([f"link delete box{number}"])
    run(["ip", "netns", "delete", box.namespace])


def _namespace(lab: Lab, number: int) -> str:
    return f"{lab.proxy.namespace.removesuffix('proxy')}box{number}"
