"""What the uplink program does to segments (BPF_PROG_TEST_RUN), and what it sends itself."""

from __future__ import annotations

import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from examples import ends, ends_of
from packet_mutations import PACKETS, are_checksums_right, check_harmless
from polling import eventually
from scapy.data import ETH_P_ALL, ETH_P_IP, ETH_P_IPV6
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from tun_interface import tun

from mptcp_lab import guest
from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_throttle.model import FourTuple
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, Hook
from mptcp_throttled.kernel.interfaces import find_interface
from mptcp_throttled.kernel.uplink.announced_windows import AnnouncedWindow
from mptcp_throttled.kernel.uplink.program import ThrottledUplink, Told, UplinkProgram

TIMESTAMPS: Final = [("NOP", None), ("NOP", None), ("Timestamp", (1000, 2000))]
DATA_ACK: Final = [(30, bytes.fromhex("200100000001"))]
FULL: Final = [*TIMESTAMPS, ("SAck", (1, 2, 3, 4)), (30, bytes(6)), ("NOP", None), ("NOP", None)]
"""Options that leave no room for another one."""
BACKUP, REGULAR = bytes.fromhex("011e0351"), bytes.fromhex("011e0350")
KIB: Final = 1024
UNSPECIFIED, SHOT = 0xFFFFFFFF, 2  # TC_ACT_UNSPEC: the filters of others go on; TC_ACT_SHOT
SLOW: Final = Rate.parse("1mbit")
FAST: Final = Rate.parse("1gbit")

Send = Callable[[Packet], bytes]
Window = Callable[[Packet], int]


def police(program: UplinkProgram, packet: bytes) -> int:
    """The verdict about a packet that arrives, with an Ethernet header."""
    return program.object.run("police_uplinks", packet)[0]


def segment(acknowledged: int, subflow: FourTuple | None = None, payload: bytes = b"", **fields: object) -> Packet:
    """A segment of the proxy; `acknowledged` bytes of the client's data so far."""
    subflow = subflow or ends_of()
    ip = IP if subflow.proxy.address.version == 4 else IPv6
    options = fields.pop("options", TIMESTAMPS + DATA_ACK)
    given = {"seq": 7, "flags": "A", **fields}
    tcp = TCP(sport=subflow.proxy.port, dport=subflow.client.port, ack=5000 + acknowledged, options=options, **given)
    link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    return link / ip(src=str(subflow.proxy.address), dst=str(subflow.client.address)) / tcp / payload


WITHOUT_OPTION: Final[dict[str, Callable[..., Packet]]] = {
    "data": partial(segment, payload=b"data"),
    "FIN": partial(segment, flags="FA"),
    "no room": partial(segment, options=FULL),
}
"""Segments that cannot carry ours."""
ALL_KINDS: Final[tuple[Callable[..., Packet], ...]] = (
    segment,
    segment,
    *WITHOUT_OPTION.values(),
    partial(segment, flags="RA"),
    partial(segment, flags="SA"),
)


@pytest.fixture
def program(host: Host) -> Iterator[UplinkProgram]:
    with in_namespace(host.namespace), closing(UplinkProgram()) as program:
        yield program


@pytest.fixture
def sent(program: UplinkProgram) -> Send:
    """A function that sends a segment; the bytes that leave. Its checksums are looked at."""

    def send(packet: Packet) -> bytes:
        action, after = program.object.run("throttle_uplinks", bytes(packet))
        assert action == UNSPECIFIED
        assert are_checksums_right(after)
        return after

    return send


@pytest.fixture
def window(sent: Send) -> Window:
    """A function that sends a segment; the window in its header when it leaves."""
    return lambda packet: int(Ether(sent(packet))[TCP].window)


def remind_until(program: UplinkProgram, condition: Callable[[], bool], what: str) -> None:
    """Remind as often as it takes. Fails, naming `what`, if it takes too long."""

    def is_reached() -> bool:
        if condition():
            return True
        program.remind()
        return False

    eventually(is_reached, what)


