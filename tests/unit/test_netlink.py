"""Netlink without a kernel: the codec, dumps that are interrupted or end early, batches with one answer each."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from struct import pack as pack_struct
from struct import unpack
from typing import Any, Final, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2 import GenericNetlinkSocket, IPRoute
from pyroute2.netlink import (
    NLM_F_ACK,
    NLM_F_ACK_TLVS,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_MULTI,
    NLMSG_DONE,
    NLMSG_ERROR,
    genlmsg,
)
from pyroute2.netlink.generic import AsyncGenericNetlinkSocket
from pyroute2.netlink.rtnl import RTM_GETLINK

from mptcp_sniffer import kernel_list
from mptcp_sniffer.kernel_events import KernelEvents
from mptcp_sniffer.kernel_list import KernelListUnavailable, list_subflows
from mptcp_throttle.linux import netlink_socket, timed_pyroute2
from mptcp_throttle.linux.cbpf import RET, Line, assemble, attach_filter
from mptcp_throttle.linux.inet_diag import ESTABLISHED, LISTEN, InetDiag
from mptcp_throttle.linux.kernel_error import KernelError, netlink_call, set_faults
from mptcp_throttle.linux.netlink_codec import Message, attribute, attributes, messages, nested, pack, status
from mptcp_throttle.linux.netlink_socket import DumpInterrupted, NetlinkSocket, Request, read_consistently
from mptcp_throttle.linux.timed_pyroute2 import timed
from mptcp_throttle.ports import ALL_PORTS, Ports

CLOSE_WAIT, LAST_ACK = 8, 9  # include/net/tcp_states.h
DROPS_ALL: Final = assemble([Line(RET, 0)])
SO_DETACH_FILTER: Final = 27  # include/uapi/asm-generic/socket.h
ENTRY: Final = 20  # the type of the messages in a dump
DUMP: Final = Request("list", ENTRY, 0, b"")
Reply = Callable[[Sequence[int]], list[bytes]]
"""Datagrams that answer to requests with these sequence numbers."""


class FakeSocket:
    """In place of a netlink socket: answers each datagram with the next one of `replies`. After an `overrun`, the next
    call that receives fails."""

    def __init__(self, replies: Iterator[Reply]) -> None:
        self.sent: list[list[Message]] = []
        self.pending: list[bytes] = []
        self.overrun = False
        self._replies = replies

    def send(self, datagram: bytes) -> None:
        self.sent.append(list(messages(datagram)))
        # As the kernel, without an acknowledgment of what it has carried out, unless that is asked for.
        silent = {message.sequence for message in self.sent[-1] if not message.flags & (NLM_F_ACK | NLM_F_DUMP)}
        for reply in next(self._replies)([message.sequence for message in self.sent[-1]]):
            (message,) = messages(reply)
            if message.type != NLMSG_ERROR or message.sequence not in silent or status(message)[0]:
                self.pending.append(reply)

    def recv(self, _size: int, flags: int = 0) -> bytes:
        if flags & socket.MSG_DONTWAIT and not self.pending:
            raise BlockingIOError
        if self.overrun:
            self.overrun = False
            raise OSError(errno.ENOBUFS, "")
        return self.pending.pop(0)

    def setsockopt(self, *_: object) -> None: ...

    def bind(self, *_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    close = __exit__


Answer = Callable[..., FakeSocket]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Makes all netlink sockets one that gives these replies."""

    def install(*replies: Reply) -> FakeSocket:
        fake = FakeSocket(iter(replies))
        monkeypatch.setattr(socket, "socket", lambda *_: fake)
        return fake

    return install


def listing(*entries: bytes, flags: int = 0, end: bytes = bytes(4), end_flags: int = 0) -> Reply:
    """A datagram per entry, then NLMSG_DONE."""

    def reply(sequences: Sequence[int]) -> list[bytes]:
        (number,) = sequences
        return [
            *(pack(ENTRY, NLM_F_MULTI | flags, number, entry) for entry in entries),
            pack(NLMSG_DONE, NLM_F_MULTI | end_flags, number, end),
        ]

    return reply


