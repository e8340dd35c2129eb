"""The program on the proxy's sockets: what it does for the daemon, and what needs no daemon."""

from __future__ import annotations

import errno
import re
import sys
import time
from dataclasses import replace

import pytest
from polling import eventually
from proxy_world import (
    MEGABYTE,
    WITHOUT_CAP,
    Hosts,
    ProxyWorld,
    configured,
    ethernet_with,
    proxy_world,
    receive_rates,
    serving,
)

from mptcp_lab.namespaces import in_namespace
from mptcp_lab.origin import endless
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Topology
from mptcp_throttle.linux.kernel_error import set_faults
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.sockets.pacing import PacedSockets

# For the daemon


def test_pace_follows_a_rate_set_by_hand(world: ProxyWorld) -> None:
    world.begin_paced()
    world.services.cli("set-rate", "ethernet", "4mbit")
    pace = f"/{round(4e6 * 0.94)}bps"
    eventually(lambda: pace in world.lab.proxy.run("ss", "-tinH").stdout, f"a pace of {pace}")
    world.services.cli("set-rate", "ethernet", "unlimited")
    eventually(lambda: world.paced() == 0, "no socket paced", within=1)


# What needs no daemon


def test_kernel_paces_and_frees_subflows_before_the_daemon_knows(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    change = ("ip", "mptcp", "endpoint", "change", str(client.address(WIFI, 4)))
    with own_world.daemon.suspended():
        own_world.begin_paced()
        assert "htb" not in own_world.qdisc()
        client.run(*change, "backup")
        eventually(lambda: own_world.paced() == 0, "no socket paced beside a backup", within=2)
        client.run(*change, "nobackup")
        own_world.wait_paced()
    own_world.wait_capped()
    with own_world.daemon.suspended():
        client.leave(WIFI)
        eventually(lambda: own_world.paced() == 0, "no socket paced after the end of Wi-Fi", within=1)


def test_kernel_paces_although_all_subflows_are_backups(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    ethernet, wifi = (str(client.address(link, 4)) for link in (ETHERNET, WIFI))
    client.run("ip", "mptcp", "endpoint", "add", ethernet, "dev", "eth0")
    own_world.begin_paced()
    client.run("ip", "mptcp", "endpoint", "change", wifi, "backup")
    eventually(lambda: own_world.paced() == 0, "a backup justifies no cap")
    client.run("ip", "mptcp", "endpoint", "change", ethernet, "backup")
    own_world.wait_paced()
    own_world.wait_capped()


def test_kernel_adopts_a_connection_that_is_older_than_the_daemon(hosts: Hosts) -> None:
    with configured(hosts) as world:
        world.services.start_sniffer()
        download = world.download()
        eventually(lambda: download.received > 3 * MEGABYTE, "the download in progress")
        assert world.paced() == 0
        world.start_daemon()
        world.wait_paced()
        world.wait_capped()


def test_capped_subflow_that_joined_is_freed_after_a_killed_daemon(own_world: ProxyWorld) -> None:
    lab, client = own_world.lab, own_world.lab.client
    client.run("ip", "mptcp", "endpoint", "add", str(client.address(ETHERNET, 4)), "dev", "eth0", "subflow")
    document = f"http://{lab.origin_address(4)}/{endless(own_world.origin).name}"
    begin_over_wifi = ("--from", str(client.address(WIFI, 4)))
    fetch = (sys.executable, "-m", "mptcp_lab.fetch", str(lab.proxy_address(4)), str(PORT), *begin_over_wifi, document)
    client.start("wifi-first", *fetch)
    (capped,) = own_world.wait_settled()
    assert capped.network == "ethernet"
    own_world.wait_paced()
    own_world.daemon.kill()
    assert own_world.paced() == 1
    own_world.services.clean_up()
    assert own_world.paced() == 0


def test_sockets_are_freed_although_the_kernel_refuses_at_first(world: ProxyWorld) -> None:
    world.begin_paced()
    world.daemon.kill()
    left = [OSError(errno.EPERM, "refused")] * 3
    set_faults(lambda requests: [left.pop() if left and "bpf object load" in requests else None for _ in requests])
    try:
        with in_namespace(world.lab.proxy.namespace):
            assert PacedSockets((PORT,)).free_sockets() == 0
    finally:
        set_faults(None)
    assert not left
    assert world.paced() == 0


def test_idle_socket_keeps_no_pace_when_the_daemon_stops(world: ProxyWorld) -> None:
    idle = world.download()
    world.wait_settled()
    world.wait_paced()

    def carried() -> list[str]:
        return re.findall(r"bytes_acked:\d+", world.lab.proxy.run("ss", "-tinH").stdout)

    def is_idle() -> bool:
        before = carried()
        time.sleep(0.6)
        return carried() == before

    with idle.suspended():
        eventually(is_idle, "nothing acknowledged any more")
        assert world.daemon.stop() == 0
        assert world.paced() == 0


def test_first_subflow_is_paced_for_the_provisional_time_alone() -> None:
    wifi, ethernet = WIFI_FIRST
    networks = [wifi, replace(ethernet, provisional=3.0)]
    with proxy_world(Topology(clients=(ClientSpec(wifi=None),)), networks) as world:
        world.begin_paced()
        eventually(lambda: world.paced() == 0, "no socket paced", within=5)
        assert world.capped() == []


def test_capped_subflow_of_a_limited_network_is_never_free() -> None:
    networks = ethernet_with({RateKind.LIMIT: Rate(2_000_000)})
    with proxy_world(networks=networks, daemon={"classifier": "socket"}) as world:
        world.begin_settled()
        with world.daemon.suspended():
            world.lab.client.leave(WIFI)
            eventually(lambda: world.paced() == 0, "the cap has ended")
            assert receive_rates(world.lab.client, 3)["eth0"] < 2.5e6


@pytest.mark.parametrize("why", ["no cap", "paused"])
def test_subflow_that_may_not_be_capped_is_never_paced(hosts: Hosts, why: str) -> None:
    with serving(hosts, WITHOUT_CAP if why == "no cap" else WIFI_FIRST) as world:
        if why == "paused":
            world.services.ask("pause", None)
        download = world.download(10 * MEGABYTE)
        eventually(lambda: download.received > 5 * MEGABYTE, "the download in progress")
        assert world.paced() == 0
        assert download.wait().intact
