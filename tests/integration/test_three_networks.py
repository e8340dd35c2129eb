"""Three access networks: the most preferred one first, the others within their caps, each free when it is the best."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from polling import eventually
from proxy_world import ProxyWorld, hosts, receive_rates, serving

from mptcp_lab import oracle
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, LTE, WIFI, Topology
from mptcp_lab.traffic import IPPROTO_MPTCP
from mptcp_throttle.model import AccessNetwork, Per, RateKind
from mptcp_throttle.units import Rate

TOPOLOGY = Topology(lte=LTE)
MBIT = 10**6
CAPS = {"ethernet": 2 * MBIT, "lte": MBIT}
NETWORKS = (
    WIFI_FIRST[0],
    WIFI_FIRST[1].with_rates({RateKind.CAP: Rate(CAPS["ethernet"])}),
    AccessNetwork("lte", (LTE.v4, LTE.v6), 3, {RateKind.CAP: Rate(CAPS["lte"])}, Per.CLIENT),
)


def capped(world: ProxyWorld) -> dict[str, int | None]:
    """By network, the rates of the caps."""
    return {subflow.network: subflow.rate for subflow in world.capped()}


def test_networks_are_used_by_preference_and_free_in_their_turn(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    own_world.download()
    eventually(lambda: capped(own_world) == CAPS, "Ethernet and LTE capped", seen=own_world.services.subflows)
    eventually(lambda: receive_rates(client, 2)["wlan0"] > 3 * sum(CAPS.values()), "Wi-Fi first")
    rates = receive_rates(client, 5)
    assert rates["eth0"] < 1.1 * CAPS["ethernet"]
    assert rates["wwan0"] < 1.1 * CAPS["lte"]

    client.leave(WIFI)
    left = {"lte": CAPS["lte"]}
    eventually(lambda: capped(own_world) == left, "Ethernet free", within=1, seen=own_world.services.subflows)
    eventually(lambda: receive_rates(client, 2)["eth0"] > 2 * CAPS["ethernet"], "Ethernet second")
    assert receive_rates(client, 5)["wwan0"] < 1.1 * CAPS["lte"]

    client.leave(ETHERNET)
    eventually(lambda: not capped(own_world), "LTE free", within=1, seen=own_world.services.subflows)
    eventually(lambda: receive_rates(client, 2)["wwan0"] > 3 * CAPS["lte"], "LTE last")


def windows_before_data(world: ProxyWorld) -> dict[str, int]:
    """Of the subflows on which the proxy has sent nothing: the clients' receive windows, by client address."""
    windows = {}
    for subflow in oracle.sockets(world.proxy, PORT):
        window = re.search(r"snd_wnd:(\d+)", subflow.info)
        if "B" in oracle.flags(subflow) and "bytes_sent:" not in subflow.info and window is not None:
            windows[subflow.peer.address] = int(window[1])
    return windows


@contextmanager
def unfinished_request(world: ProxyWorld) -> Iterator[None]:
    """A connection over Ethernet, whose client has begun a request: the others join, and the proxy sends no data."""
    client = world.lab.client
    with in_namespace(client.namespace):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    with connection:
        connection.settimeout(5)
        connection.bind((str(client.address(ETHERNET, 4)), 0))
        connection.connect((str(world.lab.proxy_address(4)), PORT))
        connection.sendall(b"GET ")
        yield


def test_held_back_subflow_has_the_window_that_its_client_announced(own_world: ProxyWorld) -> None:
    """MPTCP would send what does not fit, and the client would discard it, which stops a download for seconds."""
    largest_at_first = 65535  # no scale applies to a SYN
    with unfinished_request(own_world):
        eventually(
            lambda: len(windows_before_data(own_world)) == len(CAPS),
            "Ethernet, over which the client has sent, and LTE, which has joined",
            seen=lambda: list(oracle.sockets(own_world.proxy, PORT)),
        )
        windows = windows_before_data(own_world)
    assert all(0 < window <= largest_at_first for window in windows.values()), windows


def test_each_network_carries_what_the_preferred_ones_lack() -> None:
    slow = replace(TOPOLOGY, wifi=replace(WIFI, rate=Rate(4 * MBIT)))
    wifi, ethernet, lte = NETWORKS
    overflowing = (
        wifi,
        replace(ethernet, overflow=Rate(8 * MBIT)),
        replace(lte, overflow=Rate(11 * MBIT)),
    )
    with hosts(slow) as built, serving(built, overflowing) as world:
        client = world.lab.client
        world.download()

        def shared() -> bool:
            """Whether Wi-Fi has 4 Mb/s, Ethernet the other 4 of its 8, and LTE the other 3 of its 11."""
            rates = receive_rates(client, 4)
            return (
                rates["wlan0"] > 3.4 * MBIT
                and 3 * MBIT < rates["eth0"] < 5 * MBIT
                and 2 * MBIT < rates["wwan0"] < 4 * MBIT
            )

        eventually(shared, "each has its share", within=60, seen=lambda: receive_rates(client, 4))
