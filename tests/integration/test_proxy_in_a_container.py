"""A proxy in another network namespace behind a rule of NAT, as in a container, while the services run on the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import proxy_world
import pytest
from polling import eventually
from proxy_world import Hosts, ProxyWorld

from mptcp_lab.host import Host
from mptcp_lab.origin import PORT as ORIGIN_PORT
from mptcp_lab.origin import start_origin
from mptcp_lab.process import run
from mptcp_lab.squid import PORT, SQUID
from mptcp_lab.topology import ClientSpec, Topology, build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.topology import Lab

TOPOLOGY: Final = Topology(clients=(ClientSpec(families=(4,)),))
NAT: Final = ("iptables-legacy", "-t", "nat")
BOX: Final = "172.17.0.2"
SAID_SECONDS: Final = 5.0
SAID: Final = "proved on the wire, not in this kernel"


def add_box(lab: Lab) -> Host:
    """A network namespace behind the proxy, to which the proxy translates its port as Docker does."""
    namespace = f"{lab.proxy.namespace.removesuffix('proxy')}box"
    run(["ip", "netns", "add", namespace])
    box = Host("box", namespace, lab.directory / "box")
    lab.proxy.ip(
        [
            f"link add box0 type veth peer name eth0 netns {namespace}",
            "address add 172.17.0.1/24 dev box0",
            "link set box0 up",
        ]
    )
    box.ip([f"address add {BOX}/24 dev eth0", "link set lo up", "link set eth0 up", "route add default via 172.17.0.1"])
    lab.proxy.sysctl({"net/ipv4/ip_forward": "1"})
    to_box = ("-i", "eth0", "-p", "tcp", "--dport", str(PORT), "-j", "DNAT", "--to-destination", f"{BOX}:{PORT}")
    lab.proxy.run(*NAT, "-A", "PREROUTING", *to_box)
    lab.proxy.run(*NAT, "-A", "POSTROUTING", "-s", f"{BOX}/32", "-o", "eth0", "-j", "MASQUERADE")
    return box


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
    assert by_rule == f"connections to port {PORT} are sent to {BOX}, port {PORT} (chain {chain})"
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
