from collections.abc import Iterator

import proxy_world
import pytest
from proxy_world import Hosts, ProxyWorld


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """One set of hosts for all tests of a module: each leaves them as it found them."""
    with proxy_world.hosts() as built:
        yield built


@pytest.fixture
def world(request: pytest.FixtureRequest, hosts: Hosts) -> Iterator[ProxyWorld]:
    """The module's hosts, with services of the test's own; an indirect parameter is the back end that marks packets."""
    with proxy_world.serving(hosts, daemon={"classifier": getattr(request, "param", "auto")}) as running:
        yield running


@pytest.fixture
def own_world() -> Iterator[ProxyWorld]:
    """For a test that changes the hosts: nobody else has them."""
    with proxy_world.proxy_world() as running:
        yield running
