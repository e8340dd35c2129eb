"""What a host off the path can do to others: nothing with forged JOINs, nothing lasting with forged FINs and RSTs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import proxy_world
import pytest
from polling import eventually
from proxy_world import EXECUTABLES, Hosts, ProxyWorld

from mptcp_lab.oracle import listed
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ClientSpec, Topology

FORGER = Path(__file__).with_name("forger.py")
VICTIM_AND_FORGER = Topology(clients=(ClientSpec("victim", families=(4,)), ClientSpec("forger", families=(4,))))


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


def kernel_list_age(world: ProxyWorld) -> float:
    """Seconds since the sniffer read the kernel list."""
    return float(world.services.ask_sniffer("status")["kernel_view"]["age_seconds"])


def test_forged_joins_change_nothing(world: ProxyWorld) -> None:
    world.download()
    world.wait_capped()
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


@pytest.mark.parametrize("flags", ["FA", "R"])
def test_forged_end_is_undone_by_the_kernel_list(world: ProxyWorld, flags: str) -> None:
    world.download()
    (capped,) = world.wait_capped()
    forge(world, "ends", capped.client, str(capped.client_port), flags)
    eventually(lambda: not world.capped(), "the forged end believed", within=1)
    eventually(lambda: len(world.capped()) == 1, "undone", within=3)
    assert len(listed(world.lab.proxy, PORT)) == 2
    age = kernel_list_age(world)
    eventually(lambda: kernel_list_age(world) < age, "the kernel list read once more")
    assert len(world.capped()) == 1
