"""The proxies of this host: where clients reach them, and which of them a connection belongs to.

A connection belongs to the proxy whose port has accepted it, and so do all its subflows: they may come to other ports
(ADD_ADDR with a port), and those that the proxy opens have a port of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from mptcp_throttle.model import AccessNetwork
from mptcp_throttle.network_namespace import Container
from mptcp_throttle.ports import ALL_PORTS, Ports

MAX_PROXIES: Final = 16
MAX_INTERFACES: Final = 16
"""Of all proxies."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where clients reach a proxy: at least one interface, and TCP ports.

    `namespace`: the network namespace of both; None: that of the services, whichever it is.
    """

    interfaces: tuple[str, ...]
    ports: Ports
    namespace: Container | Path | None = None


@dataclass(frozen=True, slots=True)
class Proxies:
    """All proxies by name, in one network namespace; none has a port of another. A single one may have the name None.

    Kernel programs know them by their numbers: 1, 2 and so on, in this order.
    """

    by_name: Mapping[str | None, Proxy]

    @classmethod
    def only(cls, ports: Ports, interfaces: tuple[str, ...] = ()) -> Self:
        """A single proxy without a name."""
        return cls({None: Proxy(interfaces, ports)})

    @property
    def are_named(self) -> bool:
        """Whether they have names, so that a network may be that of one of them."""
        return None not in self.by_name

    @property
    def together(self) -> Proxy:
        """Where clients reach any of them."""
        interfaces = dict.fromkeys(name for proxy in self.by_name.values() for name in proxy.interfaces)
        ranges = tuple(each for proxy in self.by_name.values() for each in proxy.ports.ranges)
        return Proxy(tuple(interfaces), Ports(ranges), next(iter(self.by_name.values())).namespace)

    def numbered(self) -> Iterator[tuple[int, tuple[str | None, Proxy]]]:
        """Each with its number and name."""
        return enumerate(self.by_name.items(), 1)

    def number_of(self, port: int) -> int:
        """The number of the proxy that has a port; 0 if none has it. A single one has all."""
        if not self.are_named:
            return 1
        return next((number for number, (_, proxy) in self.numbered() if port in proxy.ports), 0)

    def numbers_of(self, name: str | None) -> list[int]:
        """The numbers of those that have a network which names this proxy; None: it is shared by all."""
        return [number for number, (each, _) in self.numbered() if name in {None, each}]


ONE_PROXY: Final = Proxies.only(ALL_PORTS)
"""A single one, without a name."""


def networks_of(proxy: str | None, networks: Iterable[AccessNetwork]) -> list[AccessNetwork]:
    """The networks of the proxy with this name: its own, and those of all proxies."""
    return [network for network in networks if network.proxy in {None, proxy}]
