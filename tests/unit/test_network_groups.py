"""Which access networks `setup networks` proposes for what was seen, and what it does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import pytest
from examples import connection, subflow
from hypothesis import given, settings
from hypothesis import strategies as st

from mptcp_throttle.cli.setup_commands import require_seen
from mptcp_throttle.config.load import load_config
from mptcp_throttle.errors import EX_COMMAND_LINE, UserError
from mptcp_throttle.model import Per, RateKind, Token
from mptcp_throttle.rpc import RpcError
from mptcp_throttle.rpc.wire import encode_connection
from mptcp_throttle.setup import network_evidence
from mptcp_throttle.setup.kept_files import MAIN_FILE, shipped
from mptcp_throttle.setup.network_evidence import Evidence, Sighting, client_address, follow
from mptcp_throttle.setup.network_files import network_file, summary
from mptcp_throttle.setup.network_groups import Grouping, block_of, group
from mptcp_throttle.units import Rate

CAP: Final = Rate.parse("2mbit")


def seen(*addresses: str, backups: Iterable[str] = ()) -> Sighting:
    """A connection with these addresses."""
    return Sighting(*(frozenset(client_address(ip_address(text)) for text in texts) for texts in (addresses, backups)))


def networks(grouping: Grouping) -> list[set[str]]:
    return [{str(counted.subnet) for counted in network.subnets} for network in grouping.networks]


def test_addresses_of_one_connection_are_in_two_networks() -> None:
    grouping = group({seen("10.1.0.2", "10.2.0.2"): 3})
    assert networks(grouping) == [{"10.1.0.0/24"}, {"10.2.0.0/24"}]
    assert [network.preference for network in grouping.networks] == [1, 1]
    assert all(network.why_preference.startswith("it is not known which") for network in grouping.networks)
    assert (grouping.unassigned, grouping.left_out) == ((), 0)


def test_backup_tells_the_expensive_network() -> None:
    grouping = group({seen("10.1.0.2", "10.2.0.2", backups=["10.1.0.2"]): 3, seen("10.2.0.3"): 9})
    assert networks(grouping) == [{"10.2.0.0/24"}, {"10.1.0.0/24"}]
    assert [network.preference for network in grouping.networks] == [1, 2]
    assert [counted.connections for network in grouping.networks for counted in network.subnets] == [12, 3]


def test_operator_tells_the_expensive_network() -> None:
    sightings = {seen("10.1.0.2", "10.2.0.2", backups=["10.1.0.2"]): 1}
    grouping = group(sightings, [ip_address("10.2.0.9")])
    assert networks(grouping) == [{"10.1.0.0/24"}, {"10.2.0.0/24"}]
    assert grouping.networks[1].why_preference == "this network is expensive (--expensive)"
    assert group(sightings, [ip_address("fd00::1")]) == group(sightings)


def test_expensive_address_in_no_network_is_refused() -> None:
    grouping = group({seen("10.1.0.2", "10.2.0.2"): 1})
    require_seen([ip_address("10.1.0.9"), ip_address("10.2.0.2")], grouping)
    with pytest.raises(UserError) as caught:
        require_seen([ip_address("10.1.0.9"), ip_address("10.99.0.1")], grouping)
    assert (caught.value.status, str(caught.value)) == (
        EX_COMMAND_LINE,
        "setup networks: --expensive 10.99.0.1: is in no network that was seen; allowed: an address in 10.1.0.0/24,"
        " 10.2.0.0/24",
    )


def test_backups_alone_are_not_expensive() -> None:
    grouping = group({seen("10.1.0.2", "10.2.0.2", backups=["10.1.0.2", "10.2.0.2"]): 1})
    assert [network.preference for network in grouping.networks] == [1, 1]


def test_clients_behind_one_address_of_a_carrier_share_rates_per_subflow() -> None:
    homes = [f"203.{number}.1.7" for number in range(40)]
    grouping = group({seen("100.64.0.1", home): 2 for home in homes})
    carrier, homes_network = sorted(grouping.networks, key=lambda network: len(network.subnets))
    assert [str(counted.subnet) for counted in carrier.subnets] == ["100.64.0.0/24"]
    assert (carrier.subnets[0].addresses, carrier.subnets[0].connections) == (1, 80)
    assert carrier.per is Per.SUBFLOW
    beside = "40 other subnets, as with address translation"
    assert carrier.why_per == f"Each subflow, since 100.64.0.1 was used beside addresses in {beside}"
    assert (len(homes_network.subnets), homes_network.per) == (40, Per.CLIENT)


def test_blocks_of_one_network_become_one_prefix() -> None:
    pairs = {seen(f"100.64.{number}.1", f"100.65.{number}.1"): 1 for number in range(1, 200)}
    assert networks(group(pairs)) == [{"100.64.0.0/16"}, {"100.65.0.0/16"}]


def test_prefix_never_contains_two_addresses_of_one_connection() -> None:
    # The middle one is beside its neighbours, but in no connection with them.
    pairs = {seen("10.0.1.1", "10.0.3.1"): 1, seen("10.0.2.1", "192.0.2.1"): 1}
    grouping = group(pairs)
    assert len(grouping.networks) == 2
    assert not any({"10.0.1.0/24", "10.0.3.0/24"} <= subnets for subnets in networks(grouping))


def test_client_that_moves_within_a_network_does_not_divide_it() -> None:
    pairs = {seen("10.1.0.2", "10.2.0.2"): 100, seen("10.1.1.2", "10.2.1.2"): 100}
    moved = {**pairs, seen("10.1.0.2", "10.1.1.2"): 1}
    assert networks(group(moved)) == networks(group(pairs)) == [{"10.1.0.0/23"}, {"10.2.0.0/23"}]


def test_ipv6_counts_by_prefixes_of_64_bits() -> None:
    temporary = ["2001:db8:1:1::a", "2001:db8:1:1::b", "2001:db8:1:1::c"]
    grouping = group({seen(*temporary, "2001:db8:ff:1::1"): 1, seen(temporary[0], "2001:db8:ff:1::2"): 1})
    assert networks(grouping) == [{"2001:db8:1:1::/64"}, {"2001:db8:ff:1::/64"}]
    assert [counted.addresses for network in grouping.networks for counted in network.subnets] == [1, 1]


def test_one_network_only_is_proposed_with_nothing_to_cap() -> None:
    (network,) = group({seen("10.1.0.2"): 1, seen("10.1.0.3", "fd00:1::2"): 2}).networks
    assert {str(counted.subnet) for counted in network.subnets} == {"10.1.0.0/24", "fd00:1::/64"}
    assert network.preference == 1
    assert network.why_preference.startswith("the only access network that has been seen")


def test_client_with_ipv4_alone_on_one_path_and_ipv6_on_the_other() -> None:
    grouping = group({seen("10.1.0.2", "fd00:2::1", backups=["fd00:2::1"]): 1})
    assert networks(grouping) == [{"10.1.0.0/24"}, {"fd00:2::/64"}]
    assert [network.preference for network in grouping.networks] == [1, 2]


def test_ip_versions_of_a_network_are_paired_by_clients_without_another() -> None:
    both = seen("10.1.0.2", "10.2.0.2", "fd00:1::", "fd00:2::")
    apart = group({both: 9})
    assert len(apart.networks) == 4
    grouping = group({both: 9, seen("10.1.0.3", "fd00:1::"): 1, seen("10.2.0.3", "fd00:2::"): 1})
    assert sorted(map(sorted, networks(grouping))) == [["10.1.0.0/24", "fd00:1::/64"], ["10.2.0.0/24", "fd00:2::/64"]]


def test_ip_versions_of_a_network_are_paired_by_what_is_a_backup() -> None:
    grouping = group({seen("10.1.0.2", "10.2.0.2", "fd00:1::", "fd00:2::", backups=["10.1.0.2", "fd00:1::"]): 9})
    assert networks(grouping) == [{"10.2.0.0/24", "fd00:2::/64"}, {"10.1.0.0/24", "fd00:1::/64"}]


def test_address_that_no_connection_shows_beside_another_is_in_no_network() -> None:
    grouping = group({seen("10.1.0.2", "10.2.0.2"): 3, seen("192.0.2.7"): 1})
    assert [str(counted.subnet) for counted in grouping.unassigned] == ["192.0.2.0/24"]
    _, line = summary(grouping, 0)
    assert (
        line
        == "in no network, since no connection shows to which they belong: 192.0.2.0/24 (1 address in 1 connection)"
    )


def test_three_networks_of_a_client_are_three() -> None:
    assert len(group({seen("10.1.0.2", "10.2.0.2", "10.3.0.2"): 1}).networks) == 3


def test_nothing_seen_proposes_nothing() -> None:
    assert group({}) == Grouping((), (), 0)


def test_hostile_numbers_of_addresses_are_bounded() -> None:
    many = {
        Sighting(
            frozenset(IPv4Address(1 + number * 2654435761 % 2**32 - n) for n in (0, 2**20, 2**28) if number * 7 > n)
        ): 1
        for number in range(2**28 // 2**15)
    }
    honest = seen("10.1.0.2", "10.2.0.2", backups=["10.1.0.2"])
    grouping = group({**many, honest: 50})
    assert grouping.left_out > 0
    assert len(grouping.networks) <= 16
    assert all(len(network.subnets) <= 1000 for network in grouping.networks)
    address = ip_address("10.1.0.2")
    located = [network for network in grouping.networks if any(address in seen.subnet for seen in network.subnets)]
    assert [network.preference for network in located] == [2]


IPV4: Final = st.integers(0, 5).flatmap(lambda net: st.integers(0, 3).map(lambda n: IPv4Address(f"10.{net}.{n}.1")))
IPV6: Final = st.integers(0, 5).map(lambda net: IPv6Address(f"fd00:{net}::"))
SETS: Final = st.frozensets(st.one_of(IPV4, IPV6), min_size=1, max_size=4)
SIGHTINGS: Final = SETS.flatmap(
    lambda addresses: st.builds(
        Sighting, st.just(addresses), st.frozensets(st.sampled_from(sorted(addresses, key=str)))
    )
)


@given(st.dictionaries(SIGHTINGS, st.integers(1, 3), max_size=12))
def test_every_address_is_in_at_most_one_subnet_and_none_is_lost(sightings: dict[Sighting, int]) -> None:
    grouping = group(sightings)
    subnets = [counted.subnet for network in grouping.networks for counted in network.subnets]
    subnets += [counted.subnet for counted in grouping.unassigned]
    assert len(subnets) == len(set(subnets))
    for address in {address for sighting in sightings for address in sighting.addresses}:
        assert any(address in subnet for subnet in subnets)


@given(st.dictionaries(SIGHTINGS, st.just(1), max_size=12))
def test_two_blocks_of_one_connection_are_never_in_one_prefix(sightings: dict[Sighting, int]) -> None:
    grouping = group(sightings)
    subnets = [counted.subnet for network in grouping.networks for counted in network.subnets]
    for sighting in sightings:
        for subnet in subnets:
            assert len({block_of(address) for address in sighting.addresses if address in subnet}) <= 1


@settings(max_examples=30)
@given(st.dictionaries(SIGHTINGS, st.integers(1, 3), min_size=1, max_size=12))
def test_proposed_files_are_valid_together(
    tmp_path_factory: pytest.TempPathFactory, sightings: dict[Sighting, int]
) -> None:
    directory = tmp_path_factory.mktemp("config")
    (directory / "networks.d").mkdir()
    (directory / MAIN_FILE).write_text(shipped(MAIN_FILE))
    grouping = group(sightings)
    for network in grouping.networks:
        (directory / "networks.d" / f"{network.name}.yaml").write_text(network_file(network, CAP))
    config = load_config(directory / MAIN_FILE)
    assert len(config.networks) == len(grouping.networks)
    assert {network.rates.get(RateKind.CAP) for network in config.networks} <= {None, CAP}


def test_proposed_file_has_the_evidence_beside_each_subnet() -> None:
    grouping = group(
        {seen("10.1.0.2", "10.2.0.2", backups=["10.1.0.2"]): 3, seen("10.1.0.3", "10.2.0.2", backups=["10.1.0.3"]): 1}
    )
    text = network_file(grouping.networks[1], CAP)
    assert '  - "10.1.0.0/24"  # 2 addresses in 4 connections\n' in text
    assert "\ncap: 2mbit\n" in text
    assert "\n# Preference (1 is the most preferred): clients use it as a backup, so it is expensive.\n" in text
    assert "\n# What shares one rate. Each client: no address seems to be shared by many.\n" in text


def test_networks_of_which_none_is_expensive_are_a_note() -> None:
    (note,) = summary(group({seen("10.1.0.2", "10.2.0.2"): 3}), 0)
    assert note.startswith("nothing is capped, since it is not known which network is expensive: name it with --exp")
    (note,) = summary(group({seen("10.1.0.2"): 3}), 0)
    assert note == "nothing is capped, since only one network has been seen"
    assert list(summary(group({seen("10.1.0.2", "10.2.0.2", backups=["10.1.0.2"]): 3}), 0)) == []


def test_changes_that_were_not_recorded_are_a_note() -> None:
    grouping = group({seen("10.1.0.2", "10.2.0.2", backups=["10.1.0.2"]): 3})
    assert [*summary(grouping, 3)] == ["not recorded, since there were too many connections: 3 changes"]


def test_evidence_joins_what_one_connection_has_had() -> None:
    evidence = Evidence()
    evidence.add(Token(1), connection(1, subflow("10.1.0.2")))
    evidence.add(Token(1), connection(1, subflow("10.1.0.2"), subflow("10.2.0.2", backup=True)))
    evidence.add(Token(1), connection(1, subflow("10.1.0.2")))
    expected = seen("10.1.0.2", "10.2.0.2", backups=["10.2.0.2"])
    assert evidence.sightings == Counter([expected])
    evidence.add(Token(1), None)
    evidence.add(Token(2), None)
    evidence.add(Token(1), connection(1, subflow("fd00:1::7")))
    assert evidence.sightings == Counter([expected, seen("fd00:1::")])


def test_evidence_of_any_number_of_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_evidence, "_MOST_CONNECTIONS", 10)
    monkeypatch.setattr(network_evidence, "_MOST_SIGHTINGS", 10)
    evidence = Evidence()
    for number in range(100):
        evidence.add(Token(number), connection(number, *(subflow(f"10.{number}.{n}.1", n + 1) for n in range(20))))
    assert (len(evidence.sightings), evidence.unrecorded) == (10, 90)
    assert all(len(sighting.addresses) == 8 for sighting in evidence.sightings)
    evidence.end_all()
    for number in range(100, 110):
        evidence.add(Token(number), connection(number, subflow(f"10.{number}.0.1")))
        evidence.add(Token(number), None)
    assert (len(evidence.sightings), evidence.unrecorded) == (10, 100)


WIRE: Final = encode_connection(connection(1, subflow("10.1.0.2")))


class Sniffer:
    """Answers one after another; a call beyond them moves the clock to the end."""

    def __init__(self, *answers: object) -> None:
        self.answers = [*answers]
        self.time = 0.0
        self.calls: list[str] = []

    def now(self) -> float:
        return self.time

    def call(self, method: str, *_: object) -> object:
        self.calls.append(method)
        if not self.answers:
            self.time = 1e6
            return {"changes": [], "revision": 0}
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def followed(sniffer: Sniffer) -> tuple[str | None, Counter[Sighting]]:
    evidence = Evidence()
    problem = follow(sniffer, 10.0, evidence, lambda: sniffer.calls.append("began"), now=sniffer.now)  # type: ignore[arg-type]
    return problem, evidence.sightings


SNAPSHOT: Final = {"epoch": "a", "revision": 1, "connections": [WIRE], "next": None}
CHANGE: Final = {"changes": [{"token": "00000002", "connection": {**WIRE, "token": "00000002"}}], "revision": 2}


def test_table_is_followed_from_all_its_parts_to_later_changes() -> None:
    first = {**SNAPSHOT, "connections": [], "next": 0}
    sniffer = Sniffer(first, SNAPSHOT, CHANGE, {"changes": [{"token": "00000001", "connection": None}], "revision": 3})
    assert followed(sniffer) == (None, Counter({seen("10.1.0.2"): 2}))
    assert sniffer.calls == ["snapshot", "snapshot", "began", "changes", "changes", "changes"]


def test_table_is_fetched_again_after_a_restart_of_the_sniffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_evidence, "_RETRY_SECONDS", 0.0)
    sniffer = Sniffer(SNAPSHOT, RpcError("gone"), RpcError("gone"), SNAPSHOT, {"resync": True}, SNAPSHOT)
    problem, sightings = followed(sniffer)
    assert (problem, set(sightings)) == (None, {seen("10.1.0.2")})


def test_sniffer_that_stays_away_is_a_problem_beside_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_evidence, "_RETRY_SECONDS", 11.0)
    assert followed(Sniffer(SNAPSHOT, RpcError("gone"))) == ("gone", Counter([seen("10.1.0.2")]))


def test_client_with_many_connections_does_not_say_what_is_expensive() -> None:
    honest = {seen(f"10.1.0.{n}", f"10.2.0.{n}", backups=[f"10.1.0.{n}"]): 1 for n in range(2, 102)}
    alone = {seen("10.1.0.200", "10.2.0.200", backups=["10.2.0.200"]): 1000}
    grouping = group(honest | alone)
    assert [str(network.subnets[0].subnet) for network in grouping.networks] == ["10.2.0.0/24", "10.1.0.0/24"]
