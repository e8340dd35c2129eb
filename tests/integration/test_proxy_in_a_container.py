"""A proxy in another network namespace behind a rule of NAT, as in a container, while the services run on the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import proxy_world
import pytest
from namespace_containers import CONTAINER_ADDRESSES, NAT, add_container
from polling import eventually
from proxy_world import Hosts, ProxyWorld, receive_rates

from mptcp_lab.download import Download, reset_subflows
from mptcp_lab.origin import PORT as ORIGIN_PORT
from mptcp_lab.origin import endless, start_origin
from mptcp_lab.services import Services
from mptcp_lab.squid import PORT, SQUID
from mptcp_lab.topology import ClientSpec, Topology, build

if TYPE_CHECKING:
    from collections.abc import Iterator


PORTS: Final = (PORT, PORT + 1)
TOPOLOGY: Final = Topology(clients=(ClientSpec(families=(4,)),))
SAID_SECONDS: Final = 5.0
SAID: Final = "proved on the wire, not in this kernel"


@pytest.fixture
def one_container() -> Iterator[ProxyWorld]:
    """The services on the host, and Squid in the container."""
    with build(TOPOLOGY) as lab:
        origin = start_origin(lab.origin)
        container = add_container(lab)
        SQUID.start(container, f"{lab.origin_address(4)}:{ORIGIN_PORT}")
        with proxy_world.serving(Hosts(lab, origin)) as world:
            yield world
        container.stop()


@pytest.fixture
def two_containers() -> Iterator[ProxyWorld]:
    """The services on the host, which only forwards to Squids in two containers."""
    with build(TOPOLOGY) as lab:
        origin = start_origin(lab.origin)
        containers = [add_container(lab, number) for number in range(2)]
        for container in containers:
            SQUID.start(container, f"{lab.origin_address(4)}:{ORIGIN_PORT}")
        services = Services(lab.proxy, ports=PORTS, sniffer={"kernel_view": False})
        with proxy_world.attended(Hosts(lab, origin), services) as world, services:
            yield world
        for container in containers:
            container.stop()


def test_one_cap_holds_for_containers_that_share_an_interface(two_containers: ProxyWorld) -> None:
    lab, client = two_containers.lab, two_containers.lab.client
    document = endless(two_containers.origin)
    downloads = [Download(lab, client, document, port=port) for port in PORTS]
    two_containers.wait_settled(2)
    assert 0.5e6 < receive_rates(client, 3.0)["eth0"] < 1.5e6
    assert all(download.running for download in downloads)
    (shared,) = two_containers.class_counters().values()
    assert shared.bytes > 100_000
    assert not findings(two_containers).keys() & {"translated connections", "marks of others"}
    assert "priority srcnat + 1" in two_containers.services.cli("plan").stdout
    for port, download in zip(PORTS, downloads, strict=True):
        reset_subflows(client, port)
        download.stop()


def unlisted(world: ProxyWorld) -> str | None:
    said: str | None = world.services.ask_sniffer("status")["kernel_view"]["unlisted"]
    return said


def metric(world: ProxyWorld) -> str:
    shown = world.proxy.run(
        "curl", "-sS", "--unix-socket", str(world.services.sockets.metrics), "http://localhost/metrics"
    )
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("mptcpthrottle_connections_elsewhere "))
    return line.split()[1]


def findings(world: ProxyWorld) -> dict[str, list[str]]:
    """The problems that `doctor` names, by subject."""
    problems: dict[str, list[str]] = {}
    for finding in json.loads(world.services.cli("doctor", "--json", check=False).stdout)["findings"]:
        if finding["problem"] is not None:
            problems.setdefault(finding["subject"], []).append(finding["problem"])
    return problems


def test_proxy_in_a_container_is_said_within_five_seconds(one_container: ProxyWorld) -> None:
    download = one_container.download()
    eventually(lambda: download.received > 0, "a download through the container")
    eventually(lambda: unlisted(one_container) is not None, "the statement", within=SAID_SECONDS)
    address = one_container.lab.proxy_address(4)
    said = f"connections to {address}:{PORT} are {SAID}"
    assert (unlisted(one_container) or "").startswith(said)
    assert f"error: {said}" in one_container.services.cli("status").stdout
    assert metric(one_container) == "1.0"
    problems = findings(one_container)
    assert problems["kernel list"] == [unlisted(one_container)]
    by_rule, *by_listener = problems["ends of connections"]
    chain = "PREROUTING of table nat (iptables-legacy)"
    assert by_rule == f"connections to port {PORT} are sent to {CONTAINER_ADDRESSES[0]}, port {PORT} (chain {chain})"
    listens = f" listens on port {PORT} in another network namespace"
    assert "squid" in {problem.removesuffix(listens).partition(" ")[0] for problem in by_listener}
    one_container.abort()

    one_container.proxy.run(*NAT, "-F", "PREROUTING")
    SQUID.start(one_container.proxy, f"{one_container.lab.origin_address(4)}:{ORIGIN_PORT}")
    one_container.begin_capped()
    eventually(lambda: unlisted(one_container) is None, "connections in this kernel", within=SAID_SECONDS)
    assert SAID not in one_container.services.cli("status").stdout
    assert not {"kernel list", "ends of connections"} & findings(one_container).keys()
    assert metric(one_container) == "0.0"
    assert one_container.sniffer.log_text().count(SAID) == 1


def test_short_downloads_are_not_said(world: ProxyWorld) -> None:
    for number in range(40):
        assert world.download(1000 if number % 2 else 300_000).wait().intact
        if number % 10 == 0:
            download = world.download()
            eventually(lambda: download.received > 0, "a download that is reset")  # noqa: B023
            world.abort(download)
        assert unlisted(world) is None
    eventually(lambda: world.services.ask_sniffer("status")["subflows"] == 0, "all subflows ended")
    assert unlisted(world) is None
    assert SAID not in world.sniffer.log_text()