def throttle(program: UplinkProgram, *subflows: FourTuple, rate: Rate = SLOW) -> None:
    """Throttle these subflows to one rate, with nothing forgiven."""
    program.set_shares({1: rate})
    program.assign(dict.fromkeys(subflows, 1), forgiven=0.0)


@pytest.mark.parametrize("version", [4, 6])
def test_client_in_debt_is_told_that_its_subflow_is_a_backup(program: UplinkProgram, sent: Send, version: int) -> None:
    subflow = ends_of(version)
    throttle(program, subflow)
    first, second = segment(0, subflow), segment(100 * KIB, subflow)
    assert sent(first) == bytes(first)
    before, after = bytes(second), sent(second)
    assert len(after) == len(before) + 4
    assert after.endswith(BACKUP)
    assert Ether(after)[TCP].dataofs == Ether(before)[TCP].dataofs + 1
    assert program.uplinks() == {subflow: ThrottledUplink(Told.BACKUP, 100 * KIB, 0)}
    third = segment(101 * KIB, subflow)
    assert sent(third).endswith(BACKUP)
    assert program.uplinks() == {subflow: ThrottledUplink(Told.BACKUP, 101 * KIB, KIB)}


def test_client_whose_debt_is_paid_is_told_that_its_subflow_is_no_backup(program: UplinkProgram, sent: Send) -> None:
    throttle(program, ends_of(), rate=FAST)
    sent(segment(0))
    assert sent(segment(8_000_000)).endswith(BACKUP)
    answers: list[bytes] = []

    def is_told() -> bool:
        answers.append(sent(segment(8_000_000)))
        return program.uplinks()[ends_of()].told is Told.REGULAR

    eventually(is_told, "the client told that the debt is paid")
    assert answers[-1].endswith(REGULAR)
    told_again = [sent(segment(8_000_000)).endswith(REGULAR) for _ in range(4)]
    assert told_again == [True, True, False, False]


def test_subflows_of_a_share_pay_for_each_other(program: UplinkProgram, sent: Send) -> None:
    first, second = ends_of(), ends_of(port=40001)
    throttle(program, first, second)
    sent(segment(0, first))
    sent(segment(0, second))
    sent(segment(100 * KIB, first))
    assert sent(segment(0, second)).endswith(BACKUP)


def test_client_below_its_rate_is_told_nothing(program: UplinkProgram, sent: Send) -> None:
    throttle(program, ends_of())
    sent(segment(0))
    time.sleep(0.02)
    small = segment(KIB)
    assert sent(small) == bytes(small)
    assert program.uplinks() == {ends_of(): ThrottledUplink(Told.NOTHING, KIB, KIB)}


def test_what_was_queued_before_the_cap_costs_nothing(program: UplinkProgram, sent: Send) -> None:
    program.set_shares({1: SLOW})
    program.assign({ends_of(): 1}, forgiven=0.5)
    assert sent(segment(0)).endswith(BACKUP)
    program.remind()
    assert sent(segment(1000 * KIB)).endswith(BACKUP)
    time.sleep(0.5)
    assert sent(segment(1000 * KIB)).endswith(REGULAR)


@pytest.mark.parametrize("version", [4, 6])
def test_window_of_a_capped_uplink_is_bounded(program: UplinkProgram, window: Window, version: int) -> None:
    subflow, unknown, far = ends_of(version), ends_of(version, port=40001), ends_of(version, port=40002)
    program.set_shares({1: SLOW})
    windows = {subflow: AnnouncedWindow(10, 0), far: AnnouncedWindow(10, 400_000)}
    program.assign({subflow: 1, unknown: 1, far: 1}, windows, forgiven=0.0)

    assert window(segment(0, subflow, window=8192)) == 64
    assert window(segment(0, subflow, window=8192, payload=b"data")) == 64
    assert window(segment(100 * KIB, subflow, window=8192)) == 64, "beside MP_PRIO, too"
    assert window(segment(100 * KIB, subflow, window=63)) == 63
    assert window(segment(0, unknown, window=8192)) == 8192
    program.set_shares({1: Rate.parse("100mbit")})  # in 0.15 s 1.7 MiB of payload
    assert window(segment(0, subflow, window=20000)) == pytest.approx(1700, rel=0.05)
    assert window(segment(0, far, window=20000)) == pytest.approx(1700 * 95 / 15, rel=0.05), (
        "0.15 s and two round trips"
    )
    program.remove_shares([1])
    assert window(segment(100 * KIB, subflow, window=8192)) == 8192


