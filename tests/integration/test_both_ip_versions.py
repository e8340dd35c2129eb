"""One connection with IPv4 and IPv6: its first subflow, over Ethernet, has one of them, that over Wi-Fi the other."""

from __future__ import annotations

import sys
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import proxy_world
import pytest
from polling import eventually
from port_client import exchange
from proxy_world import ALL_CLASSIFIERS, ethernet_with, receive_rates, send_rates, serving
from second_interface import send_small_pulses
from steered_subflows import are_backups, are_regular, complaints, priorities, subflows_at_proxy
from test_steered_downloads import CAP, wait_carried, wait_held

from mptcp_lab.origin import endless
from mptcp_lab.scenario.plan import in_url
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.squid import PORT
from mptcp_lab.topology import WIFI, Family
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy_world import Hosts, ProxyWorld

LIMITS: Final = {"wifi": 3 * CAP, "ethernet": 2 * CAP}
LIMITED: Final = tuple(
    network.with_rates({RateKind.CAP: None, RateKind.LIMIT: Rate(round(LIMITS[network.name]))})
    for network in WIFI_FIRST
)


class Mixed(NamedTuple):
    """Hosts on which a connection that begins with IP version `first` is joined with `other`."""

    hosts: Hosts
    first: Family
    other: Family

    @property
    def address(self) -> str:
        """The proxy's, for a socket of IPv6: one of IPv4 has no subflows with IPv6."""
        return f"{'::ffff:' if self.first == 4 else ''}{self.hosts.lab.proxy_address(self.first)}"

    def download(self) -> None:
        """Begin one that does not end."""
        lab = self.hosts.lab
        url = f"http://{in_url(lab.origin_address(4))}/{endless(self.hosts.origin).name}"
        lab.client.start("fetch", sys.executable, "-m", "mptcp_lab.fetch", self.address, str(PORT), url)

    def wait_joined(self, world: ProxyWorld) -> None:
        """Wait until the connection has a subflow of each version, each over its network."""
        expected = {("ethernet", self.first), ("wifi", self.other)}

        def joined() -> set[tuple[str, int]]:
            return {(each.network, ip_address(each.client).version) for each in world.services.subflows()}

        eventually(lambda: joined() == expected, "joined", seen=joined)


@pytest.fixture(scope="module", params=[4, 6], ids=["IPv4 first", "IPv6 first"])
def mixed(request: pytest.FixtureRequest) -> Iterator[Mixed]:
    first: Family = request.param
    other = cast("Family", 10 - first)
    with proxy_world.hosts() as built:
        lab = built.lab
        lab.proxy.ip([f"mptcp endpoint add {lab.proxy_address(other)} dev eth0 signal"])
        over_wifi = f"mptcp endpoint add {lab.client.address(WIFI, other)} dev wlan0 fullmesh"
        lab.client.ip(["mptcp endpoint flush", over_wifi])
        send_small_pulses(lab.client)
        yield Mixed(built, first, other)


@pytest.mark.parametrize("classifier", ALL_CLASSIFIERS)
def test_limit_holds_in_each_ip_version(mixed: Mixed, classifier: str) -> None:
    with serving(mixed.hosts, LIMITED, {"classifier": classifier}) as world:
        client = world.lab.client
        mixed.download()
        mixed.wait_joined(world)
        eventually(lambda: len(world.assignments()) == 2, "both in classes", seen=world.assignments)
        assert {ip_address(each.client).version for each in world.assignments()} == {4, 6}

        def carried() -> bool:
            rates = receive_rates(client, 4)
            return all(
                0.8 * LIMITS[network] < rates[interface] < 1.1 * LIMITS[network]
                for network, interface in (("ethernet", "eth0"), ("wifi", "wlan0"))
            )

        eventually(carried, "each limit carried", seen=lambda: receive_rates(client, 4))


def test_paced_subflow_is_capped_beside_one_of_the_other_version(mixed: Mixed) -> None:
    with serving(mixed.hosts, daemon={"steering": False}) as world:
        mixed.download()
        mixed.wait_joined(world)
        (capped,) = world.wait_settled()
        assert (capped.network, ip_address(capped.client).version) == ("ethernet", mixed.first)
        world.wait_paced()
        wait_carried(world.lab.client)


def test_both_directions_keep_their_caps(mixed: Mixed) -> None:
    client = mixed.hosts.lab.client
    with serving(mixed.hosts, ethernet_with({RateKind.UPLINK_CAP: Rate(round(CAP))})) as world:
        exchange(world, mixed.address)
        mixed.wait_joined(world)
        eventually(lambda: any(each.uplink_kind == "cap" for each in world.services.subflows()), "both capped")
        wait_held(world)
        eventually(lambda: send_rates(client, 2)["eth0"] < 1.5 * CAP, "what was queued is sent")
        uplink = send_rates(client, 8)
        assert 0.5 * CAP < uplink["eth0"] < 1.4 * CAP
        assert uplink["wlan0"] > 5 * CAP
        wait_carried(client)


def test_held_back_subflow_is_freed_when_the_other_version_is_lost(mixed: Mixed) -> None:
    with serving(mixed.hosts) as world:
        client, proxy = world.lab.client, world.proxy
        refused, of_client = complaints(proxy), priorities(client)
        mixed.download()
        world.wait_capped()
        wait_held(world)
        mixed.wait_joined(world)
        assert not are_backups(world, "wifi")
        wait_carried(client)
        assert (complaints(proxy), priorities(client)) == (refused, of_client)
        client.leave(WIFI)
        eventually(lambda: are_regular(world), "regular", within=1, seen=lambda: subflows_at_proxy(world))
