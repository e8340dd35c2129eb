"""What a network with switches has beside its hosts and links: its fabric, and commands. Nothing here runs anything.

The switches reach their controller over a network of their own. All hosts are on one link layer. Each has a route and
neighbour entries for all other hosts: none asks for an address, and the controller chooses every path.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mptcp_lab.scenario.plan import Addresses, Command, make_plan, shape
from mptcp_lab.scenario.scenario_schema import Node
from mptcp_lab.sdn.fabric import End, Fabric

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.port import Port
    from mptcp_lab.scenario.plan import Plan
    from mptcp_lab.scenario.scenario_schema import Network

CONTROLLER: Final = "controller"
"""The controller's host; scenarios have shorter names for their hosts."""

CONTROLLER_ADDRESS: Final = "192.0.2.1"

_MANAGEMENT: Final = "management"
_ALL_HOSTS: Final = "10.0.0.0/8"


def whole_plan(network: Network) -> Plan:
    """All that is to be done before any program runs."""
    plan = make_plan(network)
    if not network.switches:
        return plan
    commands = (*plan.commands, *_management(network), *_neighbours(network))
    return replace(plan, hosts=(*plan.hosts, CONTROLLER), commands=commands)


def fabric_of(network: Network) -> Fabric:
    """The switches as their controller must know them."""
    links: dict[str, tuple[End, End]] = {}
    hosts: dict[str, End] = {}
    for name, link in network.links.items():
        near, far = (End(port.host, port_number(network, port)) for port in link.ends)
        at_switch = [network.hosts[port.host].node is Node.OVS for port in link.ends]
        if all(at_switch):
            links[name] = (near, far)
        elif any(at_switch):
            port, end = (link.ends[1], near) if at_switch[0] else (link.ends[0], far)
            hosts |= dict.fromkeys(Addresses(network).all_of(port, 4), end)
    return Fabric(tuple(network.switches), links, hosts)


def port_number(network: Network, port: Port) -> int:
    """The OpenFlow number of a port of a switch."""
    return [own for own, _ in network.ports(port.host)].index(port) + 1


def switch_shapes(network: Network) -> Iterator[Command]:
    """The qdiscs of the switches' ports, to be made when the ports belong to them."""
    for name, link in network.links.items():
        yield from (command for command in shape(network, name, link) if command.host in network.switches)


def _management(network: Network) -> Iterator[Command]:
    yield Command(CONTROLLER, "ip", "link set lo up")
    yield Command(CONTROLLER, "ip", f"link add {_MANAGEMENT} type bridge stp_state 0")
    yield Command(CONTROLLER, "ip", f"link set {_MANAGEMENT} up")
    yield Command(CONTROLLER, "ip", f"address add {CONTROLLER_ADDRESS}/24 dev {_MANAGEMENT}")
    for number, switch in enumerate(network.switches, 2):
        yield Command(CONTROLLER, "ip", f"link add to-{switch} type veth peer name {_MANAGEMENT} netns @{switch}")
        yield Command(CONTROLLER, "ip", f"link set to-{switch} master {_MANAGEMENT} up")
        yield Command(switch, "ip", f"address add 192.0.2.{number}/24 dev {_MANAGEMENT}")
        yield Command(switch, "ip", f"link set {_MANAGEMENT} up")


def _neighbours(network: Network) -> Iterator[Command]:
    hosts = [host for host in network.hosts if host not in network.switches]
    ports = [next(network.ports(host))[0] for host in hosts]
    addresses = Addresses(network)
    for port in ports:
        device = f"dev {port.interface}"
        yield Command(port.host, "ip", f"link set {port.interface} address {_hardware_address(network, port)}")
        yield Command(port.host, "ip", f"route replace {_ALL_HOSTS} {device} src {addresses.of(port, 4)}")
        for neighbour in ports:
            entries = addresses.all_of(neighbour, 4) if neighbour != port else []
            hardware = _hardware_address(network, neighbour)
            for address in entries:
                yield Command(port.host, "ip", f"neighbour replace {address} lladdr {hardware} {device} nud permanent")


def _hardware_address(network: Network, port: Port) -> str:
    """Its second bit says that we made it up (IEEE 802)."""
    link = network.link_of(port)
    number, end = list(network.links).index(link) + 1, network.links[link].ends.index(port) + 1
    return f"02:00:00:00:{number:02x}:{end:02x}"
