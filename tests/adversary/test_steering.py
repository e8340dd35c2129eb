"""What clients, hosts off the path and other programs on the proxy can do to steering."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest
from polling import eventually
from proxy_world import MEGABYTE, ProxyWorld, receive_rates
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from steered_records import SteeredRecords, records_of
from steered_subflows import are_backups, are_regular, priorities, steering_counters, subflows_at_proxy

from mptcp_lab import oracle
from mptcp_lab.adversary.attack import POUR_PORT, Attack, Site
from mptcp_lab.adversary.escapes import (
    ALTERNATING,
    CHURNING,
    CLOSED_WINDOW,
    CROWDING,
    CROWDING_LATE,
    GUESSING,
    REUSING,
    SILENT,
)
from mptcp_lab.adversary.off_path import start_forger
from mptcp_lab.curve import MEGA
from mptcp_lab.host import Host
from mptcp_lab.sampler import PathMeter
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI
from mptcp_lab.traffic import program

CAP: Final = 1e6
SECONDS: Final = 3.0
PER_SECOND: Final = 100.0
WINDOW_SECONDS: Final = 0.25
CROWD: Final = 11
"""The subflows over Ethernet of a client that crowds."""
MOST_PROCESSOR_TIME: Final = 0.5
"""Of one processor, for both services together. A flood of priorities takes 0.15."""

# Marks of packets (bpf/steering.h).
ACK_MARK: Final = 0x4D50_0000
NO_SLOT: Final = 0xFFFF

_SEND_MARKED: Final = """\
import socket, sys
interface, mark, packet = sys.argv[1:]
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as channel:
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, int(mark))
    channel.bind((interface, 0))
    channel.send(bytes.fromhex(packet))
"""


@pytest.fixture
def records(world: ProxyWorld) -> Iterator[SteeredRecords]:
    """What the programs of this world's daemon know."""
    world.begin_capped()
    eventually(lambda: are_backups(world), "held back", seen=lambda: subflows_at_proxy(world))
    with records_of(world.daemon.pid) as found:
        yield found


def throughout(seconds: float, *holds: Callable[[], bool]) -> None:
    """Each of these holds whenever it is looked at."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for number, each in enumerate(holds):
            assert each(), number
        time.sleep(0.02)


def processor_seconds(world: ProxyWorld) -> float:
    """What both services have used so far."""
    stats = (Path(f"/proc/{service.pid}/stat").read_text("ascii") for service in (world.daemon, world.sniffer))
    ticks = (int(number) for stat in stats for number in stat.rpartition(")")[2].split()[11:13])
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def capped_sockets(world: ProxyWorld) -> list[oracle.Socket]:
    """The proxy's sockets of the raw client's subflows over Ethernet."""
    sockets = oracle.sockets(world.proxy, POUR_PORT)
    return [socket for socket in sockets if ip_address(socket.peer.address) in ETHERNET.v4]


def are_paced(world: ProxyWorld) -> bool:
    """Whether all these have a pace, and there is one."""
    found = [re.search(r"pacing_rate \S+/", socket.info) is not None for socket in capped_sockets(world)]
    return bool(found) and all(found)


def held(world: ProxyWorld) -> int:
    """How many of these MPTCP takes for backups."""
    return sum("B" in oracle.flags(socket) for socket in capped_sockets(world))


@contextmanager
def carried_out(attack: Attack, world: ProxyWorld) -> Iterator[int]:
    """While it is carried out, once the attacker's first subflow, from this port, is capped."""
    with attack.begin(Site(world.lab, world.origin, world.services)) as act:
        (capped,) = world.wait_capped()
        with act():
            yield capped.client_port


@contextmanager
def begun(attack: Attack, world: ProxyWorld) -> Iterator[None]:
    """While it is carried out, whatever is capped before."""
    with attack.begin(Site(world.lab, world.origin, world.services)) as act, act():
        yield


# A host off the path


@pytest.mark.parametrize("network", ["ethernet", "wifi"])
def test_forged_backup_makes_no_subflow_one(records: SteeredRecords, world: ProxyWorld, network: str) -> None:
    (capped,) = world.capped()
    (target,) = (subflow for subflow in world.services.subflows() if subflow.network == network)
    site = Site(world.lab, world.origin, world.services)
    forger = start_forger(site, "signals", target.client, target.client_port, "backup", PER_SECOND)

    def is_steered() -> bool:
        record = records.of_port(capped.client_port)
        return record is not None and bool(record.is_capped) and not record.client_wants_backup

    throughout(SECONDS, is_steered, lambda: not are_backups(world, "wifi"), lambda: len(world.capped()) == 1)
    forger.stop()


