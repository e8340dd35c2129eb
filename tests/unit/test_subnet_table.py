"""Which subnet an address is in: the longest prefix, in the daemon and in the map of the kernel program alike."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import product
from struct import pack, unpack

import pytest
from examples import ETHERNET, WIFI, connection, subflow
from hypothesis import given
from hypothesis import strategies as st
from policy_oracle import decide_all

from mptcp_throttle.linux import c_layout
from mptcp_throttle.model import AccessNetwork, Address, ClientPrefix, Network, RateKind
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import ONE_PROXY, Proxies, Proxy, networks_of
from mptcp_throttle.subnet_table import SubnetTable, network_table
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import program_layout
from mptcp_throttled.kernel.networks_map import _network, pack_networks
from mptcp_throttled.kernel.program_layout import mapped
from mptcp_throttled.policy.client_networks import ClientNetworks
from mptcp_throttled.vocabulary.kernel_plan import payload_pace
from mptcp_throttled.vocabulary.locator import Locator, Locators
from mptcp_throttled.vocabulary.terms import Term


def network(name: str, *subnets: str, preference: int = 1) -> AccessNetwork:
    return replace(WIFI, name=name, preference=preference, subnets=tuple(map(ip_network, subnets)))


REST = network("rest", "0.0.0.0/0", preference=2)
SIX = network("six", "::/0", preference=3)
DSL = network("dsl", "10.1.0.0/24", "fd00:1::/64", preference=4)
HOST = network("host", "10.1.0.7/32", preference=5)
NETWORKS = (REST, SIX, DSL, HOST)


TWO_PROXIES = Proxies({"work": Proxy((), Ports.of([8080])), "guests": Proxy((), Ports.of([8443]))})


def found_in_the_map(
    address: Address, networks: tuple[AccessNetwork, ...], proxies: Proxies = ONE_PROXY, proxy: int = 1
) -> bytes:
    """What the kernel's longest match finds (kernel/bpf/lpm_trie.c); empty if no key matches."""
    number = int.from_bytes(pack("=I16s", proxy, mapped(address)), "big")
    matching = {}
    for key, value in pack_networks(networks, proxies).items():
        bits, data = unpack("=I20s", key)
        if number >> (160 - bits) == int.from_bytes(data, "big") >> (160 - bits):
            matching[bits] = value
    return matching[max(matching)] if matching else b""


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.1.0.7", "host"),
        ("10.1.0.8", "dsl"),
        ("10.1.1.1", "rest"),
        ("192.0.2.1", "rest"),
        ("fd00:1::7", "dsl"),
        ("fd00:2::7", "six"),
    ],
)
def test_longest_prefix_gives_the_network_of_an_address(address: str, name: str) -> None:
    for networks in (NETWORKS, NETWORKS[::-1]):
        located = network_table(networks).find(ip_address(address))
        assert located is not None
        assert located.name == name
        assert found_in_the_map(ip_address(address), networks) == _network(1, located, networks, steered=False)


def test_catch_all_of_one_ip_version_has_no_address_of_the_other() -> None:
    of_neither = _network(1, network("no", "10.0.0.0/8"), (), steered=False)
    four, six = ip_address("192.0.2.1"), ip_address("2001:db8::1")
    assert network_table([REST]).find(six) is None
    assert found_in_the_map(six, (REST,)) == b""
    assert network_table([SIX]).find(four) is None
    assert found_in_the_map(four, (SIX,)) not in {_network(1, SIX, (SIX,), steered=False), of_neither, b""}


def test_slow_is_below_four_times_the_largest_lower_cap() -> None:
    def slow_rate(*networks: AccessNetwork) -> int:
        packed = _network(1, networks[0], networks, steered=True)
        return c_layout.unpack(program_layout.Network, packed).slow_rate

    cap = Rate.parse("1mbit")
    third = replace(ETHERNET, name="third", preference=3).with_rates({RateKind.CAP: Rate.parse("2mbit")})
    assert slow_rate(WIFI, ETHERNET.with_rates({RateKind.CAP: cap}), third) == 8 * cap.bytes_per_second
    assert slow_rate(ETHERNET, WIFI) == 0
    assert slow_rate(WIFI, ETHERNET.with_rates({RateKind.CAP: None})) == 0


def test_cap_of_a_client_makes_no_path_of_others_slow() -> None:
    client = replace(ETHERNET, subnets=(ip_network("10.1.0.2/32"),)).with_rates({RateKind.CAP: Rate.parse("100mbit")})
    of_wifi = WIFI.subnets[0].network_address
    assert found_in_the_map(of_wifi, (WIFI, ETHERNET, client)) == found_in_the_map(of_wifi, (WIFI, ETHERNET))


