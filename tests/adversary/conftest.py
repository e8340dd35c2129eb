from collections.abc import Iterator

import proxy_world
import pytest
from proxy_world import Hosts, ProxyWorld

from mptcp_lab.adversary.attack import CLIENTS, PORTS, Attack, Site, prepare


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """One set of hosts for all tests of a module."""
    with proxy_world.hosts(CLIENTS) as built:
        prepare(built.lab)
        yield built


@pytest.fixture
def world(hosts: Hosts) -> Iterator[ProxyWorld]:
    """Services of the test's own."""
    with proxy_world.serving(hosts, ports=PORTS) as running:
        yield running


@pytest.fixture
def site(attack: Attack, hosts: Hosts) -> Iterator[Site]:
    """Services of the test's own, as an attack, its parameter, needs them."""
    with proxy_world.serving(hosts, attack.networks, ports=PORTS) as running:
        yield Site(running.lab, running.origin, running.services)