def test_forged_regular_takes_no_backup_away(records: SteeredRecords, world: ProxyWorld) -> None:
    client, (capped,) = world.lab.client, world.capped()
    address = client.address(ETHERNET, 4)
    client.ip([f"mptcp endpoint add {address} id 99 dev eth0", f"mptcp endpoint change {address} backup"])

    def is_backup() -> bool:
        record = records.of_port(capped.client_port)
        return record is not None and bool(record.client_wants_backup)

    try:
        eventually(is_backup, "the client wants a backup")
        site = Site(world.lab, world.origin, world.services)
        forger = start_forger(site, "signals", capped.client, capped.client_port, "regular", PER_SECOND)
        throughout(SECONDS, is_backup, lambda: are_backups(world))
        forger.stop()
    finally:
        client.ip(["mptcp endpoint delete id 99"])


def test_guessed_sequence_number_needs_an_acknowledgment_that_tcp_takes(world: ProxyWorld) -> None:
    with carried_out(GUESSING, world) as port, records_of(world.daemon.pid) as records:
        heard = world.proxy.counter("TcpInSegs")

        def is_steered() -> bool:
            record = records.of_port(port)
            return record is not None and not record.client_wants_backup

        throughout(SECONDS, is_steered)
        assert world.proxy.counter("TcpInSegs") - heard > PER_SECOND * SECONDS


def test_forged_acks_without_data_acks_make_no_path_sick(world: ProxyWorld) -> None:
    download = world.download()
    world.wait_capped()
    (wifi,) = (subflow for subflow in world.services.subflows() if subflow.network == "wifi")
    site = Site(world.lab, world.origin, world.services)
    with download.suspended():
        forger = start_forger(site, "signals", wifi.client, wifi.client_port, "backup", PER_SECOND)
        throughout(SECONDS, lambda: len(world.capped()) == 1)
        forger.stop()
    assert " is sick" not in world.daemon.log_text()


# Another program on the proxy


@contextmanager
def way_to_ingress(proxy: Host) -> Iterator[str]:
    """An interface; what is sent to it arrives at eth0 with its mark."""
    proxy.ip(["link add marked type veth peer name unmarked", "link set marked up", "link set unmarked up"])
    try:
        everything = "protocol all u32 match u32 0 0"
        proxy.tc(
            [
                "qdisc add dev marked clsact",
                f"filter add dev marked egress {everything} action mirred ingress redirect dev eth0",
            ]
        )
        yield "marked"
    finally:
        proxy.ip(["link delete marked"])


def send_marked(world: ProxyWorld, mark: int, packet: Ether) -> None:
    """Once."""
    with way_to_ingress(world.proxy) as interface:
        world.proxy.run(sys.executable, "-c", _SEND_MARKED, interface, str(mark), bytes(packet).hex())


def to_client(world: ProxyWorld) -> IP:
    """The header of an IPv4 packet to the first client."""
    return Ether() / IP(src=str(world.lab.proxy_address(4)), dst=str(world.lab.client.address(ETHERNET, 4)))


@pytest.mark.parametrize("kind", ["no slot", "no TCP", "short"])
def test_marked_packet_that_names_no_subflow_is_dropped(records: SteeredRecords, world: ProxyWorld, kind: str) -> None:
    before = records.all().keys()
    slot = next(iter(records.all().values())).slot
    tcp = to_client(world) / TCP(sport=PORT, dport=40000, flags="A") / bytes(40)
    mark, packet = {
        "no slot": (ACK_MARK | NO_SLOT, tcp),
        "no TCP": (ACK_MARK | slot, to_client(world) / UDP(sport=PORT, dport=40000) / bytes(40)),
        "short": (ACK_MARK | slot, Ether(bytes(tcp)[:40])),
    }[kind]
    dropped = steering_counters(world)["not_told"]
    send_marked(world, mark, packet)
    eventually(lambda: steering_counters(world)["not_told"] == dropped + 1, "dropped", within=3)
    assert records.all().keys() == before
    eventually(lambda: are_backups(world), "still held back", within=1)


def test_marked_packet_of_a_held_subflow_is_corrected(records: SteeredRecords, world: ProxyWorld) -> None:
    (capped,) = world.capped()
    record = records.of_port(capped.client_port)
    assert record is not None
    again = steering_counters(world)["again"]
    packet = to_client(world) / TCP(sport=PORT, dport=40000, flags="A") / bytes(40)

    def is_corrected() -> bool:
        # One that arrives in a pulse, or just before one, has nothing to correct.
        send_marked(world, ACK_MARK | record.slot, packet)
        return steering_counters(world)["again"] > again

    eventually(is_corrected, "told again", within=10)
    eventually(lambda: are_backups(world), "held back", within=1)


