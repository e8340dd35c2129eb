"""What a host off the path can do to others, who knows their addresses and ports: nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import proxy_world
import pytest
from polling import eventually
from proxy_world import EXECUTABLES, Hosts, ProxyWorld

from mptcp_lab.services import SubflowStatus
from mptcp_lab.squid import PORT
from mptcp_lab.topology import WIFI, ClientSpec, Topology

FORGER = Path(__file__).with_name("forger.py")
FORGER_CLIENT = ClientSpec("forger", families=(4,))
VICTIM_AND_FORGER = Topology(clients=(ClientSpec("victim", families=(4,)), FORGER_CLIENT))
WITH_BACKUP = Topology(clients=(ClientSpec("victim", families=(4,), wifi="backup"), FORGER_CLIENT))


@pytest.fixture
def own_hosts() -> Iterator[Hosts]:
    """Wi-Fi is a backup path of the victim."""
    with proxy_world.hosts(WITH_BACKUP) as built:
        yield built


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """The forger's kernel does not reset the connections that it knows nothing of."""
    with proxy_world.hosts(VICTIM_AND_FORGER) as built:
        reset = ("-p", "tcp", "--tcp-flags", "RST", "RST", "-j", "DROP")
        built.lab.clients["forger"].run("iptables-legacy", "-A", "OUTPUT", *reset)
        yield built


def forge(world: ProxyWorld, *arguments: str) -> str:
    forger = world.lab.clients["forger"]
    kind, *rest = arguments
    proxy = str(world.lab.proxy_address(4))
    return forger.run(EXECUTABLES / "python", FORGER, kind, proxy, str(PORT), *rest).stdout


def test_forged_joins_change_nothing(world: ProxyWorld) -> None:
    world.download()
    world.wait_settled()
    connections, marks = world.services.ask_sniffer("snapshot")["connections"], world.marks()
    (victim,) = {subflow.token for subflow in world.services.subflows()}
    guesses = [f"{random.randrange(2**32):08x}" for _ in range(5)]  # noqa: S311
    assert forge(world, "joins", *guesses, victim) == "answered\n"
    counters = world.services.ask_sniffer("status")["counters"]
    assert (counters["unknown_token"], counters["wrong_hmac"]) == (5, 1)
    assert world.services.ask_sniffer("snapshot")["connections"] == connections
    assert world.marks() == marks


def test_forged_segments_of_the_proxy_open_no_connection(world: ProxyWorld) -> None:
    forge(world, "connection")
    eventually(lambda: world.services.ask_sniffer("status")["counters"].get("wrong_direction") == 2, "all captured")
    assert "opened token=" not in world.sniffer.log_text()


@contextmanager
def forging(world: ProxyWorld, victim: SubflowStatus, signal: str, per_second: float) -> Iterator[None]:
    """While segments in the name of a client arrive on this subflow."""
    forger, proxy = world.lab.clients["forger"], str(world.lab.proxy_address(4))
    ends = (victim.client, str(victim.client_port))
    process = forger.start(
        "forger", EXECUTABLES / "python", FORGER, "signals", proxy, str(PORT), *ends, signal, str(per_second)
    )
    eventually(lambda: "sending" in process.log_text(), "sending")
    try:
        yield
    finally:
        process.stop()


def states(world: ProxyWorld, seconds: float) -> set[tuple[int, int]]:
    """The numbers of subflows and of capped subflows that were seen in this time."""
    seen, until = set(), time.monotonic() + seconds
    while time.monotonic() < until:
        subflows = world.services.subflows()
        seen.add((len(subflows), sum(subflow.rule == "cap" for subflow in subflows)))
    return seen


@pytest.mark.parametrize("signal", ["fin", "rst", "backup", "remove-address-0", "remove-addresses"])
@pytest.mark.parametrize("network", ["wifi", "ethernet"])
def test_forged_ends_and_priorities_lift_no_cap(world: ProxyWorld, network: str, signal: str) -> None:
    world.download()
    world.wait_capped()
    (victim,) = (subflow for subflow in world.services.subflows() if subflow.network == network)
    with forging(world, victim, signal, 10):
        assert states(world, 2.5) == {(2, 1)}


def test_forged_priority_imposes_no_cap(own_hosts: Hosts) -> None:
    with proxy_world.serving(own_hosts) as world:
        world.download(client=world.lab.clients["victim"])
        eventually(lambda: len(world.services.subflows()) == 2, "two subflows")
        (backup,) = (subflow for subflow in world.services.subflows() if subflow.backup)
        with forging(world, backup, "regular", 3.3):
            assert states(world, 4) == {(2, 0)}


def test_end_of_the_preferred_path_by_a_reset_lifts_the_cap_at_once(world: ProxyWorld) -> None:
    """Only the kernel list tells: the proxy sends nothing when a client resets a subflow."""
    victim = world.lab.clients["victim"]
    world.download(client=victim)
    world.wait_settled()
    victim.run("ss", "-K", "-t", "src", str(victim.address(WIFI, 4)))
    eventually(lambda: world.capped() == [], "the cap lifted", within=0.5)
