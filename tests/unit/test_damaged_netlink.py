"""Netlink messages that are cut or contradict themselves: read as far as they go, or refused as a KernelError.

Nothing else is raised, no reading goes on for ever, and the next good message means what it did before.
The messages are recorded ones (tests/fuzz/record_netlink.py).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Final, Self

import mutated_bytes
import pytest
from polling import eventually

from mptcp_sniffer import kernel_events, kernel_list
from mptcp_sniffer.kernel_events import KernelEvents
from mptcp_sniffer.kernel_list import KernelList, KernelListUnavailable, list_subflows
from mptcp_sniffer.kernel_reader import KernelReader
from mptcp_sniffer.stop import Stop
from mptcp_throttle.config.schema import SnifferSection
from mptcp_throttle.linux import netlink_socket
from mptcp_throttle.linux.inet_diag import InetDiag, list_listening
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_codec import attributes, messages, nested
from mptcp_throttle.linux.netlink_socket import NetlinkSocket, Request
from mptcp_throttle.model import FourTuple
from mptcp_throttle.ports import Ports
from mptcp_throttled.kernel import tc, watch
from mptcp_throttled.kernel.classes import nft
from mptcp_throttled.kernel.classes.iptables import OwnChain
from mptcp_throttled.kernel.classes.nft_tables import OwnTables
from mptcp_throttled.kernel.clsact_filters import ClsactFilters
from mptcp_throttled.kernel.htb import htb, saved
from mptcp_throttled.kernel.interfaces import Interface
from mptcp_throttled.kernel.sockets import proxy_sockets
from mptcp_throttled.kernel.sockets.proxy_sockets import ProxyCgroup, SocketReader
from mptcp_throttled.kernel.uplink.announced_windows import read_announced_windows
from mptcp_throttled.kernel.watch import Notifications
from mptcp_throttled.vocabulary.class_ids import HANDLE, MarkedTraffic

CORPUS: Final = Path(__file__).parents[1] / "fuzz" / "corpus" / "netlink"
PORTS: Final = Ports.of([8080])
LOOPBACK: Final = Interface(1, "lo")
MARKING: Final = MarkedTraffic(0xFF00_0000, PORTS)
LEAST: Final = 500
# Lengths of attributes and messages; types of both.
WORDS: Final = [
    *(Struct("=H").pack(number) for number in (*range(24), 0x7FFF, 0x8001, 0xFFFC, 0xFFFF)),
    *(Struct("=I").pack(number) for number in (0, 3, 15, 16, 17, 20, 0x7FFF_FFFF, 0xFFFF_FFFF)),
]


def recorded(name: str) -> bytes:
    return (CORPUS / name).read_bytes()


class RecordedKernel:
    """In place of all netlink sockets: answers each request with the next of `answers`. What comes late is lost."""

    def __init__(self, event: int) -> None:
        self.answers: list[bytes] = []
        self.arrived: list[bytes] = []
        self._event = event

    def __call__(self, *_: object) -> Self:
        return self

    def send(self, _request: bytes) -> None:
        self.arrived += self.answers[:1]
        del self.answers[:1]

    def recv(self, _size: int, _flags: int = 0) -> bytes:
        if not self.arrived:
            raise BlockingIOError(errno.EAGAIN, "")
        return self.arrived.pop(0)

    def fileno(self) -> int:
        """Never readable."""
        return self._event

    def close(self) -> None:
        self.arrived.clear()

    def setsockopt(self, *_: object) -> None: ...

    def bind(self, *_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedKernel]:
    """All requests have the sequence number 1."""
    event = os.eventfd(0)
    kernel = RecordedKernel(event)
    monkeypatch.setattr(socket, "socket", kernel)
    monkeypatch.setattr(netlink_socket, "itertools", SimpleNamespace(count=repeat))
    monkeypatch.setattr(netlink_socket, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(kernel_list, "missing_capabilities", lambda **_: [])
    yield kernel
    os.close(event)


def check_reading(kernel: RecordedKernel, names: list[str], read: Callable[[], object]) -> None:
    """`read` asks for what these files have, in order; one of them is damaged, then none is."""
    answers = [recorded(name) for name in names]
    kernel.answers = list(answers)
    expected = read()
    assert not kernel.answers
    assert expected

    for number, answer in enumerate(answers):

        def use(data: bytes, number: int = number) -> None:
            kernel.answers = [*answers[:number], data, *answers[number + 1 :]]
            with suppress(KernelError):
                read()
            kernel.arrived.clear()
            kernel.answers = list(answers)
            assert read() == expected

        mutated_bytes.check(use, [answer], words=WORDS, least=LEAST)


def test_attributes_take_no_more_memory_than_their_message() -> None:
    def use(data: bytes) -> None:
        for payloads in (attributes(data, 20).values(), nested(data)):
            assert sum(map(len, payloads)) <= len(data)

    mutated_bytes.check(use, [path.read_bytes() for path in sorted(CORPUS.iterdir())], words=WORDS, least=LEAST)


def test_subflows_are_listed_or_refused(kernel: RecordedKernel) -> None:
    def read() -> object:
        try:
            subflows = list_subflows(PORTS).subflows
        except KernelListUnavailable:
            return None
        for ends, subflow in subflows.items():
            assert {len(end.address) for end in ends} <= {4, 16}
            assert subflow.token < 2**32
            assert subflow.address_id < 2**8
        return subflows

    check_reading(kernel, ["sockets"], read)


def test_sockets_of_the_proxy_are_read_or_refused(kernel: RecordedKernel) -> None:
    reader = SocketReader(PORTS)
    check_reading(kernel, ["sockets"], reader.read)


def test_listeners_are_read_or_refused(kernel: RecordedKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_sockets, "_directory_of", lambda ids: ids)
    check_reading(kernel, ["listeners"], lambda: list(list_listening(InetDiag())))
    check_reading(kernel, ["listeners"], ProxyCgroup(PORTS).find)


def test_window_of_a_socket_is_read_or_refused(kernel: RecordedKernel) -> None:
    kernel.answers = [recorded("socket")]
    found = InetDiag().find(bytes(4), 0, bytes(4), int.from_bytes(recorded("socket")[22:24]), ())
    assert found is not None
    subflow = FourTuple.of(found.remote, found.remote_port, found.local, found.local_port)

    def read() -> object:
        windows, error = read_announced_windows([subflow])
        assert not (windows and error)
        return windows

    check_reading(kernel, ["socket"], read)


def test_qdiscs_are_read_or_refused(kernel: RecordedKernel) -> None:
    control = tc.TrafficControl()

    def read() -> object:
        qdiscs = control.qdiscs()
        trees = [saved.tree_of(each) for each in qdiscs.values()]
        for tree in trees:
            assert len(tree) == len(set(map(id, tree)))
            saved.why_not_restorable(tree)
            for qdisc in tree:
                saved.request_for(qdisc)
                htb.default_minor_of(qdisc)
                htb.is_leaf(qdisc)
        return qdiscs, trees

    check_reading(kernel, ["qdiscs"], read)


def test_classes_are_read_or_refused(kernel: RecordedKernel) -> None:
    control = tc.TrafficControl()

    def read() -> object:
        return {id_: htb.rate_of(options) for id_, options in control.htb_classes(LOOPBACK).items()}

    check_reading(kernel, ["classes"], read)
    check_reading(kernel, ["classes"], lambda: tc.read_class_bytes(LOOPBACK))


def test_filters_are_read_or_refused(kernel: RecordedKernel, tmp_path: Path) -> None:
    control, clsact = tc.TrafficControl(), ClsactFilters(tmp_path)

    def read() -> object:
        return [(each, htb.is_mark_filter(each, MARKING)) for each in control.filters(LOOPBACK, HANDLE)]

    check_reading(kernel, ["filters"], read)
    check_reading(kernel, ["ingress", "ingress"], lambda: (clsact.attached(LOOPBACK), 1))


def test_refusal_of_a_change_is_reported_whatever_it_says(kernel: RecordedKernel) -> None:
    netlink, change = NetlinkSocket(socket.NETLINK_ROUTE), Request("change", 20, 0, b"")

    def together() -> str:
        try:
            netlink.carry_out_together("change", [change])
        except KernelError as error:
            return str(error)
        return "carried out"

    check_reading(kernel, ["refusal"], lambda: [str(refusal) for refusal in netlink.carry_out([change])])
    check_reading(kernel, ["refusal"], together)


def test_nftables_are_read_or_refused(kernel: RecordedKernel) -> None:
    tables = OwnTables()
    check_reading(kernel, ["table-1", "table-2", "table-3", "table-4"], lambda: tables.is_as_made(4))
    check_reading(kernel, ["generation"], tables.generation)


def test_assignments_are_those_of_the_last_good_answer(kernel: RecordedKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnTables, "generation", lambda _: 1)
    monkeypatch.setattr(OwnTables, "is_as_made", lambda _, version: True if version == 4 else None)
    monkeypatch.setattr(OwnChain, "read", lambda _chain, _parse: None)
    classifier = nft.NftClassifier()
    check_reading(kernel, ["elements"], lambda: classifier.read()[4])


def test_events_are_read_or_refused(kernel: RecordedKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_events, "events_group", lambda: 9)
    events = KernelEvents(PORTS)
    datagrams = [path.read_bytes() for path in sorted(CORPUS.glob("event-*"))]
    kernel.arrived = list(datagrams)
    expected = [list(events.receive()) for _ in datagrams]
    assert len(expected) == 6

    def use(data: bytes) -> None:
        kernel.arrived = [data, *datagrams]
        with suppress(KernelError):
            for event in events.receive():
                assert event.token < 2**32
                assert {len(end.address) for end in event.ends} <= {4, 16}
        assert [list(events.receive()) for _ in datagrams] == expected

    mutated_bytes.check(use, datagrams, words=WORDS, least=LEAST)


class Ended(Exception):
    """The kernel has no further notification."""


def test_notification_that_is_damaged_is_taken_for_a_loss(
    kernel: RecordedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recv(_size: int, _flags: int = 0) -> bytes:
        if not kernel.arrived:
            raise Ended
        return kernel.arrived.pop(0)

    monkeypatch.setattr(kernel, "recv", recv)
    monkeypatch.setattr(kernel, "close", lambda: None)
    monkeypatch.setattr(watch, "_REOPEN_SECONDS", 0.0)
    datagrams = [path.read_bytes() for path in sorted(CORPUS.glob("notification-*"))]
    good, left = recorded("notification-16"), []
    notifications = Notifications(("veth2", "veth3"), (), lambda: left.append(len(kernel.arrived)))

    def use(data: bytes) -> None:
        left.clear()
        kernel.arrived = [data, good]
        with pytest.raises(Ended):
            notifications.run()
        assert left[0] == 2
        assert left[-1] == 0, "the good one after it"

    mutated_bytes.check(use, datagrams, words=WORDS, least=LEAST)


def test_sniffer_goes_on_with_the_next_list_after_a_damaged_one(
    kernel: RecordedKernel, caplog: pytest.LogCaptureFixture
) -> None:
    good = recorded("sockets")
    (first, *_) = messages(good)
    cut = good[: 16 + len(first.payload) // 2]
    kernel.answers = [cut, good]
    delivered: list[KernelList | None] = []
    settings = SnifferSection.model_validate({"kernel_events": False, "kernel_list_interval": "60s"})
    reader = KernelReader(PORTS, settings, delivered.append, lambda _: None, lambda: False, lambda: False, Stop())
    with reader.running():
        assert not any(delivered)
        reader.request()
        eventually(lambda: any(delivered), "the next list")
    (kernel_list_, *_) = filter(None, delivered)
    assert len(kernel_list_.subflows) == 4
    assert [record.message for record in caplog.records] == [
        "the kernel list cannot be read (ss -t: EBADMSG (the kernel's message is cut or damaged)): "
        "the table follows the capture alone"
    ]
