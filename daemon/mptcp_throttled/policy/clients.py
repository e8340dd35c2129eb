"""Which addresses belong to one client, kept up to date while connections come and go.

A client has a prefix (`AccessNetwork.client_prefix`), or the prefixes of its device. An address stands here for the
first address of such a prefix. The addresses that one connection uses on the same network belong to one client: they
are linked. Links can join too many addresses: those of different clients behind a carrier's NAT, or of a client with a
large IPv6 prefix. Then each of these addresses is a client of its own. So a change of a link concerns a bounded number
of addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mptcp_throttle.model import Address, Connection
from mptcp_throttled.vocabulary.locator import Locator

Link = tuple[Address, Address]

MAX_ADDRESSES: Final = 64
"""The most addresses of a client in a network: many more than privacy extensions give a host (RFC 8981)."""


def links(connection: Connection, locate: Locator) -> Iterator[tuple[str, Link]]:
    """The pairs of different addresses that a connection shows to be one client's, each with the network's name."""
    first: dict[str, Address] = {}
    for subflow in connection.subflows:
        network = locate(subflow.ends.client.address)
        address = locate.client(subflow.ends.client.address)
        if network is not None and first.setdefault(network.name, address) != address:
            yield network.name, (first[network.name], address)


def address_order(address: Address) -> tuple[int, int]:
    """The sort key of addresses: IPv4 first."""
    return address.version, int(address)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    members: frozenset[Address]
    lowest: Address


class Clients:
    """Maps an address of one network to the lowest address of its client; without links it is a client of its own."""

    def __init__(self) -> None:
        self._links: dict[Address, Counter[Address]] = {}
        self._groups: dict[Address, _Group] = {}

    def __call__(self, address: Address) -> Address:
        """The lowest address of the client with this address."""
        group = self._groups.get(address)
        return address if group is None else group.lowest

    def members(self, address: Address) -> Collection[Address]:
        """All addresses of the client with this one."""
        group = self._groups.get(address)
        return (address,) if group is None else group.members

    def change(self, gone: Iterable[Link], come: Iterable[Link]) -> list[Address]:
        """Remove and add links; returns the addresses whose client has changed.

        Links are counted: a link that was added twice must be removed twice.
        """
        gone, come = tuple(gone), tuple(come)
        for link in gone:
            self._count(link, -1)
        for link in come:
            self._count(link, 1)
        before: dict[Address, Address] = {}
        done: set[Address] = set()
        too_many: set[Address] = set()
        # Each group that is split or joined contains an address of a changed link.
        for address in dict.fromkeys(address for link in (*gone, *come) for address in link):
            if address in done:
                continue
            previous = self._groups.get(address)
            joined = self._joined(address, too_many)
            for member in joined or (() if previous is None else previous.members):
                before.setdefault(member, self(member))
            if joined is None:
                self._separate(previous)
            else:
                self._group(joined)
                done |= joined
        return [address for address, lowest in before.items() if self(address) != lowest]

    def _count(self, link: Link, by: int) -> None:
        for here, there in (link, link[::-1]):
            neighbours = self._links.setdefault(here, Counter())
            neighbours[there] += by
            if not neighbours[there]:
                del neighbours[there]
            if not neighbours:
                del self._links[here]

    def _joined(self, address: Address, too_many: set[Address]) -> set[Address] | None:
        """All addresses that links join to this one; None if there are too many: those found go to `too_many`."""
        joined, ahead = {address}, [address]
        while ahead:
            for neighbour in self._links.get(ahead.pop(), ()):
                if neighbour in joined:
                    continue
                joined.add(neighbour)
                ahead.append(neighbour)
                if neighbour in too_many or len(joined) > MAX_ADDRESSES:
                    too_many |= joined
                    return None
        return joined

    def _group(self, members: set[Address]) -> None:
        group = _Group(frozenset(members), min(members, key=address_order))
        for member in members:
            if len(members) > 1:
                self._groups[member] = group
            else:
                self._groups.pop(member, None)

    def _separate(self, group: _Group | None) -> None:
        for member in () if group is None else group.members:
            # Some members may be in another group already.
            if self._groups.get(member) is group:
                del self._groups[member]
