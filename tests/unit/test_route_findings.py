"""What `mptcp-throttle doctor` makes of the proxy's interfaces, and of routes to clients."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from examples import examined_host

from mptcp_throttle.cli.doctor import proxy_checks
from mptcp_throttle.cli.doctor.proxy_checks import _Destination, routes
from mptcp_throttle.findings import Finding
from mptcp_throttle.proxies import Proxies

if TYPE_CHECKING:
    from mptcp_throttle.model import Address

HOST = examined_host()
WIFI, LTE = HOST.config.networks


class Lookup:
    """Sends what is for 10.1.0.0/16 through eth1, and knows no route to IPv6."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def address_of(self, _interface: str, _ip_version: int) -> Address | None:
        return None

    def interface_to(self, destination: Address, _source: Address | None) -> str | None:
        if destination.version == 6:
            return None
        return "eth1" if str(destination).startswith("10.1.") else HOST.config.proxy.interfaces[0]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[_Destination]:
    """The clients with connections: none at first."""
    present: list[_Destination] = []
    monkeypatch.setattr(proxy_checks, "RouteLookup", Lookup)
    monkeypatch.setattr(proxy_checks, "_clients", lambda _: iter(present))
    return present


def client(address: str) -> _Destination:
    network = LTE if address.startswith("10.1.") else WIFI
    return _Destination(network, address, ip_address(address), None, is_client=True)


def found() -> list[tuple[str, str | None, bool]]:
    return [(finding.subject, finding.problem, finding.harm) for finding in routes(HOST)]


def test_subnet_without_a_client_is_a_note(clients: list[_Destination]) -> None:
    problem = "to 10.1.0.0/24 leave through eth1, where neither HTB nor mptcp-sniffer sees packets"
    assert found() == [("routes to clients of lte", problem, False)]
    clients.append(client("10.2.0.2"))
    assert found() == [("routes to clients of lte", problem, False)]


def test_clients_of_a_network_with_a_rate_are_a_harm(clients: list[_Destination]) -> None:
    clients += [client("10.1.0.2"), client("10.1.0.3"), client("10.2.0.2")]
    problem = "to 10.1.0.2 and 1 more leave through eth1, where neither HTB nor mptcp-sniffer sees packets"
    assert found() == [("routes to clients of lte", problem, True)]
    assert routes(HOST)[0].remedy == "route lte through eth0, or name eth1 in proxy.interface or proxy.interfaces"


def test_clients_of_a_network_without_a_rate_are_a_note(clients: list[_Destination]) -> None:
    clients += [client("10.1.0.2")._replace(network=WIFI)]
    assert [harm for _, _, harm in found()] == [False]


def test_subnet_is_looked_up_where_no_longer_prefix_is(
    clients: list[_Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [ip_network(text) for text in ("0.0.0.0/0", "10.0.0.0/15", "10.1.0.0/24", "10.0.0.0/16")]
    wifi = replace(WIFI, subnets=tuple(everything[:2]))
    lte = replace(LTE, subnets=tuple(everything[2:]))
    host = replace(HOST, config=replace(HOST.config, networks=(wifi, lte)))
    looked_up: list[_Destination] = []

    def look_up(_lookup: object, destinations: list[_Destination], _interfaces: object) -> dict[object, object]:
        looked_up.extend(destinations)
        return {}

    monkeypatch.setattr(proxy_checks, "_leaving_elsewhere", look_up)
    routes(host)
    assert [(place.name, str(place.address)) for place in looked_up] == [
        ("0.0.0.0/0", "192.0.2.1"),
        ("10.1.0.0/24", "10.1.0.1"),
        ("10.0.0.0/16", "10.0.0.1"),
    ]
    looked_up.clear()
    clients.append(client("10.1.0.2"))
    routes(host)
    assert [place.name for place in looked_up] == ["10.1.0.2", "0.0.0.0/0", "10.0.0.0/16"]


def test_more_subnets_than_are_looked_up_are_unchecked(
    clients: list[_Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not clients
    monkeypatch.setattr(proxy_checks, "_MOST_SUBNETS", 3)
    assert routes(HOST)[-1].unchecked == "those to more than 3 subnets without a client"


def test_more_clients_than_are_looked_up_are_unchecked(
    clients: list[_Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients += [client("10.2.0.2"), client("10.1.0.2")]
    monkeypatch.setattr(proxy_checks, "_MOST_CLIENTS", 2)
    assert [finding.unchecked for finding in routes(HOST)] == [None]
    monkeypatch.setattr(proxy_checks, "_MOST_CLIENTS", 1)
    assert routes(HOST)[-1].unchecked == "those to more than 1 clients"


def test_missing_interface_is_a_harm_unless_another_one_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "eth1").mkdir()
    monkeypatch.setattr(proxy_checks, "_INTERFACES", tmp_path)
    problem = "eth0 does not exist; allowed: one of eth1"
    remedy = "correct proxy.interface or proxy.interfaces"
    assert list(proxy_checks.interface(HOST)) == [Finding("interface", problem, remedy, harm=True)]
    proxies = Proxies.only(HOST.config.proxy.ports, ("eth0", "eth1"))
    host = replace(HOST, config=replace(HOST.config, proxies=proxies))
    assert list(proxy_checks.interface(host)) == [Finding("interface", problem, remedy, harm=False)]
