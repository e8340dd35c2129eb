"""What is said of connections that are proved on the wire and that no kernel list has."""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import Final

import pytest
from segments import KEY, PROXY, Client, capable_ack, capable_syn, capable_synack, token
from worlds import configuration

from mptcp_sniffer.kernel_list import KernelList, ListedSubflow
from mptcp_sniffer.segment import PackedEndpoint, Segment
from mptcp_sniffer.sniffer import Sniffer
from mptcp_sniffer.stop import Stop
from mptcp_sniffer.tracker import Bounds, Tracker
from mptcp_throttle.model import Trust

CLIENT: Final = Client("10.1.0.2", 40000)
LATER: Final = Client("10.1.0.2", 40001)
ENDPOINT: Final = PackedEndpoint(ip_address(PROXY).packed, 8080)


class Proxy:
    """A tracker whose kernel list is read once a second. `now` is in seconds."""

    def __init__(self, trust: Trust = Trust.HANDSHAKE) -> None:
        self.tracker = Tracker([8080], Bounds(1000, 1000), trust)
        self.tracker.kernel_confirms = True
        self.now = 1000.0

    def send(self, segment: Segment, *, by_proxy: bool) -> None:
        self.now += 0.001
        self.tracker.observe(segment, self.now, by_proxy)

    def open(self, client: Client, key: bytes = KEY) -> None:
        self.send(client.syn(capable_syn()), by_proxy=False)
        self.send(client.synack(capable_synack(key)), by_proxy=True)
        self.send(client.ack(capable_ack(key)), by_proxy=False)

    def wait(self, seconds: float, *listed: Client, key: bytes = KEY) -> None:
        """Read the list each second; it has these subflows alone."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            subflows = {client.ends: ListedSubflow(token(key), 0, backup=False) for client in listed}
            self.tracker.apply_kernel_list(KernelList(self.now, subflows))

    def unlisted(self) -> tuple[PackedEndpoint, ...]:
        return self.tracker.unlisted.endpoints


@pytest.fixture
def proxy() -> Proxy:
    """A connection is proved on the wire."""
    proxy = Proxy()
    proxy.open(CLIENT)
    return proxy


def test_connection_that_no_list_has_is_reported_within_four_seconds(proxy: Proxy) -> None:
    proxy.wait(1)
    assert proxy.unlisted() == ()
    proxy.wait(2)
    assert proxy.unlisted() == (ENDPOINT,)
    assert proxy.tracker.sizes()["subflows"] == 0


def test_unlisted_connection_is_reported_until_a_later_one_is_listed(proxy: Proxy) -> None:
    proxy.wait(4)
    proxy.send(CLIENT.fin(), by_proxy=False)
    proxy.wait(60)
    assert proxy.unlisted() == (ENDPOINT,)
    proxy.open(LATER, b"otherkey")
    proxy.wait(1, LATER, key=b"otherkey")
    assert proxy.unlisted() == ()
    proxy.wait(10)
    assert proxy.unlisted() == ()


def test_unlisted_connection_is_reported_beside_an_earlier_listed_one() -> None:
    proxy = Proxy()
    proxy.open(LATER)
    proxy.wait(3, LATER)
    proxy.open(CLIENT, b"otherkey")
    proxy.wait(4, LATER)
    assert proxy.unlisted() == (ENDPOINT,)


@pytest.mark.parametrize("is_removed_before", [False, True])
@pytest.mark.parametrize(
    ("segment", "by_proxy"),
    [
        (CLIENT.fin(), False),
        (CLIENT.ack(flags="R"), False),
        (CLIENT.ack_by_proxy(flags="FA"), True),
        (CLIENT.ack_by_proxy(flags="R"), True),
        (CLIENT.synack(capable_synack()), True),  # the third ACK was dropped: the queue of the listener was full
    ],
)
def test_connection_that_a_segment_explains_is_not_reported(
    proxy: Proxy, segment: Segment, by_proxy: bool, is_removed_before: bool
) -> None:
    proxy.wait(int(is_removed_before))
    proxy.send(segment, by_proxy=by_proxy)
    proxy.wait(10)
    assert proxy.unlisted() == ()


def test_connection_that_a_list_has_had_is_not_reported(proxy: Proxy) -> None:
    proxy.wait(1, CLIENT)
    proxy.wait(10)
    assert proxy.unlisted() == ()


def test_connection_beside_a_later_listed_one_is_not_reported(proxy: Proxy) -> None:
    proxy.open(LATER, b"otherkey")
    proxy.wait(10, LATER, key=b"otherkey")
    assert proxy.unlisted() == ()


@pytest.mark.parametrize("is_removed_before", [False, True])
def test_connection_with_frames_that_may_be_missing_is_not_reported(proxy: Proxy, is_removed_before: bool) -> None:
    proxy.wait(int(is_removed_before))
    proxy.tracker.unlisted.distrust(proxy.now)
    proxy.wait(10)
    assert proxy.unlisted() == ()
    proxy.open(LATER, b"otherkey")
    proxy.wait(4)
    assert proxy.unlisted() == (ENDPOINT,)


def test_handshake_that_is_not_proved_is_not_reported() -> None:
    proxy = Proxy(Trust.TOKEN)
    proxy.send(CLIENT.syn(capable_syn()), by_proxy=False)
    proxy.send(CLIENT.synack(capable_synack()), by_proxy=True)
    proxy.wait(10)
    assert proxy.unlisted() == ()


def test_many_short_connections_are_not_reported() -> None:
    proxy = Proxy()
    for number in range(500):
        client = Client("10.1.0.2", 30000 + number)
        proxy.open(client, number.to_bytes(8))
        if number % 3:
            proxy.wait(number % 2)
        proxy.send(client.ack_by_proxy(flags="FA") if number % 5 else client.fin(), by_proxy=bool(number % 5))
        assert proxy.unlisted() == ()
    proxy.wait(10)
    assert proxy.unlisted() == ()


def test_endpoints_that_are_reported_are_bounded() -> None:
    proxy = Proxy()
    for number in range(40):
        proxy.tracker.unlisted.add(
            Client("10.1.0.2", number).ends._replace(proxy=PackedEndpoint(bytes([10, 3, 0, number]), 8080)), 1.0, 1.0
        )
    proxy.wait(2)
    assert len(proxy.unlisted()) == 16


def test_unlisted_connections_are_logged_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sniffer = Sniffer(configuration(), lambda: None, Stop())
    said = []
    for number in (1, 0, 1, 5):
        sniffer._tell_unlisted([PackedEndpoint(bytes([10, 3, 0, each]), 8080) for each in range(number)])
        said.append(sniffer.status()["kernel_view"]["unlisted"])
    problem = "not in this kernel: do connections end in a container or behind address translation?"
    one = f"connections to 10.3.0.0:8080 are proved on the wire, {problem}"
    five = f"connections to 10.3.0.0:8080, 10.3.0.1:8080, 10.3.0.2:8080 and 2 more are proved on the wire, {problem}"
    assert said == [one, None, one, five]
    assert caplog.messages == [one]
