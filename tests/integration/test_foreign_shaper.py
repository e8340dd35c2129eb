"""A root qdisc of another program that must stay: paces and steering hold caps without our HTB, and status says so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pytest
from polling import eventually
from proxy_world import Hosts, ProxyWorld, attended, receive_rates, unique

from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.topology import Topology
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

TOPOLOGY: Final = Topology(proxy_qdisc="handle 7: pfifo limit 77")
OWN: Final = "qdisc add dev eth0 root handle 7: pfifo limit 77"
# The leaf takes the lower bits of a packet's priority, where we put classes, for a band.
SHAPER: Final = (
    "qdisc replace dev eth0 root handle 9: htb default 1",
    "class add dev eth0 parent 9: classid 9:1 htb rate 90mbit",
    "qdisc add dev eth0 parent 9:1 handle 91: pfifo_fast",
)
SHAPED: Final = ["htb 9: root", "pfifo_fast 91: parent 9:1"]
REMOVED: Final = ("qdisc del dev eth0 root", OWN)
CAP: Final = 1e6
OBSTACLE, WITHOUT_HTB = "eth0: root qdisc htb 9: ", "no interface has HTB: "
WIFI_LIMIT: Final = Rate.parse("2mbit")
WIFI_LIMITED: Final = (WIFI_FIRST[0].with_rates({RateKind.LIMIT: WIFI_LIMIT}), WIFI_FIRST[1])


@contextmanager
def serving(hosts: Hosts, daemon: Mapping[str, object]) -> Iterator[ProxyWorld]:
    services = Services(hosts.lab.proxy, WIFI_LIMITED, name=unique("throttle"), daemon=daemon)
    with attended(hosts, services) as world, services:
        yield world


@pytest.fixture(params=[True, False], ids=["steering", "paces"])
def world(request: pytest.FixtureRequest, hosts: Hosts) -> Iterator[ProxyWorld]:
    with serving(hosts, {"steering": request.param}) as world:
        yield world


@pytest.fixture
def shaped(hosts: Hosts) -> None:
    hosts.lab.proxy.tc(list(SHAPER))


@pytest.fixture(autouse=True)
def _own_qdisc(hosts: Hosts) -> Iterator[None]:
    yield
    hosts.lab.proxy.run("tc", "qdisc", "del", "dev", "eth0", "root", check=False)
    hosts.lab.proxy.tc([OWN])


def qdiscs(world: ProxyWorld) -> list[str]:
    """The qdiscs of the interface that queue."""
    shown = world.proxy.run("tc", "qdisc", "show", "dev", "eth0").stdout
    return [
        line for line in re.findall(r"^qdisc (\S+ \S+ (?:root|parent \S+))", shown, re.MULTILINE) if "ffff:" not in line
    ]


def error_beginnings(world: ProxyWorld) -> list[str]:
    """The errors, of those that are expected the beginning."""
    expected = (OBSTACLE, WITHOUT_HTB)
    return [next((start for start in expected if error.startswith(start)), error) for error in world.errors()]


@pytest.mark.usefixtures("shaped")
def test_cap_holds_beside_a_shaper_and_a_limit_is_said_not_to(world: ProxyWorld) -> None:
    world.begin_capped()
    world.wait_restrained()
    eventually(lambda: receive_rates(world.lab.client, 1)["eth0"] < 2 * CAP, "what was queued before has left")
    rates = receive_rates(world.lab.client, 5)
    assert 0.4 * CAP < rates["eth0"] < 1.5 * CAP
    assert rates["wlan0"] > 3 * WIFI_LIMIT.bits_per_second
    assert (qdiscs(world), world.assignments()) == (SHAPED, [])
    assert error_beginnings(world) == [OBSTACLE, WITHOUT_HTB]
    (wifi,) = (subflow for subflow in world.services.subflows() if subflow.network == "wifi")
    assert (wifi.kind, wifi.reason) == (None, "not applied; see status")
    assert world.services.status()["daemon"]["not_enforced"] == []


def test_shaper_that_comes_and_goes_frees_no_subflow(world: ProxyWorld) -> None:
    world.begin_settled()
    classes = world.class_counters().keys()
    for start_again in (False, True):
        world.proxy.tc(list(SHAPER))
        eventually(lambda: error_beginnings(world) == [OBSTACLE, WITHOUT_HTB], "reported")
        eventually(lambda: world.assignments() == [], "no class in a socket's priority")
        if start_again:
            world.daemon.kill()
            world.start_daemon()
            world.wait_capped()
        world.wait_restrained()
        assert (qdiscs(world), len(world.capped())) == (SHAPED, 1)
        world.proxy.tc(list(REMOVED))
        eventually(lambda: world.class_counters().keys() == classes, "HTB again")
        eventually(lambda: len(world.assignments()) == 2, "both subflows in their classes")
        eventually(lambda: world.errors() == [], "no error")
    assert world.daemon.stop() == 0
    assert qdiscs(world) == ["pfifo 7: root"]


@pytest.mark.usefixtures("shaped")
def test_no_subflow_is_throttled_beside_a_shaper_without_paces(hosts: Hosts) -> None:
    with serving(hosts, {"classifier": "nft"}) as world:
        world.download()
        eventually(lambda: len(world.services.subflows()) == 2, "both subflows known")
        eventually(lambda: error_beginnings(world) == [OBSTACLE], "reported", seen=world.errors, within=5)
        assert (qdiscs(world), world.capped(), world.restrained()) == (SHAPED, [], set())
