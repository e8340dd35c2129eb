"""The kernel as oracle: for real connections of every kind, the sniffer's account equals the kernel's."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pytest
from mptcp_monitor import Kernel, Opening, openings_of, priorities, read_events
from polling import eventually

from mptcp_lab.oracle import Ends, listed, published
from mptcp_lab.services import Services
from mptcp_lab.topology import WIFI, ClientSpec, Lab, Topology, build
from mptcp_lab.traffic import start_client, start_server
from mptcp_sniffer.segment import Flag, parse_ethernet
from mptcp_throttle.rpc import RpcError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.process import Process
    from mptcp_lab.topology import Client
    from mptcp_sniffer.segment import PackedEndpoint
    from mptcp_throttle.rpc import Json

PORT: Final = 8080
LAST_PORT: Final = 65432
"""Nothing listens there: what a client sends to it, after all else, marks the end of a capture."""

NAT_ADDRESS: Final = "10.3.0.1"
"""The router's address, to which it translates those of two clients (NAT)."""

REFUSED: Final = 6
"""JOINs that the kernel refuses at their third ACK, at most: one in a hundred connections."""

CLIENTS: Final = (
    ClientSpec("active"),
    ClientSpec("backup", wifi="backup"),
    ClientSpec("four"),
    ClientSpec("nat-one", families=(4,)),
    ClientSpec("nat-two", families=(4,)),
)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Clients with one to four subflows per connection, two of them behind one address, and an echo server."""
    with build(Topology(clients=CLIENTS)) as lab:
        four = lab.clients["four"]
        for number in (51, 52):
            four.ip([f"address add 10.2.0.{number}/24 dev wlan0"])
            four.ip([f"mptcp endpoint add 10.2.0.{number} dev wlan0 subflow"])
        for name in ("nat-one", "nat-two"):
            for link in (lab.topology.ethernet, lab.topology.wifi):
                source = str(lab.clients[name].address(link, 4))
                rule = ("-t", "nat", "-A", "POSTROUTING", "-s", source, "-o", "proxy", "-j", "MASQUERADE")
                lab.router.run("iptables-legacy", *rule)
        start_server(lab.proxy, PORT)
        yield lab


def drive(lab: Lab, client: Client, count: int, mode: Literal["drive", "hold"], seed: int) -> Process:
    addresses = [lab.proxy_address(family) for family in client.spec.families]
    return start_client(client, addresses, PORT, mode=mode, count=count, seed=seed)


def disturb(client: Client, choice: random.Random) -> None:
    """Make one address a backup or not, remove one for a moment, or reset the subflows of one."""
    endpoints = client.run("ip", "mptcp", "endpoint").stdout.splitlines()
    address, identifier = choice.choice([(line.split()[0], line.split()[2]) for line in endpoints])
    match choice.choice(["backup", "nobackup", "remove", "reset"]):
        case "remove":
            flags = client.spec.wifi == "backup"
            client.ip([f"mptcp endpoint delete id {identifier}"])
            time.sleep(0.1)
            client.ip([f"mptcp endpoint add {address} dev wlan0 id {identifier} subflow{' backup' if flags else ''}"])
        case "reset":
            client.run("ss", "-K", "-t", "src", f"[{address}]" if ":" in address else address)
        case flag:
            client.ip([f"mptcp endpoint change id {identifier} {flag}"])


def read_history(capture: Path) -> dict[str, Json]:
    argv: list[str | Path] = [sys.executable, "-m", "mptcp_lab.capture_reader", capture, "--ports", str(PORT), "--json"]
    return dict(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))


def with_shuffled_handshakes(capture: Path, choice: random.Random) -> Path:
    """The same capture, with the first three segments of each subflow in a random order."""
    data = capture.read_bytes()
    records, start = [], 24
    while start < len(data):
        end = start + 16 + int.from_bytes(data[start + 8 : start + 12], sys.byteorder)
        records.append(data[start:end])
        start = end
    beginning: dict[frozenset[PackedEndpoint], list[int]] = {}
    shuffled = list(records)
    for number, record in enumerate(records):
        segment = parse_ethernet(record[16:])
        assert segment is not None
        between = frozenset((segment.source, segment.destination))
        if segment.flags == Flag.SYN:
            beginning[between] = []
        if between in beginning:
            beginning[between].append(number)
            if len(beginning[between]) == 3:
                places = beginning.pop(between)
                for place, source in zip(places, choice.sample(places, 3), strict=True):
                    shuffled[place] = records[source]
    path = capture.with_name("shuffled.pcap")
    path.write_bytes(data[:24] + b"".join(shuffled))
    return path


def snapshot(services: Services) -> dict[Ends, tuple[int, bool]]:
    return published(services.ask_sniffer("snapshot")["connections"])


def test_history_of_600_connections_equals_the_kernels(lab: Lab) -> None:
    choice = random.Random(1)  # noqa: S311
    capture = lab.proxy.directory / "capture.pcap"
    monitor = lab.proxy.start("monitor", "stdbuf", "-oL", "ip", "mptcp", "monitor")
    # Without immediate mode, tcpdump loses what came in its last second. -U: what it has read is in the file.
    options = ("-i", "eth0", "--immediate-mode", "-U", "-s", "160", "-B", "65536", "-w", capture)
    dump = lab.proxy.start("tcpdump", "tcpdump", *options, "tcp")
    services = Services(lab.proxy, sniffer={"kernel_view": False})
    sniffer = services.start_sniffer()
    sniffer.wait_until(services.captures, "capturing")
    dump.wait_until(capture.exists, "capturing")
    drivers = [drive(lab, client, 120, "drive", number) for number, client in enumerate(lab.clients.values())]
    while any(driver.exit_status is None for driver in drivers):
        disturb(choice.choice(list(lab.clients.values())), choice)
        time.sleep(0.05)
    eventually(lambda: listed(lab.proxy, PORT) == {}, "all connections ended", within=90)
    lab.client.run("curl", "-s", f"http://{lab.proxy_address(4)}:{LAST_PORT}/", check=False)
    last = LAST_PORT.to_bytes(2)
    eventually(lambda: last in capture.read_bytes()[-200:], "the last packet captured")
    eventually(lambda: services.ask_sniffer("status")["subflows"] == 0, "all ends seen by the sniffer")
    for process in (dump, monitor):
        process.stop()
    kernel = read_events(monitor.log_text().splitlines())
    history = read_history(capture)
    shuffled = read_history(with_shuffled_handshakes(capture, choice))
    live = services.ask_sniffer("status")
    assert len({opening.ends.token for opening in kernel.subflows}) == 600
    assert_varied(kernel)
    assert_same(kernel, history)
    assert_same(kernel, shuffled)
    assert (live["connections"], live["subflows"], live["dropped"]) == (0, 0, 0)
    # The order in which two sockets capture a third ACK and an RST may differ, so their refused JOINs may too.
    assert 0 <= live["counters"]["subflows_opened"] - len(kernel.subflows) <= REFUSED


def assert_varied(kernel: Kernel) -> None:
    """Every kind of event has occurred; how often depends on how long the clients took."""
    subflows = kernel.subflows
    per_connection = Counter(Counter(opening.ends.token for opening in subflows).values())
    assert {2, 3, 4} <= per_connection.keys()
    assert sum(":" in opening.ends.client for opening in subflows) > 100
    assert sum(opening.ends.client == NAT_ADDRESS for opening in subflows) > 100
    assert sum(subflow.priorities[0] for subflow in subflows.values()) > 10
    assert sum(len(subflow.priorities) - 1 for subflow in subflows.values()) > 10
    assert sum(subflow.closed for subflow in subflows.values()) > 10


def assert_same(kernel: Kernel, history: dict[str, Json]) -> None:
    """The same subflows with the same flags, but for those that were proved and that the kernel refused.

    A JOIN whose third ACK finds its connection at its end is reset, without an event (net/mptcp/subflow.c,
    subflow_syn_recv_sock, `dispose_child`).
    """
    subflows = openings_of(history)
    refused = subflows.keys() - kernel.subflows.keys()
    assert all(subflows[opening]["reason"].startswith("RST") for opening in refused)
    assert len(refused) <= REFUSED
    for opening in refused:
        del subflows[opening]
    assert subflows.keys() == kernel.subflows.keys()
    assert {o: s["address_id"] for o, s in subflows.items()} == {o: s.address_id for o, s in kernel.subflows.items()}
    assert {o: s["backup_at_join"] for o, s in subflows.items()} == {
        o: s.priorities[0] for o, s in kernel.subflows.items()
    }
    told = {o: flags for o, flags in priorities(history["events"]).items() if o not in refused}
    assert changes(told) == changes({o: s.priorities for o, s in kernel.subflows.items()})
    assert {subflow["state"] for subflow in subflows.values()} == {"closed"}


def changes(values: dict[Opening, list[bool]]) -> dict[Opening, list[bool]]:
    """Without repetitions: the kernel reports an MP_PRIO that changes nothing too."""
    return {
        opening: [value for i, value in enumerate(flags) if i == 0 or flags[i - 1] != value]
        for opening, flags in values.items()
    }


def test_sniffer_started_amid_125_connections_knows_them_all(lab: Lab) -> None:
    services = Services(lab.proxy)
    holders = [drive(lab, client, 25, "hold", number) for number, client in enumerate(lab.clients.values())]
    eventually(lambda: len(listed(lab.proxy, PORT)) >= 2 * 125, "all connections open", within=60)
    lab.clients["active"].ip([f"mptcp endpoint change id {identifier(lab.clients['active'])} backup"])
    for _ in range(2):
        sniffer = services.start_sniffer()
        sniffer.wait_until(lambda: knows_all(services, lab), "in agreement with the kernel")
        assert len({ends.token for ends in snapshot(services)}) == 125
        lab.clients["active"].run("ss", "-K", "-t", "src", "10.2.0.2")
        lab.clients["backup"].ip([f"mptcp endpoint change id {identifier(lab.clients['backup'])} nobackup"])
        eventually(lambda: knows_all(services, lab), "in agreement after changes", within=3)
        sniffer.kill()
    for holder in holders:
        holder.stop()


def test_joins_to_connections_older_than_the_sniffer_are_found(lab: Lab) -> None:
    services = Services(lab.proxy)
    late = lab.clients["active"]
    late.ip(["mptcp endpoint flush"])
    holder = drive(lab, late, 20, "hold", 1)
    # Flag e of ss(8): fully established. The client adds no subflow to a connection before (net/mptcp/pm_kernel.c).
    eventually(lambda: late.run("ss", "-Hntimo").stdout.count("flags:Mmec") == 20, "all connections established")
    sniffer = services.start_sniffer()
    sniffer.wait_until(lambda: knows_all(services, lab), "in agreement with the kernel")
    late.ip([f"mptcp endpoint add {late.address(WIFI, family)} dev wlan0 subflow backup" for family in (4, 6)])
    eventually(lambda: len(listed(lab.proxy, PORT)) == 40, "joined")
    eventually(lambda: knows_all(services, lab), "in agreement after the JOINs", within=3)
    assert sum(backup for _, backup in snapshot(services).values()) == 20
    holder.stop()


def test_lost_capture_empties_the_table_until_it_is_back(lab: Lab) -> None:
    services = Services(lab.proxy)
    drive(lab, lab.clients["active"], 5, "hold", 1)
    eventually(lambda: len(listed(lab.proxy, PORT)) == 10, "all connections open")
    services.start_sniffer().wait_until(lambda: knows_all(services, lab), "in agreement with the kernel")
    lab.proxy.ip(["link set eth0 down"])
    eventually(lambda: snapshot(services) == {}, "forgotten", within=2)
    down = time.monotonic()
    while time.monotonic() < down + 1.5:  # longer than between two readings of the kernel list
        assert snapshot(services) == {}
        time.sleep(0.1)
    lab.proxy.ip(["link set eth0 up"])
    eventually(lambda: len(snapshot(services)) > 0 and knows_all(services, lab), "known again")


def test_kernel_event_ends_a_subflow_without_the_list(lab: Lab) -> None:
    services = Services(lab.proxy, sniffer={"kernel_list_interval": "1h"})
    services.start_sniffer().wait_until(services.captures, "capturing")
    client = lab.clients["active"]
    drive(lab, client, 20, "hold", 1)
    eventually(lambda: len(snapshot(services)) == 40 and knows_all(services, lab), "all subflows known")
    for family in client.spec.families:
        client.run("ss", "-K", "-t", "src", f"[{client.address(WIFI, family)}]")
    eventually(lambda: len(snapshot(services)) == 20 and knows_all(services, lab), "half of them gone")
    # The list, which a captured RST also asks for, is read 20 ms after it.
    assert services.ask_sniffer("status")["counters"]["closed_by_event"] >= 10


def identifier(client: Client) -> str:
    """The id of a client's first endpoint."""
    return client.run("ip", "mptcp", "endpoint").stdout.split()[2]


def knows_all(services: Services, lab: Lab) -> bool:
    try:
        return snapshot(services) == listed(lab.proxy, PORT)
    except RpcError:
        return False
