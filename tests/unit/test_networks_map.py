"""What is written into the map of access networks when they change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from ipaddress import ip_network

from examples import ETHERNET, WIFI

from mptcp_throttle.linux.c_layout import unpack
from mptcp_throttle.linux.libbpf import BpfMap
from mptcp_throttle.model import Budget, Counting, Devices, Every, Health, NamedClient, Per, RateKind, Stage
from mptcp_throttle.proxies import ONE_PROXY
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import program_layout
from mptcp_throttled.kernel.networks_map import NetworksMap, by_name, pack_networks


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
    networks = NetworksMap(map_, ONE_PROXY)
    both = (ETHERNET, WIFI)
    networks.set(both)
    networks.set(both)
    networks.set((ETHERNET.with_rates({RateKind.CAP: Rate.parse("2mbit")}),))
    # Two subnets of each network, and the one that all other IPv4 addresses are in.
    assert map_.writes == [(5, 0), (2, 2)]
    assert map_.elements == pack_networks((ETHERNET.with_rates({RateKind.CAP: Rate.parse("2mbit")}),), ONE_PROXY)


def test_networks_are_written_again_when_steering_begins_or_ends() -> None:
    map_ = Map()
    networks = NetworksMap(map_, ONE_PROXY)
    both = (ETHERNET, WIFI)
    networks.set(both)
    paced = dict(map_.elements)
    networks.set(both, steered=True)
    networks.set(both, steered=True)
    assert map_.elements == pack_networks(both, ONE_PROXY, steered=True)
    networks.set(both)
    assert map_.elements == paced
    # All but the one that all other IPv4 addresses are in.
    assert map_.writes == [(5, 0), (4, 0), (4, 0)]


def test_steering_changes_nothing_else_of_a_network() -> None:
    of_paces, of_steering = pack_networks((ETHERNET,), ONE_PROXY), pack_networks((ETHERNET,), ONE_PROXY, steered=True)
    differing = [key for key in of_paces if of_paces[key] != of_steering[key]]
    assert len(differing) == 2
    for key in differing:
        before, after = (unpack(program_layout.Network, elements[key]) for elements in (of_paces, of_steering))
        assert (before.steered, after.steered) == (0, 1)
        assert (before.preference, before.pace) == (after.preference, after.pace)


def test_rates_beyond_32_bits_are_the_largest_of_32_bits() -> None:
    fast = Rate.parse("100gbit")
    network = replace(ETHERNET.with_rates({RateKind.CAP: fast}), healthy=Health(rate=fast))
    values = [unpack(program_layout.Network, value) for value in pack_networks((network,), ONE_PROXY).values()]
    assert {(value.pace, value.min_rate) for value in values} == {(0, 0), (2**32 - 2, 2**32 - 1)}


def test_network_whose_devices_have_budgets_is_counted() -> None:
    stages = (Stage(1.0, {RateKind.CAP: Rate.parse("64kbit")}),)
    budget = Budget(10**9, Per.CLIENT, Counting.BOTH, Every.DAY, 0, None, stages, networks=("ethernet",))
    phone = NamedClient("phone", (ip_network("10.1.0.2/32"),), budgets=(budget,))
    network = replace(ETHERNET, devices=Devices((phone,)))
    values = [unpack(program_layout.Network, value) for value in pack_networks((network,), ONE_PROXY).values()]
    of_network = [value for value in values if value.preference == network.preference]
    assert {(value.has_budgets, value.may_be_narrowed) for value in of_network} == {(1, 1)}


def test_client_with_rates_of_its_own_is_not_taken_for_its_network() -> None:
    client = replace(ETHERNET, proxy="guests")
    assert by_name((ETHERNET, WIFI, client)) == {"ethernet": ETHERNET, "wifi": WIFI}
