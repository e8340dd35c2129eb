"""Reassembly of a connection from a capture: on streams that are known."""

import random
from hashlib import sha256
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_lab.capture_reader.capture_file import FileFrame
from mptcp_lab.disorder.arrivals import Arrival, find_arrivals
from mptcp_lab.disorder.mappings import DataMapping, data_mapping
from mptcp_lab.disorder.reassembly import Reassembly
from mptcp_lab.disorder.summary import summarise
from mptcp_sniffer.segment import Flag, PackedEndpoint

ONE, TWO = PackedEndpoint(b"\n\1\0\1", 1000), PackedEndpoint(b"\n\2\0\1", 2000)
PORT = 5201
SENDER, RECEIVER = bytes(range(8)), bytes(range(8, 16))
TOKEN = int.from_bytes(sha256(RECEIVER).digest()[:4])
FIRST_BYTE = int.from_bytes(sha256(SENDER).digest()[-8:]) + 1
SUBFLOW_SEQUENCES = {ONE: 2**32 - 700, TWO: 5}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=60))
def test_reassembly_equals_that_of_a_receiver_that_keeps_every_byte(pieces: list[tuple[int, int]]) -> None:
    stream, arrived = Reassembly(), set[int]()
    for start, size in pieces:
        piece = set(range(start, start + size))
        expected = next(n for n in range(200) if n not in arrived)
        added = stream.add(start, start + size)
        assert (added.new, added.in_order) == (len(piece - arrived), start <= expected)
        arrived |= piece
        assert stream.expected == next(n for n in range(200) if n not in arrived)
        assert stream.held == sum(n > stream.expected for n in arrived)


def arrivals(*pieces: tuple[PackedEndpoint, int, int]) -> list[Arrival]:
    """Packets of 100 bytes, one each second: subflow, number in the subflow, number in the connection."""
    return [Arrival(at, subflow, own * 100, whole * 100, 100) for at, (subflow, own, whole) in enumerate(pieces)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # The first of the two that overtook came two seconds and two packets before the late one.
        ([(ONE, 0, 0), (TWO, 0, 2), (TWO, 1, 3), (ONE, 1, 1), (TWO, 2, 4)], (5, 40.0, 0.0, 200, 2, 2000.0)),
        # RFC 4737, section 4.2.1: i - j of the packets 3, 1, 2 is 1 for the second, and 2 for the third.
        ([(ONE, 0, 2), (TWO, 0, 0), (TWO, 1, 1)], (3, 33.3, 0.0, 100, 2, 2000.0)),
        # Each early packet waits until no earlier byte is missing.
        ([(ONE, 0, 0), (TWO, 0, 2), (TWO, 1, 4), (ONE, 1, 1), (ONE, 2, 3)], (5, 40.0, 0.0, 200, 2, 2000.0)),
        # What arrives twice counts once, also while it is kept.
        ([(ONE, 0, 0), (TWO, 0, 0), (ONE, 2, 2), (ONE, 1, 1), (ONE, 2, 2)], (3, 0.0, 33.3, 0, 0, 0.0)),
        ([(ONE, 0, 0), (ONE, 2, 2), (ONE, 2, 2), (ONE, 1, 1)], (3, 0.0, 33.3, 0, 0, 0.0)),
        # TCP keeps the second packet of subflow one until the first has come: by then it is not early any more.
        ([(ONE, 1, 1), (ONE, 0, 0), (TWO, 0, 2)], (3, 0.0, 33.3, 0, 0, 0.0)),
    ],
    ids=["a late path", "extent", "waits", "twice", "twice while kept", "in its subflow"],
)
def test_summary_tells_what_is_out_of_order(
    pieces: list[tuple[PackedEndpoint, int, int]], expected: tuple[float, ...]
) -> None:
    summary = summarise(arrivals(*pieces))
    shares = round(summary.percent, 1), round(summary.percent_in_subflows, 1)
    assert (summary.packets, *shares, summary.most_held, summary.extent, summary.wait) == expected


def test_packet_that_is_missing_is_an_error() -> None:
    """What comes later on its subflow would be in no figure."""
    later = [(ONE, number, number) for number in range(2, 9)]
    assert summarise(arrivals((ONE, 0, 0), *later[:5])).packets == 1
    with pytest.raises(ValueError, match="a packet of a subflow is missing"):
        summarise(arrivals((ONE, 0, 0), *later))


