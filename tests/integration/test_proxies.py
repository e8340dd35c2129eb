"""Two proxies on one host: the same client is in other access networks, with other caps, at the port of each."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import LONG, Hosts, ProxyWorld, proxy_world, receive_rates, serving

from mptcp_lab import oracle
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI, AccessLink, ClientSpec, Topology
from mptcp_lab.traffic import program
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_throttle.model import AccessNetwork

WORK, GUESTS = 18080, 20007
PORTS: Final[dict[str, list[int | str]]] = {"work": [PORT, WORK], "guests": ["20000-20099"]}
OF_WORK, OF_GUESTS = Rate.parse("1mbit"), Rate.parse("3mbit")
"""The caps: of Ethernet, and of Wi-Fi."""


def networks(kind: RateKind) -> tuple[AccessNetwork, ...]:
    """Those of both proxies have the same subnets; guests prefer Ethernet."""
    wifi, ethernet = WIFI_FIRST
    return (
        replace(wifi, proxy="work"),
        replace(ethernet, proxy="work", rates={kind: OF_WORK}),
        replace(wifi, name="guest-wifi", proxy="guests", preference=2, rates={kind: OF_GUESTS}),
        replace(ethernet, name="guest-ethernet", proxy="guests", preference=1, rates={}),
    )


NETWORKS: Final = networks(RateKind.CAP)
NAMES: Final = {
    (WORK, ETHERNET): "ethernet",
    (WORK, WIFI): "wifi",
    (GUESTS, ETHERNET): "guest-ethernet",
    (GUESTS, WIFI): "guest-wifi",
}


@contextmanager
def transfers(world: ProxyWorld, server: str, *client: object) -> Iterator[None]:
    """The client has a transfer with a server on each port that does not end before the test does."""
    address, ports = world.lab.proxy_address(4), (WORK, GUESTS)
    protocol = ["mptcp"] if server == "sink" else []
    running = [world.proxy.start(f"{server}-{port}", *program(server, port, *protocol)) for port in ports]
    for process in running:
        process.wait_until(lambda: all(world.proxy.listens(port, mptcp=True) for port in ports), "listening")
    for port in ports:
        command = program(client[0], port, *client[1:], address)
        running.append(world.lab.client.start(f"{client[0]}-{port}", *command))
    try:
        yield
    finally:
        for process in reversed(running):
            process.stop()
        for port in ports:
            world.lab.client.run("ss", "-K", "-t", "dport", "=", f":{port}")


def ports_of_client(world: ProxyWorld) -> dict[tuple[int, AccessLink], int]:
    """The client's ports of the subflows, by the proxy's port and the client's link, once there are all four."""

    def found() -> dict[tuple[int, AccessLink], int]:
        return {
            (port, link): each.peer.port
            for port in (WORK, GUESTS)
            for each in oracle.sockets(world.proxy, port)
            for link in (ETHERNET, WIFI)
            if each.own.port == port and ip_address(each.peer.address) in link.v4
        }

    eventually(lambda: len(found()) == len(NAMES), "two subflows of both connections")
    return found()


def wait_restrained(world: ProxyWorld, client_ports: set[int]) -> None:
    """Wait until the kernel programs pace these subflows or hold them back, and no others."""

    def found() -> set[int]:
        return {
            each.peer.port
            for port in (PORT, WORK, GUESTS)
            for each in oracle.sockets(world.proxy, port)
            if each.own.port == port and ("B" in oracle.flags(each) or re.search(r"pacing_rate \S+/", each.info))
        }

    eventually(lambda: found() == client_ports, f"{client_ports} restrained", seen=found)


def rates(world: ProxyWorld, counter: str, seconds: float = 4) -> dict[str, float]:
    """What the subflows carry in the next seconds, in bits per second, by their access network."""

    def look() -> dict[str, int]:
        return {
            name: sum(
                int(each.info.split(f"{counter}:")[1].split()[0])
                for each in oracle.sockets(world.proxy, port)
                if each.own.port == port and ip_address(each.peer.address) in link.v4 and f"{counter}:" in each.info
            )
            for (port, link), name in NAMES.items()
        }

    before, began = look(), time.monotonic()
    eventually(lambda: time.monotonic() > began + seconds, "some seconds")
    after, elapsed = look(), time.monotonic() - began
    return {name: 8 * (after[name] - before[name]) / elapsed for name in NAMES.values()}


def wait_held(world: ProxyWorld, counter: str) -> None:
    """Wait until each proxy has its own cap, and both have a path without one."""

    def is_held() -> bool:
        seen.append(rates(world, counter))
        found = seen[-1]
        return (
            0.3 < found["ethernet"] / OF_WORK.bits_per_second < 1.5
            and 0.5 < found["guest-wifi"] / OF_GUESTS.bits_per_second < 1.5
            and found["wifi"] > 6e6
            and found["guest-ethernet"] > 2e6
        )

    seen: list[dict[str, float]] = []
    eventually(is_held, "both caps", within=60, seen=lambda: seen[-3:])