@pytest.mark.parametrize(("scale", "bound"), [(0, 65535), (1, 32768), (7, 512), (14, 4)])
def test_bound_of_a_window_is_in_its_scale(program: UplinkProgram, window: Window, scale: int, bound: int) -> None:
    program.set_shares({1: SLOW})
    program.assign({ends_of(): 1}, {ends_of(): AnnouncedWindow(scale, 0)}, forgiven=0.0)
    for announced, left in ((65535, bound), (0, 0)):
        assert window(segment(0, window=announced)) == left


def test_window_stays_in_the_first_second_and_after_a_handshake(
    program: UplinkProgram, sent: Send, window: Window
) -> None:
    program.set_shares({1: SLOW})
    bounded = {ends_of(): AnnouncedWindow(10, 0)}
    program.assign({ends_of(): 1}, bounded, forgiven=60.0)
    assert window(segment(0, window=8192)) == 8192
    program.forget([ends_of()])
    program.assign({ends_of(): 1}, bounded, forgiven=0.0)
    assert window(segment(0, window=8192)) == 64
    for flags in ("SA", "S"):
        sent(segment(0, flags=flags))
        assert window(segment(0, window=8192)) == 8192, "the scale may be another one"
        program.assign({ends_of(): 1}, bounded, forgiven=0.0)
        assert window(segment(0, window=8192)) == 64


@pytest.mark.parametrize("freed", ["limited", "removed", "free"])
def test_window_of_older_uplinks_stays_in_the_first_second(program: UplinkProgram, window: Window, freed: str) -> None:
    bounded = {ends_of(): AnnouncedWindow(10, 0)}
    program.set_shares({1: SLOW, 2: SLOW})
    program.assign({ends_of(): 1}, bounded, forgiven=0.0)
    program.assign({ends_of(): 2}, bounded, forgiven=60.0)
    assert window(segment(0, window=8192)) == 64, "it was bounded before"
    if freed == "limited":
        program.assign({ends_of(): 1}, forgiven=0.0)
    elif freed == "removed":
        program.remove_shares([2])
    else:
        program.assign({ends_of(): 0})
    assert window(segment(0, window=8192)) == 8192
    program.assign({ends_of(): 1}, bounded, forgiven=60.0)
    assert window(segment(0, window=8192)) == 8192
    program.assign({ends_of(): 1}, bounded, forgiven=0.0)
    assert window(segment(0, window=8192)) == 8192, "the first second goes on"


def test_window_of_a_new_uplink_stays_although_its_share_is_in_debt(
    program: UplinkProgram, sent: Send, window: Window
) -> None:
    program.set_shares({1: SLOW})
    program.assign({ends_of(): 1}, forgiven=0.0)
    sent(segment(0))
    sent(segment(100 * KIB))
    new = ends_of(port=40001)
    program.assign({new: 1}, {new: AnnouncedWindow(10, 0)}, forgiven=60.0)
    assert window(segment(0, new, window=8192)) == 8192


@pytest.mark.parametrize("kind", WITHOUT_OPTION)
def test_segment_that_cannot_carry_the_option_counts(program: UplinkProgram, sent: Send, kind: str) -> None:
    packet = WITHOUT_OPTION[kind](100 * KIB)
    throttle(program, ends_of())
    sent(segment(0))
    assert sent(packet) == bytes(packet)
    assert program.uplinks() == {ends_of(): ThrottledUplink(Told.BACKUP, 100 * KIB, 0)}


