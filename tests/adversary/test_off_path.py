"""What a host off the path can do to others, who knows their addresses and ports: nothing."""

from __future__ import annotations

import random
import sys
from operator import attrgetter
from typing import Final

import pytest
from polling import eventually
from proxy_world import ProxyWorld

from mptcp_lab.adversary.attack import Attack, Site
from mptcp_lab.adversary.catalogue import OFF_PATH
from mptcp_lab.adversary.off_path import FABRICATED
from mptcp_lab.adversary.trial import ON_BUSY_MACHINE, holds_off_on_busy_machine
from mptcp_lab.squid import PORT
from mptcp_lab.topology import WIFI

SECONDS: Final = 6.0


@pytest.mark.parametrize("attack", OFF_PATH, ids=attrgetter("name"))
def test_attack_from_off_the_path_is_held_off(attack: Attack, site: Site) -> None:
    outcome = holds_off_on_busy_machine(attack, site, SECONDS)
    assert outcome.held_off(*ON_BUSY_MACHINE), outcome
    if attack is FABRICATED:
        assert site.services.ask_sniffer("status")["counters"]["wrong_direction"] > SECONDS


def test_forged_joins_change_nothing(world: ProxyWorld) -> None:
    world.begin_settled()
    connections, assignments = world.services.ask_sniffer("snapshot")["connections"], world.assignments()
    (victim,) = {subflow.token for subflow in world.services.subflows()}
    guesses = [f"{random.randrange(2**32):08x}" for _ in range(5)]  # noqa: S311
    forger = (sys.executable, "-m", "mptcp_lab.adversary.forger", "joins", str(world.lab.proxy_address(4)), str(PORT))
    assert world.lab.clients["forger"].run(*forger, *guesses, victim).stdout == "answered\n"

    def counted() -> tuple[int, int]:
        counters = world.services.ask_sniffer("status")["counters"]
        return counters.get("unknown_token", 0), counters.get("wrong_hmac", 0)

    eventually(lambda: counted() == (5, 1), "counted", seen=counted)
    assert world.services.ask_sniffer("snapshot")["connections"] == connections
    assert world.assignments() == assignments


def test_end_of_the_preferred_path_by_a_reset_lifts_the_cap_at_once(world: ProxyWorld) -> None:
    """Only the kernel list tells: the proxy sends nothing when a client resets a subflow."""
    victim = world.lab.client
    world.begin_settled()
    victim.run("ss", "-K", "-t", "src", str(victim.address(WIFI, 4)))
    eventually(lambda: world.capped() == [], "the cap lifted", within=0.5)
