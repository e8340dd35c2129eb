"""What `status` and `connections` say is applied is what flows."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import proxy_world
import pytest
from deaf_client import ignore_priorities
from polling import eventually
from proxy_world import (
    EXECUTABLES,
    LONG,
    PACKET_CLASSIFIERS,
    Hosts,
    ProxyWorld,
    ethernet_with,
    receive_rates,
    send_rates,
    serving,
)

from mptcp_lab.process import run
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET
from mptcp_throttle.model import RateKind
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from mptcp_lab.host import Host

WITHIN = 5.0
PACE_ALONE = "its packets do not reach its class, only its pace limits it"

OVERWRITING = (
    (
        f"iptables-legacy -t mangle -A POSTROUTING -p tcp --sport {PORT} -j MARK --set-mark 0",
        f"iptables-legacy -t mangle -D POSTROUTING -p tcp --sport {PORT} -j MARK --set-mark 0",
    ),
    (
        "nft add table ip others; nft add chain ip others post '{ type filter hook postrouting priority 0; }';"
        f" nft add rule ip others post tcp sport {PORT} meta priority set 1:1",
        "nft delete table ip others",
    ),
)
"""The commands that overwrite what leads to a class, a mark or a priority, and those that undo it."""


def ethernet_subflow(world: ProxyWorld) -> Json:
    connections = world.services.ask("connections")["connections"]
    subflows = [subflow for connection in connections for subflow in connection["subflows"]]
    return next(subflow for subflow in subflows if subflow["network"] == "ethernet")


def wait_reported(world: ProxyWorld, why: str, rate: object) -> str:
    """Wait until the subflow is reported as not enforced, everywhere; the line in the daemon's status."""
    eventually(lambda: ethernet_subflow(world)["not_enforced"] is not None, "reported", WITHIN)
    (line,) = world.services.status()["daemon"]["not_enforced"]
    assert str(line).startswith("client 10.1.0.2:")
    assert str(line).endswith(f": {why}")
    assert f"not enforced: {line}" in world.services.cli("status").stdout
    assert f"{rate} (not enforced)" in world.services.cli("connections").stdout
    assert "1 subflows: rate not enforced; client=10.1.0.2:" in world.daemon.log_text()
    return str(line)


def wait_resolved(world: ProxyWorld) -> None:
    eventually(lambda: ethernet_subflow(world)["not_enforced"] is None, "not reported any more", WITHIN)
    assert "resolved: the rates of all subflows are enforced" in world.daemon.log_text()


@pytest.mark.parametrize(
    ("world", "why"),
    [
        *(({"classifier": classifier, "steering": False}, PACE_ALONE) for classifier in PACKET_CLASSIFIERS),
        ({"classifier": "nft"}, "its packets do not reach its class"),
    ],
    indirect=["world"],
    ids=[*PACKET_CLASSIFIERS, "steering"],
)
def test_mark_that_another_program_overwrites_is_reported(world: ProxyWorld, why: str) -> None:
    world.begin_settled()
    assert ethernet_subflow(world)["not_enforced"] is None
    overwrite, undo = OVERWRITING[world.services.status()["daemon"]["classifier"] == "nft"]
    world.proxy.run("sh", "-ec", overwrite)
    try:
        line = wait_reported(world, why, "1mbit")
        found = world.services.cli("doctor", check=False).stdout
        assert f"a rate is not enforced: {line}" in found
        assert "marks of others: " in found
    finally:
        world.proxy.run("sh", "-ec", undo)
    wait_resolved(world)


@pytest.mark.parametrize("world", ["socket", "nft", "rules"], indirect=True)
def test_rates_shown_are_those_that_the_client_receives(world: ProxyWorld) -> None:
    world.begin_settled()
    received = receive_rates(world.lab.client, 4)
    networks = {network["name"]: network["sent_bps"] for network in world.services.status()["networks"]}
    assert 0.5 < networks["ethernet"] / received["eth0"] < 1.5
    assert 0.5 < networks["wifi"] / received["wlan0"] < 1.5
    shown = ethernet_subflow(world)
    assert 0.5 < shown["sent_bps"] / received["eth0"] < 1.5
    assert shown["sent_bps_10s"] > 0
    assert (world.services.status()["daemon"]["not_enforced"], shown["not_enforced"]) == ([], None)