def error(number: int) -> bytes:
    return pack_struct("=i", -number)


def explained(number: int, explanation: bytes, skipped: int) -> bytes:
    """The payload of an extended acknowledgment."""
    return error(number) + bytes(skipped) + attribute(1, explanation + b"\0")


def acknowledge(*numbers: int) -> Reply:
    """A datagram per request with these errno numbers."""

    def reply(sequences: Sequence[int]) -> list[bytes]:
        return [
            pack(NLMSG_ERROR, 0, sequence, error(number) + bytes(16))
            for sequence, number in zip(sequences, numbers, strict=True)
        ]

    return reply


INTERRUPTED: Final = listing(b"one", flags=NLM_F_DUMP_INTR)


@given(st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=9))))
def test_messages_are_those_that_were_packed(packed: list[tuple[int, int, bytes]]) -> None:
    padded = [pack(type_, 1, number, body + bytes(-len(body) % 4)) for type_, number, body in packed]
    unpadded = [(type_, number, body) for type_, _, number, body in messages(b"".join(padded))]
    assert unpadded == [(type_, number, body + bytes(-len(body) % 4)) for type_, number, body in packed]


@given(st.dictionaries(st.integers(0, 2**14 - 1), st.binary(max_size=9)))
def test_attributes_are_those_that_were_encoded(encoded: dict[int, bytes]) -> None:
    data = b"head" + b"".join(attribute(type_, payload) for type_, payload in encoded.items())
    assert attributes(data, 4) == encoded
    some = set(list(encoded)[::2])
    assert attributes(data, 4, only=some) == {type_: encoded[type_] for type_ in some}


@given(st.lists(st.binary(max_size=9)))
def test_nested_attributes_are_those_that_were_encoded(payloads: list[bytes]) -> None:
    assert list(nested(b"".join(attribute(1, payload) for payload in payloads))) == payloads


@pytest.mark.parametrize("length", [0, 3, 9, 0xFFFF])
@pytest.mark.parametrize("read", [attributes, nested])
def test_attributes_end_before_one_of_an_impossible_length(read: Callable[[bytes], object], length: int) -> None:
    whole = attribute(1, b"whole!!!")
    damaged = pack_struct("=HH4x", length, 2)
    assert list(read(whole + damaged)) == list(read(whole))  # type: ignore[call-overload]


@pytest.mark.parametrize("length", [0, 15, 25, 2**32 - 1])
def test_message_of_an_impossible_length_is_refused(length: int) -> None:
    decoded = messages(pack(ENTRY, 0, 1, b"whole!!!") + pack_struct("=I20x", length))
    assert next(decoded).payload == b"whole!!!"
    with pytest.raises(ValueError, match=f"a message of {length} bytes where 24 are left"):
        next(decoded)


def test_dump_with_a_message_of_length_zero_is_refused(answer: Answer) -> None:
    """The end of the dump may be in what cannot be decoded: it would be waited for in vain."""
    fake = answer(listing(b"one "), listing(b"two "))
    fake.pending.append(bytes(16))
    netlink = NetlinkSocket(socket.NETLINK_ROUTE)
    with pytest.raises(KernelError, match="EBADMSG"):
        netlink.dump(DUMP)
    assert netlink.dump(DUMP) == [b"two "]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[NetlinkSocket]:
    """A true socket that no answer of the kernel reaches: its filter drops all."""
    monkeypatch.setattr(netlink_socket, "ANSWER_SECONDS", 0.1)
    with NetlinkSocket(socket.NETLINK_ROUTE, program=DROPS_ALL) as opened:
        yield opened


LINKS: Final = Request("ip link show", RTM_GETLINK, 0, bytes(16))  # struct ifinfomsg
NO_ANSWER: Final = "ip link show: ETIMEDOUT (the kernel has not answered for 0.1 s)"


def test_dump_without_an_answer_ends(silent: NetlinkSocket) -> None:
    with pytest.raises(KernelError) as refusal:
        silent.dump(LINKS)
    assert str(refusal.value) == NO_ANSWER
    with pytest.raises(KernelError):
        silent.get(LINKS)


