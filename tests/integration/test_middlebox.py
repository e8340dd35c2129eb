"""A middlebox removes MPTCP options: what it makes plain TCP is free, and a path that it takes away caps nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from middlebox import SentBy, stripping
from polling import eventually
from port_client import download_from
from proxy_world import FREE, MEGABYTE, ethernet_with, receive_rates, serving

from mptcp_lab.dropped_packets import dropped
from mptcp_lab.topology import ETHERNET, WIFI
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Collection

    from proxy_world import Hosts, ProxyWorld

SICK: Final = "wifi is sick: no DATA_ACKs"


class Segments(NamedTuple):
    """From which segments the options are removed: `which` in nft(8)'s words."""

    senders: Collection[SentBy]
    which: str


OF_HANDSHAKES: Final = {
    "SYN": Segments((SentBy.CLIENT,), "tcp flags & (syn | ack) == syn"),
    "SYN/ACK": Segments((SentBy.PROXY,), "tcp flags & (syn | ack) == (syn | ack)"),
    "third ACK": Segments((SentBy.CLIENT,), "tcp flags & syn == 0"),
}


def nothing_is_throttled(world: ProxyWorld) -> bool:
    return not (world.capped() or world.restrained() or world.assignments())


@pytest.mark.parametrize("segments", OF_HANDSHAKES.values(), ids=OF_HANDSHAKES)
def test_connection_without_mp_capable_is_plain_tcp(world: ProxyWorld, segments: Segments) -> None:
    with stripping(world.lab, ETHERNET, *segments):
        download = world.download()
        eventually(lambda: download.received > MEGABYTE, "in progress")
        assert not world.services.subflows()
        assert nothing_is_throttled(world)
        assert "no MPTCP connections" in world.services.cli("connections").stdout
        eventually(lambda: receive_rates(world.lab.client, 1)["eth0"] > FREE, "Ethernet in use")
        assert nothing_is_throttled(world)
        assert world.download(MEGABYTE).wait().intact


@pytest.mark.parametrize("segments", OF_HANDSHAKES.values(), ids=OF_HANDSHAKES)
def test_network_that_cannot_be_joined_caps_nothing(world: ProxyWorld, segments: Segments) -> None:
    client, services = world.lab.client, world.services
    with stripping(world.lab, WIFI, *segments):
        download = world.download()
        eventually(lambda: download.received > MEGABYTE, "in progress")
        eventually(lambda: receive_rates(client, 3)["eth0"] > FREE, "Ethernet in use")
        (alone,) = services.subflows()
        assert (alone.network, alone.kind) == ("ethernet", None)
        assert nothing_is_throttled(world)
        explained = services.cli("explain", str(client.address(ETHERNET, 4))).stdout
        assert "unlimited for 1 subflow (no live subflow on a more preferred network)" in explained


@pytest.mark.parametrize("senders", [(SentBy.PROXY,), tuple(SentBy)], ids=["by the proxy", "by both"])
def test_cap_ends_with_the_path_that_is_reset(world: ProxyWorld, senders: Collection[SentBy]) -> None:
    world.begin_settled()
    with stripping(world.lab, WIFI, senders):
        eventually(lambda: nothing_is_throttled(world), "free")
        eventually(lambda: receive_rates(world.lab.client, 3)["eth0"] > FREE, "Ethernet in use")
        assert nothing_is_throttled(world)


@pytest.mark.parametrize("senders", [(SentBy.PROXY,), tuple(SentBy)], ids=["by the proxy", "by both"])
def test_preferred_path_stays_free_without_the_capped_one(world: ProxyWorld, senders: Collection[SentBy]) -> None:
    world.begin_settled()
    with stripping(world.lab, ETHERNET, senders):
        eventually(lambda: [each.network for each in world.services.subflows()] == ["wifi"], "Ethernet reset")
        eventually(lambda: receive_rates(world.lab.client, 3)["wlan0"] > 10e6, "Wi-Fi in use")
        assert nothing_is_throttled(world)


