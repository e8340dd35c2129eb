"""Durations do not depend on the wall clock: what is set here is that of one service, since the host has others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from polling import eventually
from proxy_world import Hosts, ProxyWorld, attended, unique

from mptcp_lab.dropped_packets import dropped
from mptcp_lab.oracle import listed
from mptcp_lab.squid import PORT
from mptcp_lab.topology import WIFI
from mptcp_lab.wall_clock import ServicesWithClock


@pytest.fixture
def services(hosts: Hosts) -> ServicesWithClock:
    return ServicesWithClock(hosts.lab.proxy, name=unique("set-back"))


@pytest.fixture
def world(hosts: Hosts, services: ServicesWithClock) -> Iterator[ProxyWorld]:
    with attended(hosts, services) as running, services:
        yield running


def test_wall_clock_set_back_hides_no_end(world: ProxyWorld, services: ServicesWithClock) -> None:
    world.begin_capped()
    services.set_ahead(-3600)
    proxy, wifi = world.proxy, str(world.lab.client.address(WIFI, 4))
    with dropped(proxy, "OUTPUT", "-d", wifi, commands=("iptables-legacy",)):
        proxy.run("ss", "-K", "-t", "dst", wifi)
        assert wifi not in str(listed(proxy, PORT))
        eventually(lambda: not world.capped(), "freed", within=5)


def test_wall_clock_set_back_prolongs_no_pause(world: ProxyWorld, services: ServicesWithClock) -> None:
    world.begin_capped()
    services.ask("pause", 3)
    services.set_ahead(-3600)
    eventually(lambda: services.status()["daemon"]["pause"] is None, "the end of the pause", within=10)
    world.wait_capped()