@pytest.mark.parametrize(
    "packet",
    [
        segment(100 * KIB, ends_of(port=40001)),
        segment(100 * KIB, ends_of(6)),
        segment(100 * KIB, flags="SA"),
        segment(100 * KIB, flags="R"),
        segment(100 * KIB, ends("10.1.0.2", proxy_port=8081)),
        Ether(bytes(segment(100 * KIB))[:40]),
        Ether(bytes(60)),
    ],
    ids=["other subflow", "other family", "SYN", "RST", "other port", "truncated", "not IP"],
)
def test_other_packets_are_not_touched(program: UplinkProgram, sent: Send, packet: Packet) -> None:
    throttle(program, ends_of())
    sent(segment(0))
    action, after = program.object.run("throttle_uplinks", bytes(packet))
    assert (action, after) == (UNSPECIFIED, bytes(packet))
    assert program.uplinks() == {ends_of(): ThrottledUplink(Told.NOTHING, 0, 0)}


def test_older_acknowledgment_does_not_count(program: UplinkProgram, sent: Send) -> None:
    throttle(program, ends_of())
    sent(segment(1000 * KIB))
    sent(segment(900 * KIB))
    sent(segment(1000 * KIB))
    assert program.uplinks() == {ends_of(): ThrottledUplink(Told.NOTHING, 0, 0)}


def test_acknowledgment_number_may_wrap(program: UplinkProgram, sent: Send) -> None:
    throttle(program, ends_of())
    sent(segment(2**32 - 5000 - KIB))
    sent(segment(2**32 - 5000 - KIB + 3 * KIB - 2**32))
    assert program.uplinks()[ends_of()].acknowledged == 3 * KIB


def sent_by_client(subflow: FourTuple, payload: bytes = b"data", flags: str = "A") -> bytes:
    """A segment of the client."""
    ip = IP if subflow.proxy.address.version == 4 else IPv6
    tcp = TCP(sport=subflow.client.port, dport=subflow.proxy.port, seq=5000, flags=flags)
    return bytes(Ether() / ip(src=str(subflow.client.address), dst=str(subflow.proxy.address)) / tcp / payload)


@pytest.mark.parametrize("version", [4, 6])
def test_excess_of_a_client_that_goes_on_sending_is_dropped(program: UplinkProgram, sent: Send, version: int) -> None:
    subflow, second = ends_of(version), ends_of(version, port=40001)
    throttle(program, subflow, second)
    for acknowledged in (0, 100, 700):
        sent(segment(acknowledged * KIB, subflow))
    assert not program.uplinks()[subflow].is_policed, "it may not have heard of it"
    time.sleep(2.0)
    assert police(program, sent_by_client(subflow)) == UNSPECIFIED
    sent(segment(701 * KIB, subflow))
    assert program.uplinks()[subflow].is_policed
    # However slow this machine is, the client sends more than the rate permits meanwhile.
    verdicts = []
    for kib in range(717, 2000, 16):
        sent(segment(kib * KIB, subflow))
        verdicts.append(police(program, sent_by_client(subflow)))
        if verdicts[-1] == SHOT:
            break
    assert verdicts[-1] == SHOT
    assert police(program, sent_by_client(subflow, b"")) == UNSPECIFIED
    assert police(program, sent_by_client(subflow, b"", "SA")) == UNSPECIFIED
    assert police(program, sent_by_client(second)) == UNSPECIFIED
    assert (program.counters().policed, program.counters().dropped) == (1, 1)
    throttle(program, subflow)
    assert program.uplinks()[subflow].is_policed
    throttle(program, subflow, rate=FAST)
    assert police(program, sent_by_client(subflow)) == UNSPECIFIED
    program.set_shares({2: SLOW})
    program.assign({subflow: 2})
    assert not program.uplinks()[subflow].is_policed, "in another share"


