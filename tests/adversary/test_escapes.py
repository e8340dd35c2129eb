"""What a client can do to get more than its cap or limit, with MPTCP alone."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Final

import pytest
from polling import eventually
from proxy_world import ProxyWorld

from mptcp_lab.adversary.attack import POUR_PORT, Attack, Site
from mptcp_lab.adversary.catalogue import BY_CLIENTS
from mptcp_lab.adversary.escapes import HALF_CLOSED
from mptcp_lab.adversary.trial import ON_BUSY_MACHINE, holds_off_on_busy_machine
from mptcp_lab.topology import WIFI

SECONDS: Final = 6.0
SUPPRESSED = re.compile(r"WARNING (\d+) log lines of the last 10 s were not written: (\d+) about token=(\w+)")


@pytest.mark.parametrize("attack", BY_CLIENTS, ids=attrgetter("name"))
def test_client_does_not_escape_its_rate(attack: Attack, site: Site) -> None:
    outcome = holds_off_on_busy_machine(attack, site, SECONDS)
    assert outcome.held_off(*ON_BUSY_MACHINE), outcome


@pytest.mark.parametrize("attack", HALF_CLOSED, ids=attrgetter("name"))
def test_half_closed_subflow_stays_in_the_table_until_the_proxy_ends_it(attack: Attack, site: Site) -> None:
    proxy = site.lab.proxy
    closed_by_client = ("ss", "-tnH", "state", "close-wait", "sport", "=", f":{POUR_PORT}")
    with attack.begin(site) as act, act():
        eventually(lambda: len(proxy.run(*closed_by_client).stdout.splitlines()) == 1, "the FIN has arrived")

        def is_throttled() -> bool:
            kinds = [subflow.kind for subflow in site.services.subflows() if subflow.network == "ethernet"]
            return len(kinds) == 1 and kinds[0] is not None

        eventually(is_throttled, "throttled")
        proxy.run("ss", "-K", "-t", "sport", "=", f":{POUR_PORT}")
        eventually(lambda: not site.services.subflows(), "gone", within=1)


def test_log_of_a_client_that_toggles_its_priority_is_bounded(world: ProxyWorld) -> None:
    victim = world.lab.client
    (capped,) = world.begin_capped()
    lines = len(world.daemon.log_text().splitlines())
    change = f"ip mptcp endpoint change {victim.address(WIFI, 4)}"
    toggle = f"while true; do {change} backup; sleep 0.06; {change} nobackup; sleep 0.06; done"
    toggling = victim.start("toggle", "sh", "-c", toggle)
    seconds = eventually(lambda: SUPPRESSED.search(world.daemon.log_text()) is not None, "a summary", within=60)
    toggling.stop()
    log = world.daemon.log_text().splitlines()[lines:]
    assert len(log) <= 21 * (seconds // 10 + 2)
    summary = SUPPRESSED.search("\n".join(log))
    assert summary is not None
    assert summary[3] == capped.token
    assert int(summary[1]) == int(summary[2]) > 20
    victim.run("ip", "mptcp", "endpoint", "change", str(victim.address(WIFI, 4)), "nobackup")