def reasons(world: ProxyWorld) -> list[str]:
    """Why the Ethernet subflows have the rates that they have."""
    return [subflow.reason for subflow in world.services.subflows() if subflow.network == "ethernet"]


def test_download_goes_on_while_no_data_acks_arrive_over_wifi(world: ProxyWorld) -> None:
    world.begin_settled()
    with stripping(world.lab, WIFI, (SentBy.CLIENT,)):
        eventually(lambda: reasons(world) == [SICK], "sick", within=3, seen=lambda: reasons(world))
        eventually(lambda: receive_rates(world.lab.client, 3)["eth0"] > FREE, "Ethernet in use")
        assert nothing_is_throttled(world)
        assert SICK in world.daemon.log_text()
    eventually(lambda: reasons(world) == ["wifi is live"], "capped again", seen=lambda: reasons(world))
    eventually(lambda: receive_rates(world.lab.client, 2)["eth0"] < 1.5e6, "the cap held")


def test_path_is_sick_for_some_seconds_at_least(world: ProxyWorld) -> None:
    """Else a client could change that several times a second."""
    world.begin_settled()
    with stripping(world.lab, WIFI, (SentBy.CLIENT,)):
        eventually(lambda: reasons(world) == [SICK], "sick", seen=lambda: reasons(world))
    takes = eventually(lambda: reasons(world) == ["wifi is live"], "capped again", seen=lambda: reasons(world))
    assert takes > 3


def test_new_download_begins_while_no_data_acks_arrive_over_wifi(world: ProxyWorld) -> None:
    with stripping(world.lab, WIFI, (SentBy.CLIENT,), "tcp flags & syn == 0 tcp option mptcp subtype != 1"):
        download = world.download(20 * MEGABYTE)
        assert download.wait(timeout=10).intact


def test_limit_holds_while_no_data_acks_arrive_over_wifi(hosts: Hosts) -> None:
    limit = Rate.parse("4mbit")
    with serving(hosts, ethernet_with({RateKind.LIMIT: limit})) as world:
        world.begin_settled()
        with stripping(world.lab, WIFI, (SentBy.CLIENT,)):
            eventually(lambda: reasons(world) == ["limit of the network"], "limited", seen=lambda: reasons(world))
            rates = [receive_rates(world.lab.client, 1)["eth0"] for _ in range(5)]
            assert 0.5 * limit.bits_per_second < max(rates[1:]) < 1.1 * limit.bits_per_second


def test_download_that_began_over_wifi_goes_on_without_its_data_acks(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    client.ip([f"mptcp endpoint add {client.address(ETHERNET, 4)} dev eth0 subflow"])
    download_from(own_world, client.address(WIFI, 4), 45000)
    own_world.wait_capped()
    with stripping(own_world.lab, WIFI, (SentBy.CLIENT,)):
        eventually(lambda: reasons(own_world) == [SICK], "sick", within=3, seen=lambda: reasons(own_world))
        eventually(lambda: receive_rates(client, 3)["eth0"] > FREE, "Ethernet in use")


def test_reader_that_is_slow_or_stops_makes_no_path_sick(world: ProxyWorld) -> None:
    download = world.download()
    world.download(rate_limit=Rate.parse("1mbit"))
    world.wait_capped(2)
    with download.suspended():
        for _ in range(5):
            assert receive_rates(world.lab.client, 1)["eth0"] < 1.5e6
            assert reasons(world) == ["wifi is live"] * 2
    assert " is sick" not in world.daemon.log_text()


def test_data_that_is_lost_on_the_capped_path_makes_no_other_sick(world: ProxyWorld) -> None:
    world.begin_settled()
    client = world.lab.client
    half = ("-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", "0.5")
    with dropped(client, "INPUT", *half):
        for _ in range(5):
            receive_rates(client, 1)
            assert reasons(world) == ["wifi is live"]
    assert " is sick" not in world.daemon.log_text()