# The lab's hosts have a routing table for each of their addresses (ip-rule(8)): that of the proxy's.
FROM_OWN_ADDRESS = 1


@contextmanager
def second_interface(world: ProxyWorld) -> Iterator[None]:
    """From the proxy to the router, beside `eth0`; the proxy sends what is for Ethernet addresses through it."""
    proxy, router = world.proxy, world.lab.router
    proxy.ip([f"link add eth1 type veth peer name proxy1 netns {router.namespace}"])
    try:
        router.ip(["address add 192.0.2.1/24 dev proxy1", "link set proxy1 up"])
        proxy.ip(["address add 192.0.2.2/24 dev eth1", "link set eth1 up"])
        proxy.ip([f"route add {ETHERNET.v4} via 192.0.2.1 table {FROM_OWN_ADDRESS}"])
        yield
    finally:
        proxy.ip(["link delete eth1"])


@pytest.mark.parametrize(
    ("classifier", "steering", "cap", "limit", "why"),
    [
        ("socket", False, Rate.parse("1mbit"), None, PACE_ALONE),
        ("socket", False, Rate.parse("100kbit"), None, PACE_ALONE),
        ("socket", True, Rate.parse("1mbit"), None, PACE_ALONE),
        ("socket", True, None, Rate.parse("2mbit"), "its packets do not reach its class"),
        ("rules", True, None, Rate.parse("2mbit"), "its packets do not reach its class"),
    ],
)
def test_packets_that_leave_through_a_second_interface_are_reported(
    hosts: Hosts, classifier: str, steering: bool, cap: Rate | None, limit: Rate | None, why: str
) -> None:
    networks = ethernet_with({RateKind.CAP: cap, RateKind.LIMIT: limit})
    with serving(hosts, networks, daemon={"classifier": classifier, "steering": steering}) as world:
        world.download()
        eventually(lambda: any(subflow.kind for subflow in world.services.subflows()), "throttled")
        eventually(lambda: len(world.assignments()) == 1, "one subflow in a class")
        assert ethernet_subflow(world)["not_enforced"] is None
        with second_interface(world):
            line = wait_reported(world, why, cap or limit)
            way = "to 10.1.0.2 leave through eth1, where neither HTB nor mptcp-sniffer sees packets"
            assert harms(world) == {
                "mptcp-throttled": f"a rate is not enforced: {line}",
                "routes to clients of ethernet": way,
            }
            if cap is not None:
                # A packet more or less is a twentieth of 100 kbit/s over 3 s.
                assert receive_rates(world.lab.client, 3)["eth0"] < 1.25 * cap.bits_per_second
            if limit is not None:
                unlimited = 2 * limit.bits_per_second
                eventually(lambda: receive_rates(world.lab.client, 1)["eth0"] > unlimited, "nothing limits it")
        wait_resolved(world)


UPLOADS = ethernet_with({RateKind.CAP: None, RateKind.UPLINK_CAP: Rate.parse("1mbit")})
UNSEEN = "its ACKs do not reach the program that throttles uplinks"
NOT_POLICED = "its uplink carries more than its rate: its data do not reach the program that drops the excess"


def wait_uplink_capped(world: ProxyWorld) -> None:
    eventually(lambda: any(s.uplink_kind == "cap" for s in world.services.subflows()), "the uplink capped")


def wait_exceeded(world: ProxyWorld) -> None:
    """Wait until nothing throttles the uplink."""
    eventually(lambda: send_rates(world.lab.client, 1)["eth0"] > 4e6, "the rate exceeded")


@contextmanager
def nat_rule(host: Host, hook: str, rule: str) -> Iterator[None]:
    """Of another program."""
    chain = f"type nat hook {hook} priority -100;"
    host.run("nft", f"table ip others {{ chain {hook} {{ {chain} {rule}; }}; }}")
    try:
        yield
    finally:
        host.run("nft", "delete table ip others")


@pytest.fixture
def translated(hosts: Hosts) -> Iterator[None]:
    """On the wire, the server's port is another than at its socket."""
    client, proxy = hosts.lab.client, hosts.lab.proxy
    with (
        nat_rule(client, "output", f"tcp dport {PORT} dnat to :80"),
        nat_rule(proxy, "prerouting", f"tcp dport 80 redirect to :{PORT}"),
    ):
        yield