# A client


def test_client_that_alternates_priorities_is_paced_and_delays_no_other(world: ProxyWorld) -> None:
    other = world.lab.clients["victim"]
    alone = world.download(MEGABYTE, other).wait().seconds
    with carried_out(ALTERNATING, world):
        eventually(lambda: are_paced(world), "paced", within=2)
        began, used = time.monotonic(), processor_seconds(world)
        throughout(SECONDS, lambda: are_paced(world))
        result = world.download(MEGABYTE, other).wait()
        share = (processor_seconds(world) - used) / (time.monotonic() - began)
    assert result.intact
    assert result.seconds < 3 * alone + 1
    assert share < MOST_PROCESSOR_TIME


def test_client_of_which_mptcp_can_be_told_nothing_is_paced(world: ProxyWorld) -> None:
    with carried_out(SILENT, world):
        eventually(lambda: are_paced(world), "paced", within=2)
        before = priorities(world.proxy)
        throughout(SECONDS, lambda: are_paced(world))
        assert priorities(world.proxy) == before


def test_preferred_subflow_beyond_the_ninth_leaves_a_pace(world: ProxyWorld) -> None:
    with begun(CROWDING, world):
        eventually(lambda: len(capped_sockets(world)) == CROWD and are_paced(world), "all paced")
        assert held(world) == 0


def test_capped_subflows_beyond_the_ninth_are_held_back(world: ProxyWorld) -> None:
    with begun(CROWDING_LATE, world):
        eventually(lambda: held(world) == len(capped_sockets(world)) == CROWD, "all held back")


def test_subflow_on_a_port_of_an_earlier_one_is_no_backup(world: ProxyWorld) -> None:
    with carried_out(REUSING, world) as first, records_of(world.daemon.pid) as records:
        looks, wanted, capped = 0, 0, 0
        began = time.monotonic()
        while time.monotonic() < began + SECONDS:
            for ends, record in records.all().items():
                if ends.client.port != first:
                    looks += 1
                    wanted += record.client_wants_backup
                    capped += record.is_capped
        # It is one for the moment between MP_PRIO and the reset.
        assert looks > 0
        assert wanted < 0.2 * looks
        assert capped > 0.8 * looks


def test_new_subflow_has_the_class_of_another_before_the_daemon_knows_it(world: ProxyWorld) -> None:
    with carried_out(CHURNING, world):
        eventually(lambda: world.assignments() != [], "in a class")
        with world.daemon.suspended():
            assert receive_rates(world.lab.clients["raw"], SECONDS)["eth0"] < 1.5 * CAP


def test_client_without_a_receive_window_on_wifi_has_one_path_at_a_time(world: ProxyWorld) -> None:
    links = ETHERNET.interface, WIFI.interface
    with carried_out(CLOSED_WINDOW, world), PathMeter(world.lab.clients["raw"], links) as meter:
        began = time.monotonic()
        eventually(lambda: meter.interfaces[-1].at > began + 2 * SECONDS, "sampled")
    curves = [meter.received(link) for link in links]
    # Not in the first window: Ethernet carries what it was given before Wi-Fi had joined.
    steps = [began + number * WINDOW_SECONDS for number in range(1, round(2 * SECONDS / WINDOW_SECONDS))]
    rates = [tuple(curve.mbps(at, at + WINDOW_SECONDS) * MEGA for curve in curves) for at in steps]
    are_used = [(ethernet > 3 * CAP, wifi > 0.1 * WIFI.rate.bits_per_second) for ethernet, wifi in rates]
    # Which of them depends on whether MPTCP takes Wi-Fi for stale, which it does sooner or later.
    assert any(map(any, are_used)), rates
    assert (True, True) not in are_used, rates


def test_subflow_for_which_there_is_no_record_is_paced(world: ProxyWorld) -> None:
    with records_of(world.daemon.pid) as records:
        records.fill()
        world.begin_paced()
        eventually(lambda: steering_counters(world)["not_steered"] > 0, "counted")
        assert are_regular(world)
        world.wait_settled()
        assert receive_rates(world.lab.client, SECONDS)["eth0"] < 1.2 * CAP
        records.empty()
        eventually(lambda: are_backups(world), "held back", seen=lambda: subflows_at_proxy(world))


def test_records_of_short_connections_go(records: SteeredRecords, world: ProxyWorld) -> None:
    before = len(records.all())
    client = world.lab.clients["victim"]
    joining = client.start("join", *program("join", POUR_PORT, 30, 3, world.lab.proxy_address(4)))
    eventually(lambda: len(records.all()) > before + 20, "records")
    eventually(lambda: len(records.all()) <= before, "gone", within=15)
    joining.stop()