def test_catch_all_caps_beside_a_preferred_network_inside_it() -> None:
    rest = replace(ETHERNET, name="rest", subnets=REST.subnets)
    wifi = replace(WIFI, subnets=DSL.subnets)
    (inside, outside) = decide_all([connection(1, subflow("10.1.0.2"), subflow("198.51.100.2"))], (rest, wifi))
    assert (inside.network, inside.downlink.share) == ("wifi", None)
    assert (outside.network, outside.downlink.reason) == ("rest", "wifi is live")
    assert outside.downlink.share is not None


def subnets_of(width: int, make: type[IPv4Network] | type[IPv6Network]) -> st.SearchStrategy[Network]:
    # Few different bits, so that subnets contain each other.
    numbers = st.builds(lambda high, low: high << (width - 4) | low, st.integers(0, 15), st.integers(0, 3))
    return st.builds(lambda number, bits: make((number, bits), strict=False), numbers, st.integers(0, width))


SUBNETS = st.one_of(subnets_of(32, IPv4Network), subnets_of(128, IPv6Network))


@given(st.lists(SUBNETS, unique=True, max_size=12), SUBNETS)
def test_table_finds_what_comparing_all_subnets_finds(subnets: list[Network], around: Network) -> None:
    address = around.network_address
    containing = [subnet for subnet in subnets if subnet.version == address.version and address in subnet]
    longest = max(containing, key=lambda subnet: subnet.prefixlen, default=None)
    assert SubnetTable((subnet, subnet) for subnet in subnets).find(address) == longest


OWNERS = st.sampled_from([None, "work", "guests"])


@given(st.lists(st.tuples(SUBNETS, OWNERS), unique=True, max_size=12), SUBNETS)
def test_map_has_the_networks_of_each_proxy_apart(subnets: list[tuple[Network, str | None]], around: Network) -> None:
    taken: set[tuple[Network, str | None]] = set()
    networks = []
    for number, (subnet, owner) in enumerate(subnets):
        places = {(subnet, proxy) for proxy in TWO_PROXIES.by_name if owner in {None, proxy}}
        if not places & taken:
            taken |= places
            networks.append(replace(ETHERNET, name=str(number), subnets=(subnet,), preference=number + 1, proxy=owner))
    address, locators = around.network_address, Locators(networks, TWO_PROXIES)
    for number, (proxy, port) in enumerate({"work": 8080, "guests": 8443}.items(), 1):
        located = locators.of(port)(address)
        found = found_in_the_map(address, tuple(networks), TWO_PROXIES, number)
        preference = c_layout.unpack(program_layout.Network, found).preference if found else 2**32 - 1
        assert preference == (2**32 - 1 if located is None else located.preference)
        of_proxy = [s for s, name in taken if (name == proxy and s.version == address.version and address in s)]
        assert (located is None) == (not of_proxy)
        if located is not None:
            assert located.subnets[0] == max(of_proxy, key=lambda subnet: subnet.prefixlen)


def test_port_of_no_proxy_is_in_no_network() -> None:
    locators = Locators(NETWORKS, TWO_PROXIES)
    address = ip_address("10.1.0.7")
    assert locators.of(8080)(address) == locators.of(8443)(address) == HOST
    assert locators.of(80)(address) is None
    assert Locators(NETWORKS, ONE_PROXY).of(80)(address) == HOST


SEVERAL = st.lists(SUBNETS, unique=True, max_size=6)
PREFIXES = st.builds(ClientPrefix, st.sampled_from([2, 4, 30, 31, 32]), st.sampled_from([2, 4, 126, 127, 128]))


@given(SEVERAL, SEVERAL, SUBNETS, SEVERAL, PREFIXES, OWNERS, OWNERS)
def test_map_has_the_pace_of_a_client_for_its_addresses_alone(
    subnets: list[Network],
    of_wifi: list[Network],
    around: Network,
    looked_up: list[Network],
    prefix: ClientPrefix,
    owner: str | None,
    owner_of_wifi: str | None,
) -> None:
    addresses = [subnet.network_address for subnet in (around, *subnets, *of_wifi, *looked_up)]
    lte = replace(ETHERNET, name="lte", subnets=tuple(subnets), client_prefix=prefix, proxy=owner)
    networks = lte, replace(WIFI, subnets=tuple(set(of_wifi) - {*subnets}), proxy=owner_of_wifi)
    client = prefix.first(around.network_address)
    cap, own = lte.rates[RateKind.CAP], Rate.parse("2mbit")
    terms = {("lte", client): {RateKind.CAP: Term(own), RateKind.LIMIT: Term(None)}}
    packed = (*networks, *ClientNetworks(TWO_PROXIES).of(networks, terms))
    for address, (number, proxy) in product(addresses, enumerate(TWO_PROXIES.by_name, 1)):
        locate = Locator(networks_of(proxy, networks))
        network = locate(address)
        rate = None
        if network is not None and network.name == "lte":
            rate = own if locate.client(address) == client else cap
        found = found_in_the_map(address, packed, TWO_PROXIES, number)
        pace = c_layout.unpack(program_layout.Network, found).pace if found else 0
        assert pace == (0 if rate is None else payload_pace(rate, 1))