def test_what_a_policed_client_sends_behind_a_gap_is_paid_for(program: UplinkProgram, sent: Send) -> None:
    subflow = ends_of()
    throttle(program, subflow)
    for acknowledged in (0, 100, 700):
        sent(segment(acknowledged * KIB))
    time.sleep(2.0)
    sent(segment(701 * KIB))
    assert program.uplinks()[subflow].is_policed
    police(program, sent_by_client(subflow))
    # A megabyte takes eight seconds at the rate, and would take one if the debt were cut again.
    sent(segment(1701 * KIB))
    time.sleep(1.0)
    sent(segment(1702 * KIB))
    assert police(program, sent_by_client(subflow)) == SHOT


@pytest.fixture
def wire(program: UplinkProgram) -> Iterator[socket.socket]:
    """What leaves through lo, to which segments of BPF_PROG_TEST_RUN belong."""
    assert not program.uplinks()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(0x0003)) as wire:
        wire.bind(("lo", 0x0003))
        wire.settimeout(5)
        yield wire


@pytest.mark.parametrize("version", [4, 6])
def test_reminder_is_the_last_ack_with_what_is_newer(
    program: UplinkProgram, sent: Send, wire: socket.socket, version: int
) -> None:
    subflow = ends_of(version)
    throttle(program, subflow, rate=FAST)
    sent(segment(0, subflow))
    sent(segment(8_000_000, subflow))
    newer = [("NOP", None), ("NOP", None), ("Timestamp", (1001, 2001))]
    sent(segment(8_000_000, subflow, payload=b"data", options=newer + DATA_ACK, window=4321))
    remind_until(program, lambda: program.counters().repeated > 0, "the ACK repeated")
    reminder = wire.recv(2000)
    expected = segment(
        8_000_000, subflow, seq=11, window=4321, options=[*newer, *DATA_ACK, ("NOP", None), (30, b"\x50")]
    )
    assert reminder == bytes(expected)
    assert are_checksums_right(reminder)
    assert program.uplinks()[subflow].told is Told.REGULAR


def test_reminder_is_no_keep_alive_of_steering(program: UplinkProgram, sent: Send, wire: socket.socket) -> None:
    keep_alive = segment(8_001_000, seq=6, window=1024, options=[("NOP", None)] * 4)
    throttle(program, ends_of(), rate=FAST)
    for packet in (keep_alive, segment(0), segment(8_000_000, window=4321), keep_alive):
        last = sent(packet)
    assert last == bytes(keep_alive)
    assert program.uplinks()[ends_of()].acknowledged == 8_000_000
    remind_until(program, lambda: program.counters().repeated > 0, "the ACK repeated")
    options = [*TIMESTAMPS, *DATA_ACK, ("NOP", None), (30, b"\x50")]
    assert wire.recv(2000) == bytes(segment(8_000_000, window=4321, options=options))


def test_reminder_has_the_latest_sequence_number(program: UplinkProgram, sent: Send, wire: socket.socket) -> None:
    throttle(program, ends_of(), rate=FAST)
    sent(segment(0))
    sent(segment(8_000_000, seq=1000))
    sent(segment(8_000_000, seq=1000, payload=b"data"))
    sent(segment(8_000_000, seq=500, payload=b"retransmitted"))
    remind_until(program, lambda: program.counters().repeated > 0, "the ACK repeated")
    assert Ether(wire.recv(2000))[TCP].seq == 1004


def test_new_subflow_of_a_share_in_use_has_no_free_second(program: UplinkProgram, sent: Send) -> None:
    first, second = ends_of(), ends_of(port=40001)
    throttle(program, first)
    sent(segment(0, first))
    sent(segment(100 * KIB, first))
    program.assign({second: 1}, forgiven=60.0)
    sent(segment(0, second))
    sent(segment(1000 * KIB, second))
    throttle(program, rate=FAST)  # which forgets the debt
    assert sent(segment(1000 * KIB, second)).endswith(REGULAR)


def test_reminder_is_repeated_until_the_client_sends_but_not_for_ever(program: UplinkProgram, sent: Send) -> None:
    throttle(program, ends_of(), rate=FAST)
    sent(segment(0))
    sent(segment(8_000_000))
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        program.remind()
    assert program.counters().repeated == 5
    assert program.counters().not_repeated == 0


