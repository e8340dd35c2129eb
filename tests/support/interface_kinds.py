"""Interfaces of several kinds at the proxy; through each passes what one client sends and receives over Ethernet.

`{link}` is the proxy's end of a link to the router, whose other end is `{other}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyroute2 import WireGuard

from mptcp_lab.namespaces import in_namespace
from mptcp_lab.topology import ETHERNET

if TYPE_CHECKING:
    from proxy_world import Hosts

    from mptcp_lab.host import Host

_WIREGUARD_PORT: Final = 51820
# Pairs of a private and a public key, of the proxy and of the router.
_KEYS: Final = (
    ("uJcnuS/p797gLIAALj7pHi5Hn7fyciG7cr/+C5461Wk=", "EBTGq+n+91GfvF+Sgtv8y+I12ckcAAY04PpBHNWhgyA="),
    ("YBbBiLlif6VX+gYmVG/7td+8s8RRwVAnkeGaUfbXnFU=", "fzzbVzWauadjL/rkAvsB9xM86pkzh4cYBmqMFXvVVzM="),
)


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
    "bond": Kind(
        "bond0",
        (
            "link add bond0 type bond mode active-backup miimon 100",
            "link set {link} down",
            "link set {link} master bond0",
        ),
    ),
    "vlan": Kind(
        "{link}.5",
        ("link add link {link} name {link}.5 type vlan id 5",),
        ("link add link {other} name {other}.5 type vlan id 5", "link set {other} up"),
        peer="{other}.5",
    ),
    "vrf": Kind(
        at_proxy=("link add vrf0 type vrf table 99", "link set vrf0 up", "link set {link} master vrf0"), vrf="99"
    ),
    "wireguard": Kind(
        "wg0",
        ("address add 10.8.0.1/24 dev {link}", "link set {link} up", "link add wg0 type wireguard"),
        ("address add 10.8.0.2/24 dev {other}", "link set {other} up", "link add wg1 type wireguard"),
        peer="wg1",
    ),
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
    if kind == "wireguard":
        _set_peer(proxy, name, 1)
        _set_peer(router, peer, 2)
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


def _set_peer(host: Host, name: str, number: int) -> None:
    peer = 3 - number
    private, public = _KEYS[number - 1][0], _KEYS[peer - 1][1]
    endpoint = {"endpoint_addr": f"10.8.0.{peer}", "endpoint_port": _WIREGUARD_PORT}
    with in_namespace(host.namespace), WireGuard() as wireguard:
        wireguard.set(
            name,
            listen_port=_WIREGUARD_PORT,
            private_key=private,
            peer={"public_key": public, "allowed_ips": ["0.0.0.0/0"], **endpoint},
        )