def test_dump_after_one_without_an_answer_works(silent: NetlinkSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="ETIMEDOUT"):
        silent.dump(LINKS)
    monkeypatch.setattr(netlink_socket, "attach_filter", lambda *_: None)
    with socket.socket(fileno=os.dup(silent.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
    assert silent.dump(LINKS)


def test_dump_after_one_not_read_to_its_end_has_all_and_the_same_port() -> None:
    with ExitStack() as stack:
        # More than the kernel sends before anything is read.
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(300)]
        diag = stack.enter_context(InetDiag())
        port = diag.port
        next(diag.sockets(LISTEN, ()))
        listed = {each.local_port for each in diag.sockets(LISTEN, ())}
        assert listed >= {listener.getsockname()[1] for listener in listeners}
        assert diag.port == port


def test_dump_keeps_its_port_while_another_thread_opens_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[NetlinkSocket] = []
    bind, other = NetlinkSocket._bind, threading.Thread(target=lambda: others.append(InetDiag()))

    def bind_late(each: NetlinkSocket, opened: socket.socket) -> None:
        if each is diag:
            other.start()
            other.join(0.2)
        bind(each, opened)

    with InetDiag() as diag:
        port = diag.port
        diag._is_dumping = True
        monkeypatch.setattr(NetlinkSocket, "_bind", bind_late)
        list(diag.sockets(LISTEN, ()))
        other.join()
        with others[0] as opened:
            assert diag.port == port != opened.port


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        (IPRoute, lambda opened: list(opened.get_links())),
        (IPRoute, lambda opened: opened.route("get", dst="127.0.0.1")),
        (GenericNetlinkSocket, lambda opened: opened.bind("nlctrl", genlmsg)),
    ],
    ids=["dump", "get", "generic"],
)
def test_request_of_pyroute2_without_an_answer_ends(
    kind: type[Any], ask: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_pyroute2, "ANSWER_SECONDS", 0.1)
    with timed(kind) as opened:
        with socket.socket(fileno=os.dup(opened.fileno())) as same:
            attach_filter(same, DROPS_ALL)
        with pytest.raises(KernelError, match=r"^ask: ETIMEDOUT$"), netlink_call("ask"):
            ask(opened)


def test_missing_family_of_kernel_events_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = AsyncGenericNetlinkSocket.discovery
    monkeypatch.setattr(AsyncGenericNetlinkSocket, "discovery", lambda each, _: discovery(each, "no_such_family"))
    before = {*os.listdir("/proc/self/fd")}
    with pytest.raises(KernelError, match=r"^look for mptcp_pm_events: ENOENT"):
        KernelEvents(ALL_PORTS)
    assert {*os.listdir("/proc/self/fd")} <= before


def test_changes_without_an_answer_are_refused(silent: NetlinkSocket) -> None:
    refusals = silent.carry_out([LINKS, LINKS])
    assert [str(refusal) for refusal in refusals] == [NO_ANSWER] * 2


def test_nothing_more_is_sent_to_a_kernel_that_does_not_answer(silent: NetlinkSocket) -> None:
    batches = list[int]()

    def sent(names: Sequence[str]) -> list[None]:
        batches.append(len(names))
        return [None] * len(names)

    set_faults(sent)
    try:
        refusals = silent.carry_out([LINKS] * 1000)
    finally:
        set_faults(None)
    assert [str(refusal) for refusal in refusals] == [NO_ANSWER] * 1000
    assert len(batches) == 1


