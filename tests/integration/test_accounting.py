"""History against the wire: what networks and clients have carried, as a capture on the proxy's interface counts it."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import MEGABYTE, Hosts, ProxyWorld, serving
from proxy_world import hosts as build_hosts

from mptcp_lab.oracle import listed
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Topology
from mptcp_lab.traffic import start_client, start_server
from mptcp_sniffer.capture_file import read_frames
from mptcp_sniffer.segment import Flag, parse_ethernet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mptcp_sniffer.segment import PackedEndpoint

ECHO_PORT: Final = 8081
PORTS: Final = (PORT, ECHO_PORT)
NETWORKS: Final = ("wifi", "ethernet")
COLUMNS: Final = ("sent", "received", "ip_sent", "ip_received")
_ETHERNET_HEADER_BYTES: Final = 14

Carried = dict[tuple[str, str], int]
"""Bytes by network and column of the history."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Three clients; nobody sends segments that a network card would have to divide: they are counted as captured."""
    with build_hosts(Topology(clients=tuple(ClientSpec(name) for name in ("one", "two", "three")))) as built:
        built.lab.proxy.ip(["link set eth0 gso_max_segs 1"])
        for client in built.lab.clients.values():
            client.ip([f"link set {interface} gso_max_segs 1" for interface in ("eth0", "wlan0")])
        start_server(built.lab.proxy, ECHO_PORT)
        yield built


class Capture:
    """Headers of the proxy's segments, until the block ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.carried: Carried = {}


@contextmanager
def capturing(world: ProxyWorld) -> Iterator[Capture]:
    """Capture; `carried` is known after the block, and when all subflows have ended."""
    proxy = world.lab.proxy
    capture = Capture(proxy.directory / "accounting.pcap")
    capture.path.unlink(missing_ok=True)
    options = ("-i", "eth0", "--immediate-mode", "-U", "-s", "134", "-B", "65536", "-w", capture.path)
    dump = proxy.start("tcpdump", "tcpdump", *options, f"tcp port {PORT} or tcp port {ECHO_PORT}")
    dump.wait_until(capture.path.exists, "capturing")
    yield capture
    eventually(lambda: not any(listed(proxy, port) for port in PORTS), "all subflows ended", within=90)
    size = -1
    while size != (size := capture.path.stat().st_size):
        time.sleep(0.3)
    dump.stop()
    assert "0 packets dropped by kernel" in dump.log_text()
    capture.carried = carried_on_the_wire(capture.path)


def carried_on_the_wire(path: Path) -> Carried:
    """Without the payload that a client has sent before: the proxy's kernel counts it once."""
    sums = Counter[tuple[str, str]]()
    following: dict[PackedEndpoint, int] = {}
    with path.open("rb") as file:
        for frame in read_frames(file):
            segment = parse_ethernet(frame.data)
            assert segment is not None
            packet = frame.data[_ETHERNET_HEADER_BYTES:]
            is_v4 = packet[0] >> 4 == 4
            ip_bytes = int.from_bytes(packet[2:4]) if is_v4 else 40 + int.from_bytes(packet[4:6])
            payload = ip_bytes - (20 if is_v4 else 40) - 20 - len(segment.options)
            by_proxy = segment.source.port in PORTS
            client = ip_address((segment.destination if by_proxy else segment.source).address)
            network = next(link.network for link in (WIFI, ETHERNET) if client in link.v4 or client in link.v6)
            repeated = 0
            if not by_proxy:
                end = segment.sequence + payload + bool(segment.flags & Flag.SYN)
                first = segment.flags & Flag.SYN or segment.source not in following
                ahead = payload if first else (end - following[segment.source] + 2**31) % 2**32 - 2**31
                following[segment.source] = end if ahead >= 0 else following[segment.source]
                repeated = payload - min(max(ahead, 0), payload)
            verb = "sent" if by_proxy else "received"
            sums[network, verb] += payload - repeated
            sums[network, f"ip_{verb}"] += ip_bytes - repeated
    return dict(sums)


def carried_by_history(world: ProxyWorld) -> Carried:
    return {
        (network, column): sum(period[column] for period in world.services.ask("history", network, 3600)["periods"])
        for network in NETWORKS
        for column in COLUMNS
    }


def carried_by_status(world: ProxyWorld) -> Carried:
    networks = {network["name"]: network["totals"] for network in world.services.status()["networks"]}
    return {(network, column): networks[network][column] for network in NETWORKS for column in COLUMNS}


