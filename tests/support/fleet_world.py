"""Several proxies with hosts of their own, whose clients have the same addresses, and one server of Valkey for them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy_world import attended, hosts, unique

from mptcp_lab.fleet_network import FleetNetwork, fleet_network
from mptcp_lab.wall_clock import ServicesWithClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from proxy_world import Hosts, ProxyWorld

    from mptcp_lab.topology import Topology
    from mptcp_lab.valkey_server import ValkeyServer
    from mptcp_throttle.model import AccessNetwork


@dataclass(frozen=True)
class Fleet:
    """Hosts of each proxy, and the server."""

    hosts: Sequence[Hosts]
    network: FleetNetwork

    @property
    def server(self) -> ValkeyServer:
        """The server of all proxies."""
        return self.network.server

    @contextmanager
    def serving(self, networks: Sequence[AccessNetwork], daemon: dict[str, object]) -> Iterator[list[ProxyWorld]]:
        """Our services on all proxies, running and connected; each daemon has a wall clock that can be set."""
        with ExitStack() as stack:
            worlds = []
            for number, on in enumerate(self.hosts, 1):
                services = ServicesWithClock(on.lab.proxy, networks, name=unique("throttle"), daemon=daemon)
                world = stack.enter_context(attended(on, services))
                services.configure_section("fleet", **self.network.settings(f"proxy-{number}"))
                services.start_sniffer()
                services.start_daemon()
                services.wait_ready()
                worlds.append(world)
            yield worlds


@contextmanager
def fleet_of(number: int, topology: Topology, directory: Path) -> Iterator[Fleet]:
    """A fleet of `number` proxies, and a server that runs."""
    with ExitStack() as stack:
        built = [stack.enter_context(hosts(topology)) for _ in range(number)]
        network = stack.enter_context(fleet_network([on.lab.proxy for on in built], directory))
        yield Fleet(built, network)