def test_answer_that_comes_late_is_waited_for(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = answer(listing(b"one"))
    netlink, receive, waits = NetlinkSocket(socket.NETLINK_ROUTE), fake.recv, iter([True])

    def receive_late(size: int, flags: int = 0) -> bytes:
        if next(waits, False):
            raise BlockingIOError
        return receive(size, flags)

    monkeypatch.setattr(fake, "recv", receive_late)
    with open(os.devnull, "rb") as readable:
        monkeypatch.setattr(fake, "fileno", readable.fileno, raising=False)
        assert netlink.dump(DUMP) == [b"one"]


def test_payloads_of_all_datagrams_are_returned_and_streamed_as_they_come(answer: Answer) -> None:
    answer(
        listing(b"one ", b"two "),
        lambda sequences: [pack(ENTRY, 0, sequences[0], b"one ")],  # the dump has not ended
    )
    netlink = NetlinkSocket(socket.NETLINK_ROUTE)
    assert netlink.dump(DUMP) == [b"one ", b"two "]
    assert next(netlink.stream(DUMP)) == b"one "


def test_dump_ignores_the_rest_of_an_earlier_answer(answer: Answer) -> None:
    def reply(sequences: Sequence[int]) -> list[bytes]:
        earlier = sequences[0] - 1
        return [
            pack(ENTRY, 0, earlier, b"old "),
            pack(NLMSG_DONE, 0, earlier, error(errno.EIO)),
            *listing(b"new ")(sequences),
        ]

    answer(reply)
    assert NetlinkSocket(socket.NETLINK_ROUTE).dump(DUMP) == [b"new "]


@pytest.mark.parametrize(
    ("reply", "number", "text"),
    [
        (
            listing(b"one ", end=explained(errno.ENOMEM, b"no room", skipped=0), end_flags=NLM_F_ACK_TLVS),
            errno.ENOMEM,
            "list: ENOMEM (no room)",
        ),
        (
            lambda sequences: [
                pack(NLMSG_ERROR, NLM_F_ACK_TLVS, sequences[0], explained(errno.EPERM, b"not you", skipped=16))
            ],
            errno.EPERM,
            "list: EPERM (not you)",
        ),
    ],
    ids=["at the end", "at once"],
)
def test_dump_raises_a_refusal_with_the_kernels_explanation(
    answer: Answer, reply: Reply, number: int, text: str
) -> None:
    answer(reply)
    with pytest.raises(KernelError) as raised:
        NetlinkSocket(socket.NETLINK_ROUTE).dump(DUMP)
    assert (raised.value.number, str(raised.value)) == (number, text)


@pytest.mark.parametrize("interrupted", [INTERRUPTED, listing(b"one ", end_flags=NLM_F_DUMP_INTR)])
def test_dump_is_repeated_when_it_was_interrupted(answer: Answer, interrupted: Reply) -> None:
    answer(interrupted, interrupted, listing(b"two "))
    assert NetlinkSocket(socket.NETLINK_ROUTE).dump(DUMP) == [b"two "]


def test_dump_that_is_always_interrupted_raises_after_five_attempts(answer: Answer) -> None:
    fake = answer(*[INTERRUPTED] * 9)
    with pytest.raises(DumpInterrupted) as raised:
        NetlinkSocket(socket.NETLINK_ROUTE).dump(DUMP)
    assert raised.value.number == errno.EINTR
    assert len(fake.sent) == 5


def test_read_consistently_does_not_repeat_other_errors() -> None:
    attempts = []

    def refused() -> None:
        attempts.append(1)
        raise KernelError("list", errno.EPERM)

    with pytest.raises(KernelError, match="EPERM"):
        read_consistently(refused)
    assert len(attempts) == 1


def changes(count: int) -> list[Request]:
    return [Request(f"change {number}", ENTRY, 0, b"") for number in range(count)]


@pytest.mark.parametrize("numbers", [(0, errno.EBUSY, 0), (errno.EPERM, 0, errno.EBUSY)])
def test_batch_reports_each_refusal_and_acknowledges_its_last_request(answer: Answer, numbers: tuple[int, ...]) -> None:
    fake = answer(acknowledge(*numbers))
    refusals = NetlinkSocket(socket.NETLINK_ROUTE).carry_out(changes(3))
    expected = [f"change {n}: {errno.errorcode[error]}" if error else "None" for n, error in enumerate(numbers)]
    assert list(map(str, refusals)) == expected
    assert [[bool(message.flags & NLM_F_ACK) for message in batch] for batch in fake.sent] == [[False, False, True]]


def test_what_has_arrived_is_read_after_an_overrun(answer: Answer) -> None:
    fake = answer(acknowledge(errno.EBUSY, 0), acknowledge(0))
    fake.overrun = True
    netlink = NetlinkSocket(socket.NETLINK_ROUTE)
    assert list(map(str, netlink.carry_out(changes(2)))) == 2 * ["change 0: ENOBUFS"]
    assert fake.pending == []
    assert netlink.carry_out(changes(1)) == [None]


def test_carry_out_sends_64_requests_per_datagram(answer: Answer) -> None:
    fake = answer(*(acknowledge(*[0] * size) for size in (64, 64, 2)))
    assert NetlinkSocket(socket.NETLINK_ROUTE).carry_out(changes(130)) == [None] * 130
    assert [len(batch) for batch in fake.sent] == [64, 64, 2]


def test_carry_out_ignores_acknowledgments_of_earlier_requests(answer: Answer) -> None:
    def reply(sequences: Sequence[int]) -> list[bytes]:
        return [pack(NLMSG_ERROR, 0, sequences[0] - 1, error(errno.EIO)), *acknowledge(0)(sequences)]

    answer(reply)
    assert NetlinkSocket(socket.NETLINK_ROUTE).carry_out(changes(1)) == [None]


@pytest.fixture
def injected() -> Iterator[list[Sequence[str]]]:
    """Refuses `change 1`; the calls that were made."""
    calls: list[Sequence[str]] = []

    def inject(requests: Sequence[str]) -> list[OSError | None]:
        calls.append(requests)
        return [OSError(errno.ENOBUFS, "") if request == "change 1" else None for request in requests]

    set_faults(inject)
    yield calls
    set_faults(None)


def test_fault_in_a_batch_refuses_one_request_the_others_are_sent(
    answer: Answer, injected: list[Sequence[str]]
) -> None:
    fake = answer(acknowledge(0, errno.EBUSY))
    refusals = NetlinkSocket(socket.NETLINK_ROUTE).carry_out(changes(3))
    assert [str(refusal) for refusal in refusals] == ["None", "change 1: ENOBUFS", "change 2: EBUSY"]
    assert injected == [["change 0", "change 1", "change 2"]]
    assert len(fake.sent[0]) == 2


def test_fault_in_all_requests_or_a_transaction_sends_nothing(answer: Answer, injected: list[Sequence[str]]) -> None:
    fake = answer()
    netlink = NetlinkSocket(socket.NETLINK_ROUTE)
    assert list(map(str, netlink.carry_out(changes(2)[1:]))) == ["change 1: ENOBUFS"]
    with pytest.raises(KernelError, match=r"^change 1: ENOBUFS$"):
        netlink.carry_out_together("change 1", changes(3))
    assert (injected, fake.sent) == ([["change 1"]] * 2, [])


def test_transaction_without_an_answer_was_carried_out(answer: Answer) -> None:
    fake = answer(lambda _: [])
    NetlinkSocket(socket.NETLINK_ROUTE).carry_out_together("change all", changes(130))
    assert [len(batch) for batch in fake.sent] == [130]


def test_transaction_raises_its_first_refusal(answer: Answer) -> None:
    def reply(sequences: Sequence[int]) -> list[bytes]:
        earlier = pack(NLMSG_ERROR, 0, sequences[0] - 1, error(errno.EIO))
        return [earlier, *(pack(NLMSG_ERROR, 0, sequences[n], error(errno.EEXIST + n)) for n in (0, 2))]

    answer(reply)
    with pytest.raises(KernelError, match=r"^change all: EEXIST$"):
        NetlinkSocket(socket.NETLINK_ROUTE).carry_out_together("change all", changes(3))


# struct inet_diag_msg of an IPv4 socket from port 8080 to 40000, without attributes.
SOCKET: Final = pack_struct(
    "!BBBBHH4s12x4s12x4x8s20x", 2, 1, 0, 0, 8080, 40000, b"\x0a\0\0\1", b"\x0a\0\0\2", b"cookie!!"
)


def test_get_returns_what_comes_before_the_acknowledgment_or_raises(answer: Answer) -> None:
    answer(
        lambda sequences: [pack(ENTRY, 0, sequences[0], b"one"), *acknowledge(0)(sequences)], acknowledge(errno.ENOENT)
    )
    netlink = NetlinkSocket(socket.NETLINK_ROUTE)
    assert netlink.get(DUMP) == [b"one"]
    with pytest.raises(KernelError, match=r"^list: ENOENT$"):
        netlink.get(DUMP)


def test_inet_diag_lists_a_socket_with_its_cookie(answer: Answer) -> None:
    answer(listing(SOCKET), listing())
    (listed,) = InetDiag().sockets(ESTABLISHED, {2})
    assert listed[:4] == (b"\x0a\0\0\1", 8080, b"\x0a\0\0\2", 40000)
    assert listed.cookie == b"cookie!!"


@pytest.mark.parametrize(
    ("reply", "number"),
    [(listing(SOCKET, end=error(errno.ENOMEM)), errno.ENOMEM), (listing(SOCKET, flags=NLM_F_DUMP_INTR), errno.EINTR)],
)
def test_inet_diag_does_not_end_a_listing_that_is_incomplete(answer: Answer, reply: Reply, number: int) -> None:
    answer(reply, listing())
    with pytest.raises(KernelError) as raised:
        list(InetDiag().sockets(ESTABLISHED, {2}))
    assert raised.value.number == number


def test_inet_diag_ignores_sockets_of_an_earlier_listing(answer: Answer) -> None:
    def reply(sequences: Sequence[int]) -> list[bytes]:
        return [pack(ENTRY, 0, sequences[0] - 1, SOCKET), *listing()(sequences)]

    answer(reply, listing())
    assert list(InetDiag().sockets(ESTABLISHED, {2})) == []


def subflow(port: int, state: int = 1, unsent: int = 0) -> bytes:
    """SOCKET with another remote port and state, as an MPTCP subflow with token 7, and so many bytes unsent."""
    mptcp = attribute(2, pack_struct("=I", 7)) + attribute(8, pack_struct("=I", 1)) + attribute(9, b"\0")
    tcp_info = attribute(2, bytes(144) + pack_struct("=I", unsent) + bytes(80))
    ends = SOCKET[4:6] + port.to_bytes(2, "big") + SOCKET[8:]
    return SOCKET[:1] + bytes([state]) + SOCKET[2:4] + ends + tcp_info + attribute(19, attribute(3, mptcp))


@pytest.fixture
def privileged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_list, "missing_capabilities", lambda **_: [])