def test_subflow_of_a_removed_share_is_forgotten_when_its_client_knows(program: UplinkProgram, sent: Send) -> None:
    told, untold, sending = ends_of(), ends_of(port=40001), ends_of(port=40002)
    throttle(program, told, untold, sending)
    sent(segment(0, told))
    sent(segment(0, sending))
    sent(segment(100 * KIB, told))
    sent(segment(100 * KIB, sending))
    program.remove_shares([1])
    program.remind()
    assert program.counters().repeated == 2
    program.remind()
    assert program.uplinks().keys() == {told, sending}
    assert sent(segment(200 * KIB, sending)).endswith(REGULAR)
    program.remind()
    assert program.uplinks().keys() == {told}
    remind_until(program, lambda: not program.uplinks(), "all subflows forgotten")
    # Five times for `told`; for `sending` once, or twice if a slow guest takes longer than a credit from look to look.
    assert 6 <= program.counters().repeated <= 7


def test_ack_without_room_leaves_the_earlier_one_to_be_repeated(
    program: UplinkProgram, sent: Send, wire: socket.socket
) -> None:
    throttle(program, ends_of())
    sent(segment(0))
    sent(segment(100 * KIB))
    sent(segment(101 * KIB, options=FULL))
    program.remove_shares([1])
    program.remind()
    assert wire.recv(2000) == bytes(segment(101 * KIB, options=[*TIMESTAMPS, *DATA_ACK, ("NOP", None), (30, b"\x50")]))


@pytest.mark.parametrize("kind", WITHOUT_OPTION)
def test_subflow_of_a_client_that_was_told_nothing_is_forgotten_at_once(
    program: UplinkProgram, sent: Send, kind: str
) -> None:
    throttle(program, ends_of())
    for acknowledged in (0, 100 * KIB):
        sent(WITHOUT_OPTION[kind](acknowledged))
    program.remove_shares([1])
    program.remind()
    assert program.uplinks() == {}
    assert program.counters().not_repeated == 0


def test_ack_of_an_earlier_subflow_with_its_ports_is_not_repeated(program: UplinkProgram, sent: Send) -> None:
    throttle(program, ends_of())
    sent(segment(0))
    sent(segment(0, flags="SA"))
    for acknowledged in (0, 100 * KIB):
        sent(segment(acknowledged, payload=b"data"))
    program.remove_shares([1])
    program.remind()
    assert (program.uplinks(), program.counters().repeated) == ({}, 0)


def test_subflow_that_has_ended_is_forgotten_at_once(program: UplinkProgram, sent: Send) -> None:
    ended, second = ends_of(), ends_of(port=40001)
    throttle(program, ended, second)
    sent(segment(0, ended))
    sent(segment(100 * KIB, ended))
    program.assign({ended: 0})
    program.forget([ended, ends_of(port=40002)])
    program.remind()
    assert program.uplinks().keys() == {second}
    assert program.counters().repeated == 0


def test_reminders_go_to_all_whatever_was_forgotten_before(program: UplinkProgram, sent: Send) -> None:
    several = [ends_of(port=40000 + number) for number in range(6)]
    throttle(program, *several)
    for subflow in several:
        sent(segment(0, subflow))
    sent(segment(100 * KIB, several[0]))
    for subflow in several[1:]:
        sent(segment(0, subflow))
    program.forget([several[1], several[5]])
    program.forget([several[0]])
    program.assign({several[1]: 1}, forgiven=0.0)
    left = [several[1], several[2], several[3], several[4]]
    assert program.uplinks().keys() == {*left}
    program.remove_shares([1])
    program.remind()
    assert program.counters().repeated == 3, "all but the one that was told nothing since"
    remind_until(program, lambda: not program.uplinks(), "all subflows forgotten")
    program.remind()
    program.set_shares({1: SLOW})
    program.assign(dict.fromkeys(several, 1), forgiven=0.0)
    assert program.uplinks().keys() == {*several}


