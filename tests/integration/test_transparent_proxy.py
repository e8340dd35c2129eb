"""A transparent proxy: Squid and TPROXY. Its sockets have the addresses and ports of the origin servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import proxy_world
import pytest
from polling import eventually
from proxy_world import LONG, Hosts, ProxyWorld, ethernet_with, receive_rates, send_rates, serving
from second_interface import send_small_pulses
from steered_subflows import are_backups

from mptcp_lab.squid import PORT, SQUID_TPROXY, squid_with_tproxy
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_throttle.rpc import Json

OTHER_PORT: Final = 3129
UPLOADS: Final = ethernet_with({RateKind.CAP: None, RateKind.UPLINK_CAP: Rate(1_000_000)})


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with proxy_world.hosts(server=SQUID_TPROXY) as built:
        send_small_pulses(built.lab.client)
        yield built


@pytest.mark.parametrize("family", [4, 6])
def test_download_is_held_back_and_stays_so_over_a_restart(world: ProxyWorld, family: Literal[4, 6]) -> None:
    world.download(family=family)
    world.wait_settled()
    for is_adopted in (False, True):
        if is_adopted:
            world.daemon.kill()
            world.start_daemon()
            world.wait_settled()
        eventually(lambda: are_backups(world), "held back")
        rates = receive_rates(world.lab.client, 3)
        assert 0.5e6 < rates["eth0"] < 1.25e6
        assert rates["wlan0"] > 10e6


def test_upload_keeps_to_its_cap(hosts: Hosts) -> None:
    with serving(hosts, UPLOADS) as world:
        world.upload(LONG)
        eventually(lambda: any(each.uplink_kind == "cap" for each in world.services.subflows()), "capped")
        eventually(lambda: send_rates(world.lab.client, 3)["eth0"] < 1.5e6, "what was queued is sent")
        rates = send_rates(world.lab.client, 3)
        assert 0.4e6 < rates["eth0"] < 1.5e6
        assert rates["wlan0"] > 10e6


@pytest.mark.parametrize("family", [4, 6])
def test_whole_document_arrives_through_both_paths(world: ProxyWorld, family: Literal[4, 6]) -> None:
    assert world.download(20_000_000, family=family).wait().intact
    assert discards(world)["problem"] is None


def discards(world: ProxyWorld) -> Json:
    return world.services.status()["daemon"]["features"]["discards"]


@pytest.mark.parametrize("family", [4, 6])
def test_join_gets_its_keep_alive(world: ProxyWorld, family: Literal[4, 6]) -> None:
    def is_sent() -> bool:
        """A JOIN that comes after the first DATA_ACK of its connection needs none."""
        assert world.download(100_000, family=family).wait().intact
        counters = discards(world)["counters"]
        return bool(counters["keep_alives"] > 0)

    eventually(is_sent, "a keep-alive")


def test_join_at_another_port_than_the_listeners_is_refused_and_said() -> None:
    with proxy_world.hosts(server=squid_with_tproxy(OTHER_PORT)) as built, serving(built) as world:
        assert world.download(1_000_000).wait().intact
        eventually(lambda: built.lab.proxy.counter("MPTcpExtMismatchPortSynRx") > 0, "a JOIN refused")
        line = (
            f"connections to port {PORT} are given to the socket on port {OTHER_PORT} (chain prerouting of"
            " table inet transparent), where the kernel refuses their JOINs"
        )
        assert line in world.services.cli("doctor", check=False).stdout
