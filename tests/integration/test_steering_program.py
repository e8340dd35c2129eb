"""What the steering programs send themselves: here the test runs `remind`, in place of the daemon."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
from middlebox import SentBy, stripping
from polling import eventually
from scapy.layers.inet import TCP
from test_discards import PORT, captured, connected, exchange, frames

from mptcp_lab.namespaces import in_namespace
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import ETHERNET, WIFI, Lab, Topology, build
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, FilterSet, Hook
from mptcp_throttled.kernel.interfaces import Interface, find_interface
from mptcp_throttled.kernel.steering.program import SteeringProgram
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP

KEEP_ALIVE: Final = [("NOP", None)] * 4
"""Its options: TCP sends none alone."""

VISITS_SECONDS: Final = 3.0
"""A subflow that is free is looked at once a second."""

ARRIVING_SECONDS: Final = 0.5
"""What was sent before has arrived then."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with build(Topology()) as lab:
        yield lab


@contextmanager
def filtered(lab: Lab, directory: Path) -> Iterator[tuple[SteeringProgram, Interface, Interface]]:
    """The programs, with filters at the proxy's eth0 and lo, and these interfaces."""
    with in_namespace(lab.proxy.namespace):
        program = SteeringProgram(Proxies.only(Ports.of([PORT])), NO_CONTROL_GROUP)
        with closing(program), closing(ClsactFilters(directory, FilterSet.STEERING)) as filters:
            program.set_networks(WIFI_FIRST)
            eth0, lo = interfaces = find_interface("eth0"), find_interface("lo")
            for interface in interfaces:
                filters.attach(interface, {Hook.EGRESS: program.egress, Hook.INGRESS: program.ingress})
            yield program, eth0, lo


@contextmanager
def standstill(lab: Lab) -> Iterator[socket.socket]:
    """A connection of which the client acknowledges no data any more: the proxy's socket.

    It began over Wi-Fi, where MPTCP repeats what it takes for lost, so that nothing is sent over Ethernet.
    """
    lab.client.ip([f"mptcp endpoint add {lab.client.address(ETHERNET, 4)} dev {ETHERNET.interface} subflow"])
    with connected(lab, link=WIFI) as connection:
        exchange(connection)
        show = ("ss", "-tnH", "state", "established")
        eventually(lambda: len(lab.proxy.run(*show).stdout.splitlines()) == 2, "both subflows")
        with stripping(lab, WIFI, (SentBy.CLIENT,)), stripping(lab, ETHERNET, (SentBy.CLIENT,)):
            yield connection.proxy


def test_keep_alive_is_sent_through_no_interface_without_filters(lab: Lab, tmp_path: Path) -> None:
    """Where no filter makes a keep-alive of it, the packet would go to the host."""
    with (
        filtered(lab, tmp_path) as (program, eth0, lo),
        standstill(lab) as proxy,
        captured(lab.client) as capture,
    ):

        def is_sick() -> bool:
            """Whether it is known that no DATA_ACKs arrive over Wi-Fi; meanwhile a byte is sent."""
            proxy.sendall(b"!")
            program.remind()
            return bool(program.shared_maps["subflows_without_data_acks"].all_elements())

        def sent() -> int:
            """The keep-alives that have arrived at the client since the last call."""
            program.remind()
            segments = [frame[TCP] for frame in frames(capture) if TCP in frame]
            return sum(segment.sport == PORT and segment.options == KEEP_ALIVE for segment in segments)

        program.set_interfaces([eth0])
        program.adopt()
        eventually(is_sick, "sick")
        for which in ("first", "second"):
            eventually(lambda: sent() > 0, f"the {which} keep-alive")
        program.set_interfaces([lo])
        time.sleep(ARRIVING_SECONDS)
        frames(capture)
        end = time.monotonic() + VISITS_SECONDS
        while time.monotonic() < end:
            assert sent() == 0
            time.sleep(0.02)