def test_whatever_is_sent_no_record_is_left_and_no_client_a_backup(program: UplinkProgram, wire: socket.socket) -> None:
    """None of these subflows is reported to have ended: they have no share any more when they end."""
    wire.setblocking(False)
    chance = random.Random(7)  # noqa: S311
    told: dict[int, bytes] = {}

    def note(frame: bytes) -> None:
        tcp = Ether(frame)[TCP]
        if "S" in tcp.flags:
            told.pop(tcp.dport, None)
        elif frame[-4:] in (BACKUP, REGULAR):
            told[tcp.dport] = frame[-4:]

    def all_told() -> bool:
        program.remind()
        with suppress(BlockingIOError):
            while True:
                note(wire.recv(2000))
        return not program.uplinks()

    for round_ in range(1 if guest.inside() else 4):
        subflows = [ends_of(4 + 2 * (number % 2), port=40000 + number) for number in range(150)]
        throttle(program, *subflows)
        for subflow in subflows:
            for length in range(chance.randrange(6)):
                what = chance.choice(ALL_KINDS)(length * 50 * KIB, subflow)
                note(program.object.run("throttle_uplinks", bytes(what))[1])
        assert len(program.uplinks()) == len(subflows)
        program.remove_shares([1])
        eventually(all_told, f"no record left in round {round_}", seen=lambda: len(program.uplinks()))
    assert len(told) > 50
    assert {*told.values()} == {REGULAR}


@pytest.fixture
def raw(host: Host, program: UplinkProgram, tmp_path: Path) -> Iterator[int]:
    """The other end of the interface tun0, where the program sees what leaves."""
    with tun(host.namespace, "tun0") as other_end, closing(ClsactFilters(tmp_path)) as filters:
        host.ip(["link set tun0 addrgenmode none", "link set tun0 up"])
        filters.attach(find_interface("tun0"), {Hook.EGRESS: program.descriptor})
        yield other_end


@pytest.mark.parametrize("version", [4, 6])
def test_interface_without_ethernet_header_carries_options_and_reminders(
    program: UplinkProgram, raw: int, version: int
) -> None:
    def received() -> bytes:
        ready, _, _ = select.select([raw], [], [], 5)
        assert ready, "nothing has left through tun0"
        return os.read(raw, 2000)

    def left(packet: Packet) -> bytes:
        sending.sendto(bytes(packet.payload), ("tun0", packet.type))
        return received()

    both = (ends_of(version), ends_of(10 - version))
    throttle(program, *both, rate=FAST)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
        sending.bind(("tun0", ETH_P_ALL))  # it receives what others send there
        sending.settimeout(5)
        for subflow in both:
            first = segment(0, subflow)
            assert left(first) == bytes(first.payload)
        for subflow in both:
            assert left(segment(8_000_000, subflow)).endswith(BACKUP)
        # In one run, one after the other: each reminder must have the protocol of its own IP header.
        remind_until(program, lambda: program.counters().repeated == len(both), "both ACKs repeated")
        protocols = {protocol for _, (_, protocol, *_) in (sending.recvfrom(2000) for _ in both)}
    assert protocols == {ETH_P_IP, ETH_P_IPV6}
    options = [*TIMESTAMPS, *DATA_ACK, ("NOP", None), (30, b"\x50")]
    reminders = {received() for _ in both}
    assert reminders == {bytes(segment(8_000_000, subflow, options=options).payload) for subflow in both}
    assert program.counters().not_repeated == 0


@pytest.mark.parametrize("version", [4, 6])
def test_no_packet_is_damaged_and_none_of_others_is_changed(program: UplinkProgram, version: int) -> None:
    subflow = ends_of(version)
    program.set_shares({1: SLOW})
    program.assign({subflow: 1}, {subflow: AnnouncedWindow(10, 0)}, forgiven=0.0)
    known = bytes(segment(100 * KIB, subflow, window=8192))
    program.object.run("throttle_uplinks", bytes(segment(0, subflow)))

    def leave(frame: bytes) -> bytes:
        verdict, after = program.object.run("throttle_uplinks", frame)
        assert verdict == UNSPECIFIED
        return after

    assert check_harmless(leave, known, seed=version) > PACKETS / 10