@pytest.mark.usefixtures("privileged")
def test_list_subflows_keeps_nothing_of_an_interrupted_listing(answer: Answer) -> None:
    answer(listing(subflow(1), flags=NLM_F_DUMP_INTR), listing(subflow(2)), listing())
    assert [ends.client.port for ends in list_subflows(Ports.of([8080])).subflows] == [2]


@pytest.mark.usefixtures("privileged")
def test_list_subflows_gives_up_when_always_interrupted(answer: Answer) -> None:
    answer(*[listing(subflow(1), flags=NLM_F_DUMP_INTR)] * 9)
    with pytest.raises(KernelListUnavailable, match="EINTR"):
        list_subflows(Ports.of([8080]))


@pytest.mark.usefixtures("privileged")
def test_list_subflows_has_what_was_closed_with_something_still_to_send(answer: Answer) -> None:
    fake = answer(
        listing(subflow(1), subflow(2, LAST_ACK, 1), subflow(3, LAST_ACK, 2), subflow(4, CLOSE_WAIT)), listing()
    )
    listed = list_subflows(Ports.of([8080])).subflows
    assert {ends.client.port: seen.closing for ends, seen in listed.items()} == {1: False, 3: True, 4: False}
    # TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING
    assert unpack("=52xI", fake.sent[0][0].payload[:56]) == (sum(1 << state for state in (1, 4, 8, 9, 11)),)