@pytest.mark.parametrize("world", [{"steering": True}, {"steering": False}], indirect=True, ids=["steering", "paces"])
def test_downloads_of_a_client_have_the_cap_of_their_proxy(world: ProxyWorld) -> None:
    with transfers(world, "pour", "drain", 3600):
        port_of = ports_of_client(world)
        capped = {
            (port_of[WORK, ETHERNET], OF_WORK.bits_per_second),
            (port_of[GUESTS, WIFI], OF_GUESTS.bits_per_second),
        }
        eventually(lambda: {(each.client_port, each.rate) for each in world.capped()} == capped, "a cap at each proxy")
        located = {each.client_port: each.network for each in world.services.subflows()}
        assert located == {port_of[where]: name for where, name in NAMES.items()}
        wait_restrained(world, {port for port, _ in capped})
        wait_held(world, "bytes_acked")
        assert {each["name"]: each["proxy"] for each in world.services.status()["networks"]} == {
            network.name: network.proxy for network in NETWORKS
        }
        client = str(world.lab.client.address(ETHERNET, 4))
        world.services.cli("set-rate", "--client", client, "ethernet", "unlimited")
        assert {(each.network, each.rate) for each in world.capped()} == {("guest-wifi", OF_GUESTS.bits_per_second)}
        refused = world.services.cli("set-rate", "--client", "192.0.2.1", "ethernet", "1mbit", check=False)
        assert "192.0.2.1: is in no access network" in refused.stderr


@pytest.mark.parametrize("world", [{}], indirect=True)
def test_ports_that_changed_their_proxy_have_its_caps_after_a_restart(world: ProxyWorld) -> None:
    with transfers(world, "pour", "drain", 3600):
        port_of = ports_of_client(world)
        eventually(lambda: {each.network for each in world.capped()} == {"ethernet", "guest-wifi"}, "capped")
        world.services.configure_ports({"work": ["20000-20099"], "guests": [PORT, WORK]})
        world.hang_up()
        eventually(lambda: "reload refused: proxies " in world.daemon.log_text(), "refused")
        world.daemon.kill()
        world.sniffer.kill()
        world.services.start_sniffer()
        world.start_daemon()
        expected = {
            (port_of[WORK, WIFI], "guest-wifi", OF_GUESTS.bits_per_second),
            (port_of[GUESTS, ETHERNET], "ethernet", OF_WORK.bits_per_second),
        }
        eventually(
            lambda: {(each.client_port, each.network, each.rate) for each in world.capped()} == expected,
            "the caps of the other proxy",
            seen=world.services.subflows,
        )
        wait_restrained(world, {port for port, _, _ in expected})
        free = port_of[WORK, ETHERNET]
        eventually(lambda: world.acked_rate(free, 2) > 3e6, "no cap of before is left")


def test_uploads_of_a_client_have_the_cap_of_their_proxy(hosts: Hosts) -> None:
    with (
        serving(hosts, networks(RateKind.UPLINK_CAP), ports=PORTS) as world,
        transfers(world, "sink", "send", "mptcp", 10 * LONG),
    ):
        port_of = ports_of_client(world)
        capped = {port_of[WORK, ETHERNET], port_of[GUESTS, WIFI]}
        eventually(
            lambda: {each.client_port for each in world.services.subflows() if each.uplink_kind == "cap"} == capped,
            "a cap at each proxy",
        )
        wait_held(world, "bytes_received")


def test_subflow_to_a_port_of_the_other_proxy_keeps_the_cap_of_its_own() -> None:
    """The proxy's host announces an address with a port that the other proxy has, where no socket of that listens."""
    with proxy_world(Topology((ClientSpec(wifi=None),)), NETWORKS, ports=PORTS) as world:
        client, proxy = world.lab.client, world.proxy
        first = world.lab.proxy_address(4)
        second = first + 20
        client.ip([f"route replace {first} via {WIFI.v4[1]} dev {WIFI.interface}"])
        proxy.ip([f"address add {second}/24 dev eth0"])
        proxy.run("ip", "mptcp", "endpoint", "add", str(second), "dev", "eth0", "signal", "port", str(GUESTS))
        world.download()
        for _ in range(2):
            (capped,) = world.wait_capped()
            assert (capped.network, capped.rate) == ("ethernet", OF_WORK.bits_per_second)
            assert [each.own.port for each in oracle.sockets(proxy, capped.client_port)] == [GUESTS]
            wait_restrained(world, {capped.client_port})
            eventually(lambda: receive_rates(client, 2)["eth0"] < 1.5 * OF_WORK.bits_per_second, "the cap of its proxy")
            # The table is read from the kernel's list now.
            world.sniffer.kill()
            world.services.start_sniffer()
            world.services.wait_ready()
