"""A proxy with a port per user: all ports of a range are served, whichever listen, and the port beside it is not."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually

from mptcp_lab import oracle
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET
from mptcp_lab.traffic import program, start_pour
from mptcp_throttle.linux.inet_diag import LISTEN, InetDiag
from mptcp_throttle.ports import Ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy_world import Hosts, ProxyWorld

PORTS: Final = (PORT, "20000-29999")
INSIDE: Final = (20000, 29999)
OUTSIDE: Final = 30000
CAP: Final = 1_000_000
"""Of both connections inside together, in bits per second, as they are of one client."""


@contextmanager
def receiving(world: ProxyWorld) -> Iterator[None]:
    """The client receives as fast as it can, over both networks, from a server on each port."""
    ports, address = (*INSIDE, OUTSIDE), world.lab.proxy_address(4)
    servers = [start_pour(world.proxy, port) for port in ports]
    clients = [world.lab.client.start(f"drain-{port}", *program("drain", port, 3600, address)) for port in ports]
    yield
    for each in (*clients, *servers):
        each.stop()


def on_ethernet(world: ProxyWorld, port: int) -> oracle.Socket:
    """The proxy's socket of the subflow from that network to a port, once there is one."""

    def found() -> list[oracle.Socket]:
        sockets = oracle.sockets(world.proxy, port)
        return [each for each in sockets if each.own.port == port and ip_address(each.peer.address) in ETHERNET.v4]

    eventually(lambda: len(found()) == 1, f"joined on {port}")
    return found()[0]


def rates(world: ProxyWorld, client_ports: list[int]) -> list[float]:
    """What the client acknowledges on these subflows, in bits per second."""
    before, began = list(map(world.bytes_acked, client_ports)), time.monotonic()
    eventually(lambda: time.monotonic() > began + 2, "two seconds")
    after, seconds = map(world.bytes_acked, client_ports), time.monotonic() - began
    return [8 * (end - begin) / seconds for begin, end in zip(before, after, strict=True)]


@pytest.mark.parametrize(
    "items",
    [
        [80],
        [80, 81],
        ["20000-29999"],
        [80, "20000-25000", 65535],
        ["1-65535"],
        [*range(2, 126, 2), "19999-20000", 30000],
    ],
    ids=str,
)
def test_kernel_lists_the_sockets_on_these_ports_and_no_others(hosts: Hosts, items: list[object]) -> None:
    ports = [1, 79, 80, 81, 82, 19998, 19999, 20000, 25000, 25001, 29999, 30000, 30001, 65535]
    with in_namespace(hosts.lab.proxy.namespace), ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("", port)))
        diag = stack.enter_context(InetDiag())
        listed = sorted(
            each.local_port for each in diag.sockets(LISTEN, (), Ports.parse(items)) if each.local_port != PORT
        )
    assert listed == [port for port in ports if port in Ports.parse(items)]


@pytest.mark.parametrize("world", ["socket", "rules"], indirect=True)
def test_ports_of_a_range_are_capped_and_the_one_beside_it_is_not(world: ProxyWorld) -> None:
    with receiving(world):
        inside = {on_ethernet(world, port).peer.port for port in INSIDE}
        outside = on_ethernet(world, OUTSIDE).peer.port
        assert {subflow.client_port for subflow in world.wait_capped(len(INSIDE))} == inside
        eventually(lambda: {each.client_port for each in world.assignments()} == inside, "both in their class")

        def is_held() -> bool:
            first, second, free = rates(world, [*inside, outside])
            return first + second < 1.5 * CAP and free > 2 * CAP

        eventually(is_held, "the cap inside, and none outside", within=30)
        assert [each.bytes > 0 for each in world.class_counters().values() if each.rate == CAP] == [True]
        untouched = on_ethernet(world, OUTSIDE)
        assert re.search(r"pacing_rate \S+/", untouched.info) is None
        assert "B" not in oracle.flags(untouched)
        assert outside not in {subflow.client_port for subflow in world.services.subflows()}