@pytest.mark.usefixtures("translated")
def test_download_with_another_port_on_the_wire_is_held(world: ProxyWorld) -> None:
    world.begin_settled()
    for is_adopted in (False, True):
        if is_adopted:
            world.daemon.kill()
            world.start_daemon()
            world.wait_settled()
        rates = receive_rates(world.lab.client, 4)
        assert 0.5e6 < rates["eth0"] < 1.5e6
        assert rates["wlan0"] > 10e6
        assert (world.paced(), world.held_back()) == (1, set())
        assert ethernet_subflow(world)["not_enforced"] is None


@pytest.mark.usefixtures("translated")
def test_uplink_with_another_port_on_the_wire_is_reported(hosts: Hosts) -> None:
    with serving(hosts, UPLOADS) as world:
        world.upload(LONG)
        wait_uplink_capped(world)
        wait_exceeded(world)
        line = wait_reported(world, UNSEEN, "1mbit")
        assert f"a rate is not enforced: {line}" in world.services.cli("doctor", check=False).stdout
        world.services.cli("set-rate", "--uplink", "ethernet", "unlimited")
        wait_resolved(world)


@contextmanager
def data_through_a_second_interface(world: ProxyWorld) -> Iterator[None]:
    """What clients send arrives there; what the proxy sends leaves through `eth0`."""
    server = world.lab.proxy_address(4)
    with second_interface(world):
        world.proxy.ip([f"route delete {ETHERNET.v4} table {FROM_OWN_ADDRESS}"])
        world.lab.router.ip([f"route add {server} via 192.0.2.2 dev proxy1"])
        yield


@pytest.mark.parametrize(
    ("elsewhere", "why"),
    [(second_interface, UNSEEN), (data_through_a_second_interface, NOT_POLICED)],
    ids=["ACKs", "data"],
)
def test_policed_uplink_with_another_way_in_one_direction_is_reported(
    elsewhere: Callable[[ProxyWorld], AbstractContextManager[None]], why: str
) -> None:
    with proxy_world.proxy_world(networks=UPLOADS) as world:
        ignore_priorities(world.lab.client)
        world.upload(LONG)
        eventually(lambda: any(s.uplink_policed for s in world.services.subflows()), "the uplink policed")
        assert ethernet_subflow(world)["not_enforced"] is None
        with elsewhere(world):
            wait_exceeded(world)
            wait_reported(world, why, "1mbit")
        wait_resolved(world)


@pytest.mark.parametrize("rate", ["250kbit", "1mbit"])
def test_uplink_that_obeys_is_not_reported(hosts: Hosts, rate: str) -> None:
    with serving(hosts, ethernet_with({RateKind.UPLINK_CAP: Rate.parse(rate)})) as world:
        world.upload(LONG)
        wait_uplink_capped(world)
        send_rates(world.lab.client, 12)
        assert "rate not enforced" not in world.daemon.log_text()


def harms(world: ProxyWorld) -> dict[str, str]:
    """The problems that prevent caps, as doctor finds them."""
    found = json.loads(world.services.cli("doctor", "--json", check=False).stdout)["findings"]
    return {item["subject"]: item["problem"] for item in found if item["problem"] is not None and item["harm"]}


SLOW_CLASS = """
import socket, subprocess
from mptcp_throttled.kernel.interfaces import find_interface
from mptcp_throttled.kernel.tc import read_class_bytes
for command in (
    "ip link add ours type veth peer name theirs",
    "ip address add 192.0.2.1/24 dev ours",
    "ip link set ours up",
    "ip link set theirs up",
    "ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:01 dev ours",
    "tc qdisc add dev ours root handle 4d50: htb",
    "tc class add dev ours parent 4d50: classid 4d50:2 htb rate 8kbit",
    "tc qdisc add dev ours parent 4d50:2 pfifo limit 1000",
):
    subprocess.run(command.split(), check=True)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 0x4D50_0002)
for _ in range(20):
    sender.sendto(bytes(1000), ("192.0.2.2", 9))
print(read_class_bytes(find_interface("ours"))[0x4D50_0002])
"""


def test_bytes_of_a_class_include_those_in_its_queue() -> None:
    headers = 14 + 20 + 8
    done = run(["unshare", "--net", EXECUTABLES / "python", "-c", SLOW_CLASS])
    assert int(done.stdout) == 20 * (1000 + headers)