def differences(world: ProxyWorld, capture: Capture, uncaptured_bytes: int) -> dict[tuple[str, str], float]:
    """How far the history is from the capture, as a fraction; `uncaptured_bytes` more may have been sent."""
    known, nearest = carried_by_history(world), dict[tuple[str, str], float]()
    for key, value in capture.carried.items():
        if value > 100_000:
            more = uncaptured_bytes if key[1] in {"sent", "ip_sent"} else 0
            nearest[key] = (known[key] - min(max(known[key], value), value + more)) / value
    return nearest


def assert_exact(world: ProxyWorld, capture: Capture, uncaptured_bytes: int = 0) -> None:
    """Payload within 0.1 %, IP bytes within 5 %: ACKs with SACK blocks are larger, resets smaller than assumed."""

    def differing() -> dict[tuple[str, str], float]:
        allowed = {"sent": 0.001, "received": 0.001}
        return {
            key: value
            for key, value in differences(world, capture, uncaptured_bytes).items()
            if abs(value) > allowed.get(key[1], 0.05)
        }

    assert sum(capture.carried.values()) > MEGABYTE
    with suppress(AssertionError):
        eventually(lambda: not differing(), "the history equals the capture", within=20)
    assert differing() == {}


def test_history_of_510_short_connections_equals_the_capture(hosts: Hosts) -> None:
    with serving(hosts, ports=PORTS) as world:
        with capturing(world) as capture:
            clients = [
                start_client(
                    client, [hosts.lab.proxy_address(f) for f in (4, 6)], ECHO_PORT, mode="drive", count=170, seed=n
                )
                for n, client in enumerate(hosts.lab.clients.values())
            ]
            eventually(lambda: all(c.exit_status is not None for c in clients), "all connections used", within=120)
        assert_exact(world, capture)
        eventually(lambda: carried_by_status(world) == carried_by_history(world), "the history written")
        networks = {network["name"]: network["totals"] for network in world.services.status()["networks"]}
        assert sum(networks[network]["closed"] for network in NETWORKS) >= 1000
        assert world.services.status()["daemon"]["kernel_program"]["totals_lost"] == 0


def wait_for_more(world: ProxyWorld, before: int) -> int:
    """What the history says that Wi-Fi has carried, once that is 5 MB more than before."""
    eventually(lambda: carried_by_history(world)["wifi", "sent"] > before + 5 * MEGABYTE, "more in the history")
    return carried_by_history(world)["wifi", "sent"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_transfer_over_a_restart_is_counted_once(hosts: Hosts, end: str) -> None:
    with serving(hosts, ports=PORTS) as world:
        with capturing(world) as capture:
            world.download()
            before = wait_for_more(world, 0)
            (world.daemon.stop if end == "stop" else world.daemon.kill)()
            world.start_daemon()
            wait_for_more(world, before)
            world.abort()
        # In one of some ten runs the sockets had sent 5 kB more over Ethernet than was captured; why is not known. What
        # counts twice would be the bytes between two flushes, 600 kB at the cap.
        assert_exact(world, capture, uncaptured_bytes=8 * 1500)


def test_killed_daemon_has_written_all_but_the_last_10_s(hosts: Hosts) -> None:
    with serving(hosts, ports=PORTS) as world:
        world.download()
        eventually(lambda: carried_by_history(world)["wifi", "sent"] > 0, "a part in the history")
        world.daemon.kill()
        killed = time.time()
        world.abort()
        world.start_daemon()
        periods = world.services.ask("history", "wifi", 600)["periods"]
        assert killed - 10 <= periods[-1]["start"] <= killed


def test_history_names_a_client_by_its_address(hosts: Hosts) -> None:
    with serving(hosts, ports=PORTS) as world:
        one = hosts.lab.clients["one"]
        assert world.download(3 * MEGABYTE, one).wait().intact
        address = str(one.address(WIFI, 4))
        eventually(lambda: world.services.ask("history", address, 600)["periods"], "in the history", within=15)
        lines = world.services.cli("history", address, "--since", "10m", "--csv").stdout.splitlines()
        assert lines[0].startswith("start,sent,")
        assert "IP bytes in all" in world.services.cli("history", address).stdout
        other = str(hosts.lab.clients["two"].address(WIFI, 4))
        assert "nothing is known" in world.services.cli("history", other).stdout
        refused = world.services.cli("history", "nowhere", check=False)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
