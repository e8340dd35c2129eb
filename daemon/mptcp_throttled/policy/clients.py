"""Which addresses are one client's, kept up to date while connections come and go."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mptcp_throttled.policy.decide import address_order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_throttle.model import Address

    Link = tuple[Address, Address]


class Clients:
    """The least of its addresses stands for a client; an address that nothing links to another stands for itself."""

    def __init__(self) -> None:
        self._links: dict[Address, Counter[Address]] = {}
        self._stands_for: dict[Address, Address] = {}

    def __call__(self, address: Address) -> Address:
        """The address that stands for the client with this one."""
        return self._stands_for.get(address, address)

    def change(self, gone: Iterable[Link], come: Iterable[Link]) -> list[Address]:
        """Take links away and add others; the addresses for which another one stands now.

        Every link is counted: it takes as many to go as have come.
        """
        gone, come = tuple(gone), tuple(come)
        for one, other in gone:
            self._count(one, other, -1)
        for one, other in come:
            self._count(one, other, 1)
        changed: list[Address] = []
        seen: set[Address] = set()
        for address in dict.fromkeys(address for link in (*gone, *come) for address in link):
            if address not in seen:
                group = self._group(address)
                seen |= group
                least = min(group, key=address_order)
                for member in group:
                    if self(member) != least:
                        self._stands_for[member] = least
                        changed.append(member)
                if len(group) == 1:
                    self._stands_for.pop(address, None)
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
