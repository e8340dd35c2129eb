"""Interfaces of several kinds at the proxy: through each, one client and the proxy send each other what is Ethernet's.

`{link}` is the proxy's end of a link to the router, whose other end is `{other}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab.topology import ETHERNET

if TYPE_CHECKING:
    from proxy_world import Hosts


@dataclass(frozen=True)
class Kind:
    """The interface with this name, and the commands of ip(8) and tc(8) that make it.

    `queues` has the link. `peer` is the router's interface, which `at_router` makes. `vrf`: with which table.
    """

    name: str = "{link}"
    at_proxy: tuple[str, ...] = ()
    at_router: tuple[str, ...] = ()
    peer: str = "{other}"
    qdisc: str = ""
    queues: int = 1
    vrf: str = ""


KINDS: Final = {
    "bridge": Kind("br0", ("link add br0 type bridge", "link set {link} master br0")),
    "macvlan": Kind("mac0", ("link add mac0 link {link} type macvlan mode bridge",)),
    "mq": Kind(qdisc="handle 8: mq", queues=4),
}


def add(hosts: Hosts, kind: str, number: int) -> str:
    """Make the interface for the client that is called as its kind; returns its name.

    What belongs to it has this number, from 20 to 99.
    """
    proxy, router, client = hosts.lab.proxy, hosts.lab.router, hosts.lab.clients[kind]
    described, ends = KINDS[kind], {"link": f"under{number}", "other": f"proxy{number}"}
    name, peer = described.name.format(**ends), described.peer.format(**ends)
    link = f"link add {ends['link']} numtxqueues {described.queues} type veth peer name {ends['other']}"
    proxy.ip([f"{link} netns {router.namespace}", *(line.format(**ends) for line in described.at_proxy)])
    network, table = f"10.9.{number}", described.vrf or "main"
    theirs, ours = client.address(ETHERNET, 4), hosts.lab.proxy_address(4)
    router.ip([line.format(**ends) for line in described.at_router])
    router.ip([f"address add {network}.1/24 dev {peer}", f"link set {peer} up"])
    proxy.ip(
        [
            f"link set {ends['link']} up",
            f"address add {network}.2/24 dev {name}",
            f"link set {name} up",
            f"route add {theirs} via {network}.1 dev {name} table {table}",
            *([] if described.vrf else [f"rule add to {theirs} table main priority 10"]),
        ]
    )
    router.ip(
        [
            f"route add {ours} via {network}.2 dev {peer} table {number}",
            f"rule add from {theirs} to {ours} table {number}",
        ]
    )
    if described.qdisc:
        proxy.tc([f"qdisc replace dev {name} root {described.qdisc}"])
    return name