def dss(sequence: int, subflow: int, length: int, *, wide: bool, ack: int, checksum: bool) -> bytes:
    flags = 0x04 | (0x08 if wide else 0) | {0: 0, 4: 0x01, 8: 0x03}[ack]
    numbers = sequence.to_bytes(8)[0 if wide else 4 :] + pack("!IH", subflow, length)
    body = bytes([0x20, flags]) + bytes(ack) + numbers + (b"\0\0" if checksum else b"")
    return bytes([1, 30, len(body) + 2]) + body


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("ack", [0, 4, 8])
@pytest.mark.parametrize("checksum", [True, False])
def test_mapping_is_read_whatever_else_the_option_has(*, wide: bool, ack: int, checksum: bool) -> None:
    sequence = 0x1234_5678_9ABC_DEF0
    option = dss(sequence, 77, 1400, wide=wide, ack=ack, checksum=checksum)
    known = sequence if wide else sequence % 2**32
    assert data_mapping(option, Flag.ACK) == DataMapping(known, 64 if wide else 32, 77, 1400)
    assert data_mapping(option[:-3], Flag.ACK) is None


def test_infinite_mapping_and_acknowledgment_alone_are_no_mapping() -> None:
    assert data_mapping(dss(1, 1, 0, wide=True, ack=8, checksum=False), Flag.ACK) is None
    assert data_mapping(bytes([30, 8, 0x20, 0x01]) + bytes(4), Flag.ACK) is None


def frame(at: float, source: PackedEndpoint, sequence: int, options: bytes, flags: int, size: int) -> FileFrame:
    options += b"\1" * (-len(options) % 4)
    header = 20 + len(options)
    tcp = pack("!HHIIBBHHH", source.port, PORT, sequence % 2**32, 0, header // 4 << 4, flags, 0, 0, 0) + options
    ip = pack("!BBHIBBH", 0x45, 0, 20 + header + size, 0, 64, 6, 0) + source.address + b"\n\3\0\1"
    return FileFrame(276, bytes(20) + ip + tcp, at)


def handshakes() -> list[FileFrame]:
    capable = bytes([30, 20, 0x01, 0x01]) + SENDER + RECEIVER
    join = bytes([30, 12, 0x10, 1]) + TOKEN.to_bytes(4) + bytes(4)
    return [
        frame(0, ONE, SUBFLOW_SEQUENCES[ONE] - 1, bytes([30, 4, 0x01, 0x01]), Flag.SYN, 0),
        frame(0, ONE, SUBFLOW_SEQUENCES[ONE], capable, Flag.ACK, 0),
        frame(0, TWO, SUBFLOW_SEQUENCES[TWO] - 1, join, Flag.SYN, 0),
    ]


@pytest.mark.parametrize("wide", [True, False])
def test_arrivals_of_two_subflows_are_placed_in_their_connection(*, wide: bool) -> None:
    choice = random.Random(1)  # noqa: S311
    sent = {ONE: 0, TWO: 0}
    frames, expected = handshakes(), []
    for number in range(50):
        subflow = choice.choice([ONE, TWO])
        option = dss((FIRST_BYTE + number * 100) % 2**64, sent[subflow] + 1, 100, wide=wide, ack=4, checksum=False)
        # The second half of a packet has the mapping of the first.
        for half, options in ((0, option), (50, b"")):
            sequence = SUBFLOW_SEQUENCES[subflow] + sent[subflow] + half
            frames.append(frame(number, subflow, sequence, options, Flag.ACK, 50))
            expected.append(Arrival(number, subflow, sent[subflow] + half, number * 100 + half, 50))
        sent[subflow] += 100
    other = frame(1, PackedEndpoint(b"\n\7\0\1", 9), 1, b"", Flag.ACK, 100)
    assert find_arrivals([*frames, other], PORT) == {TOKEN: expected}
    assert find_arrivals(frames, PORT + 1) == {}


def test_first_data_may_come_with_the_keys() -> None:
    capable = bytes([30, 22, 0x01, 0x01]) + SENDER + RECEIVER + (300).to_bytes(2)
    frames = [
        handshakes()[0],
        frame(0, ONE, SUBFLOW_SEQUENCES[ONE], capable, Flag.ACK, 300),
        frame(1, ONE, SUBFLOW_SEQUENCES[ONE] + 300, b"", Flag.ACK, 10),
    ]
    assert find_arrivals(frames, PORT) == {TOKEN: [Arrival(0, ONE, 0, 0, 300)]}


def test_frames_of_another_link_type_are_refused() -> None:
    with pytest.raises(ValueError, match="link type 1; allowed: 276"):
        find_arrivals([FileFrame(1, bytes(60), 0.0)], PORT)
