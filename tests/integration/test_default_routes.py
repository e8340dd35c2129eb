"""Default routes are found among thousands of others, before and behind them in the kernel's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mptcp_lab.namespaces import in_namespace
from mptcp_throttle.linux.default_routes import default_interfaces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.host import Host

MANY = 3000


def link(host: Host, name: str, number: int) -> int:
    """Its index."""
    host.ip([f"link add {name} type veth peer name {name}-peer", f"link set {name} up", f"link set {name}-peer up"])
    host.ip([f"address add 10.255.{number}.1/24 dev {name}", f"address add fd00:{number}::1/64 dev {name} nodad"])
    return int(host.run("cat", f"/sys/class/net/{name}/ifindex").stdout)


@pytest.fixture
def links(host: Host) -> Iterator[tuple[int, int]]:
    """Two interfaces, and no default route."""
    for version in (4, 6):
        host.run("ip", f"-{version}", "route", "flush", "default")
    yield link(host, "one", 1), link(host, "two", 2)
    host.ip(["link delete one", "link delete two"])


def found(host: Host) -> tuple[int, ...]:
    with in_namespace(host.namespace):
        return default_interfaces()


def test_default_routes_are_found_among_thousands(host: Host, links: tuple[int, int]) -> None:
    one, two = links
    assert found(host) == ()
    host.ip(f"route add 11.{number >> 8}.{number & 255}.0/24 dev one" for number in range(MANY))
    host.ip(f"route add fd01:{number:x}::/64 dev one" for number in range(MANY))
    assert found(host) == ()
    host.ip(["route add default via 10.255.1.2", "route add ::/0 via fd00:2::2 metric 9000"])
    assert found(host) == (one, two)


def test_best_default_route_counts_with_all_its_hops(host: Host, links: tuple[int, int]) -> None:
    one, two = links
    host.ip(["route add default via 10.255.1.2 metric 200", "route add unreachable default metric 9"])
    host.ip(["route add default metric 100 nexthop via 10.255.2.2 nexthop via 10.255.1.2"])
    host.ip(["route add default via 10.255.1.2 table 7"])
    assert found(host) == (two, one)
