"""What is written into the map of access networks when they change."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from examples import ETHERNET, WIFI

from mptcp_throttle.linux.libbpf import BpfMap
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.networks_map import NetworksMap, pack_networks


class Map(BpfMap):
    """A map in memory; `writes` are the numbers of elements that were written and deleted."""

    def __init__(self) -> None:
        self.elements: dict[bytes, bytes] = {}
        self.writes: list[tuple[int, int]] = []

    def update(self, elements: Mapping[bytes, bytes]) -> None:
        self.elements.update(elements)
        self.writes.append((len(elements), 0))

    def delete_all(self, keys: Collection[bytes]) -> None:
        for key in keys:
            del self.elements[key]
        self.writes[-1] = (self.writes[-1][0], len(keys))


def test_only_what_differs_is_written() -> None:
    map_ = Map()
    networks = NetworksMap(map_)
    both = (ETHERNET, WIFI)
    networks.set(both)
    networks.set(both)
    networks.set((ETHERNET.with_rates({RateKind.CAP: Rate.parse("2mbit")}),))
    # Two subnets of each network, and the one that all other IPv4 addresses are in.
    assert map_.writes == [(5, 0), (2, 2)]
    assert map_.elements == pack_networks((ETHERNET.with_rates({RateKind.CAP: Rate.parse("2mbit")}),))
