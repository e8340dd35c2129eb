from collections.abc import Iterator

import proxy_world
import pytest
from proxy_world import Hosts, ProxyWorld

from mptcp_lab.host import Host
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.squid import PORT
from mptcp_lab.topology import Lab, Topology, build


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Hosts on which nothing runs, for all tests of a module."""
    with build(Topology()) as built:
        yield built


@pytest.fixture(scope="module")
def host(lab: Lab) -> Host:
    """The proxy of `lab`."""
    return lab.proxy


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """One set of hosts for all tests of a module, with its TOPOLOGY: each leaves them as it found them."""
    with proxy_world.hosts(getattr(request.module, "TOPOLOGY", None)) as built:
        yield built


@pytest.fixture
def world(request: pytest.FixtureRequest, hosts: Hosts) -> Iterator[ProxyWorld]:
    """The module's hosts, with services of the test's own, configured by the module's constants.

    These are NETWORKS, the section DAEMON, PORTS and INTERFACES. An indirect parameter is the classifier, or
    settings of that section.
    """
    module, param = request.module, getattr(request, "param", {})
    settings = {"classifier": param} if isinstance(param, str) else param
    daemon = {"classifier": "auto", **getattr(module, "DAEMON", {}), **settings}
    networks, ports = getattr(module, "NETWORKS", WIFI_FIRST), getattr(module, "PORTS", (PORT,))
    with proxy_world.serving(hosts, networks, daemon, ports, getattr(module, "INTERFACES", ("eth0",))) as running:
        yield running


@pytest.fixture
def before(world: ProxyWorld) -> dict[str, str]:
    """The state of the proxy's kernel before the test, while nothing is throttled."""
    return kernel_state(world.proxy)


@pytest.fixture
def own_world(request: pytest.FixtureRequest) -> Iterator[ProxyWorld]:
    """For a test that changes the hosts: no other test has them. A parameter is settings of the daemon."""
    module = request.module
    networks = getattr(module, "NETWORKS", WIFI_FIRST)
    daemon = {**getattr(module, "DAEMON", {}), **getattr(request, "param", {})}
    with proxy_world.proxy_world(getattr(module, "TOPOLOGY", None), networks, daemon) as running:
        yield running
