"""Which addresses belong to one client, kept up to date while connections come and go.

A token joins the addresses that its connection uses on the same network: they are one client's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from mptcp_throttle.model import Address, Connection
from mptcp_throttled.policy.decide import Locator

Link = tuple[Address, Address]


def links(connection: Connection, locate: Locator) -> Iterator[Link]:
    """The pairs of different addresses that a connection shows to be one client's."""
    first: dict[str, Address] = {}
    for subflow in connection.subflows:
        address = subflow.ends.client.address
        network = locate(address)
        if network is not None and first.setdefault(network.name, address) != address:
            yield first[network.name], address


def address_order(address: Address) -> tuple[int, int]:
    """The sort key of addresses: IPv4 first."""
    return address.version, int(address)


class Clients:
    """Maps an address to the lowest address of its client; an address without links is a client of its own."""

    def __init__(self) -> None:
        self._links: dict[Address, Counter[Address]] = {}
        self._lowest: dict[Address, Address] = {}

    def __call__(self, address: Address) -> Address:
        """The lowest address of the client with this one."""
        return self._lowest.get(address, address)

    def change(self, gone: Iterable[Link], come: Iterable[Link]) -> list[Address]:
        """Remove and add links; returns the addresses whose client has changed.

        Links are counted: a link that was added twice must be removed twice.
        """
        gone, come = tuple(gone), tuple(come)
        for one, other in gone:
            self._count(one, other, -1)
        for one, other in come:
            self._count(one, other, 1)
        changed: list[Address] = []
        seen: set[Address] = set()
        for address in dict.fromkeys(address for link in (*gone, *come) for address in link):
            if address in seen:
                continue
            group = self._group(address)
            seen |= group
            lowest = min(group, key=address_order)
            for member in group:
                if self(member) != lowest:
                    self._lowest[member] = lowest
                    changed.append(member)
            if len(group) == 1:
                self._lowest.pop(address, None)
        return changed

    def _count(self, one: Address, other: Address, by: int) -> None:
        for here, there in ((one, other), (other, one)):
            neighbours = self._links.setdefault(here, Counter())
            neighbours[there] += by
            if not neighbours[there]:
                del neighbours[there]
            if not neighbours:
                del self._links[here]

    def _group(self, address: Address) -> set[Address]:
        group, ahead = {address}, [address]
        while ahead:
            new = self._links.get(ahead.pop(), Counter()).keys() - group
            group |= new
            ahead += new
        return group
