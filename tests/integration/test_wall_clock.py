"""Durations do not depend on the wall clock: what is set here is that of one service, since the host has others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from polling import eventually
from proxy_world import EXECUTABLES, Hosts, ProxyWorld, attended, unique

from mptcp_lab.dropped_packets import dropped
from mptcp_lab.oracle import listed
from mptcp_lab.process import Process
from mptcp_lab.services import Services
from mptcp_lab.squid import PORT
from mptcp_lab.topology import WIFI

FLAG: Final = "set-back"
# Once the file exists, the program's wall clock is an hour behind.
RUN: Final = """
import importlib, os, sys, time
flag, module, *arguments = sys.argv[1:]
real = time.time
time.time = lambda: real() - 3600 * os.path.exists(flag)
sys.exit(importlib.import_module(module).main(arguments))
"""


class ServicesWithClock(Services):
    """The services with a wall clock that can be set back."""

    def set_back(self) -> None:
        """Set the wall clock of both an hour back."""
        (self.directory / FLAG).touch()

    def _start(self, name: str) -> Process:
        module = {"mptcp-sniffer": "mptcp_sniffer.main", "mptcp-throttled": "mptcp_throttled.main"}[name]
        return self._run(name, EXECUTABLES / "python", "-c", RUN, self.directory / FLAG, module)


@pytest.fixture
def services(hosts: Hosts) -> ServicesWithClock:
    return ServicesWithClock(hosts.lab.proxy, name=unique("set-back"))


@pytest.fixture
def world(hosts: Hosts, services: ServicesWithClock) -> Iterator[ProxyWorld]:
    with attended(hosts, services) as running, services:
        yield running


def test_wall_clock_set_back_hides_no_end(world: ProxyWorld, services: ServicesWithClock) -> None:
    world.begin_capped()
    services.set_back()
    proxy, wifi = world.proxy, str(world.lab.client.address(WIFI, 4))
    with dropped(proxy, "OUTPUT", "-d", wifi, commands=("iptables-legacy",)):
        proxy.run("ss", "-K", "-t", "dst", wifi)
        assert wifi not in str(listed(proxy, PORT))
        eventually(lambda: not world.capped(), "freed", within=5)


def test_wall_clock_set_back_prolongs_no_pause(world: ProxyWorld, services: ServicesWithClock) -> None:
    world.begin_capped()
    services.ask("pause", 3)
    services.set_back()
    eventually(lambda: services.status()["daemon"]["pause"] is None, "the end of the pause", within=10)
    world.wait_capped()
