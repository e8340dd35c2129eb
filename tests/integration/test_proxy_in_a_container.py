"""A proxy in another network namespace behind a rule of NAT, as in a container, while the services run on the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import proxy_world
import pytest
from boxes import BOXES, NAT, add_box
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
def boxed() -> Iterator[ProxyWorld]:
    """The services on the host, and Squid in the box."""
    with build(TOPOLOGY) as lab:
        origin = start_origin(lab.origin)
        box = add_box(lab)
        SQUID.start(box, f"{lab.origin_address(4)}:{ORIGIN_PORT}")
        with proxy_world.serving(Hosts(lab, origin)) as world:
            yield world
        box.stop()


@pytest.fixture
def two_boxes() -> Iterator[ProxyWorld]:
    """The services on the host, which only forwards to Squids in two boxes."""
    with build(TOPOLOGY) as lab:
        origin = start_origin(lab.origin)
        boxes = [add_box(lab, number) for number in range(2)]
        for box in boxes:
            SQUID.start(box, f"{lab.origin_address(4)}:{ORIGIN_PORT}")
        services = Services(lab.proxy, ports=PORTS, sniffer={"kernel_view": False})
        with proxy_world.attended(Hosts(lab, origin), services) as world, services:
            yield world
        for box in boxes:
            box.stop()


def test_one_cap_holds_for_containers_that_share_an_interface(two_boxes: ProxyWorld) -> None:
    lab, client = two_boxes.lab, two_boxes.lab.client
    document = endless(two_boxes.origin)
    downloads = [Download(lab, client, document, port=port) for port in PORTS]
    two_boxes.wait_settled(2)
    assert 0.5e6 < receive_rates(client, 3.0)["eth0"] < 1.5e6
    assert all(download.running for download in downloads)
    (shared,) = two_boxes.class_counters().values()
    assert shared.bytes > 100_000
    assert not findings(two_boxes).keys() & {"translated connections", "marks of others"}
    assert "priority srcnat + 1" in two_boxes.services.cli("plan").stdout
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


def test_proxy_in_a_container_is_said_within_five_seconds(boxed: ProxyWorld) -> None:
    download = boxed.download()
    eventually(lambda: download.received > 0, "a download through the container")
    eventually(lambda: unlisted(boxed) is not None, "the statement", within=SAID_SECONDS)
    address = boxed.lab.proxy_address(4)
    said = f"connections to {address}:{PORT} are {SAID}"
    assert (unlisted(boxed) or "").startswith(said)
    assert f"error: {said}" in boxed.services.cli("status").stdout
    assert metric(boxed) == "1.0"
    problems = findings(boxed)
    assert problems["kernel list"] == [unlisted(boxed)]
    by_rule, *by_listener = problems["ends of connections"]
    chain = "PREROUTING of table nat (iptables-legacy)"
    assert by_rule == f"connections to port {PORT} are sent to {BOXES[0]}, port {PORT} (chain {chain})"
    listens = f" listens on port {PORT} in another network namespace"
    assert "squid" in {problem.removesuffix(listens).partition(" ")[0] for problem in by_listener}
    boxed.abort()

    boxed.proxy.run(*NAT, "-F", "PREROUTING")
    SQUID.start(boxed.proxy, f"{boxed.lab.origin_address(4)}:{ORIGIN_PORT}")
    boxed.begin_capped()
    eventually(lambda: unlisted(boxed) is None, "connections in this kernel", within=SAID_SECONDS)
    assert SAID not in boxed.services.cli("status").stdout
    assert not {"kernel list", "ends of connections"} & findings(boxed).keys()
    assert metric(boxed) == "0.0"
    assert boxed.sniffer.log_text().count(SAID) == 1


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
