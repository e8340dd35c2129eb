import tracemalloc
from io import BytesIO
from struct import pack

import pytest
from capture_files import (
    DATA,
    ETHERNET,
    MICROSECONDS,
    NANOSECONDS,
    RAW,
    block,
    interface,
    old_packet,
    packet,
    pcap,
    section,
    simple_packet,
)
from hypothesis import given
from hypothesis import strategies as st

from mptcp_lab.capture_reader.capture_file import Damaged, FileFrame, read_frames


def frames_of(file: bytes) -> list[FileFrame]:
    return list(read_frames(BytesIO(file)))


def read_until_damage(file: bytes) -> tuple[list[FileFrame], str]:
    frames = []
    try:
        for frame in read_frames(BytesIO(file)):
            frames.append(frame)
    except Damaged as error:
        return frames, str(error)
    return frames, ""


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic", [MICROSECONDS, NANOSECONDS])
def test_pcap_is_read_in_both_byte_orders_and_resolutions(magic: int, order: str) -> None:
    file = pcap(b"one", b"", order=order, magic=magic, link_type=RAW)
    assert frames_of(file) == [FileFrame(RAW, b"one", 1.5), FileFrame(RAW, b"", 2.5)]


def test_pcap_link_type_is_read_without_the_bits_of_the_check_sequence() -> None:
    assert frames_of(pcap(DATA, link_type=0x2400_0000 | ETHERNET)) == [FileFrame(ETHERNET, DATA, 1.5)]


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ([], 3.0),
        ([(9, b"\x09")], 0.003),
        ([(9, b"\x94")], 3 * 10**6 / 2**20),
        ([(14, pack("<q", 1000))], 1003.0),
        ([(2, b"eth0"), (9, b"\x06"), (14, pack("<q", -2)), (0, b"")], 1.0),
        ([(0, b""), (9, b"\x09")], 3.0),
    ],
    ids=["microseconds", "nanoseconds", "power of two", "offset", "all", "after the end"],
)
def test_pcapng_times_have_the_resolution_and_offset_of_their_interface(
    options: list[tuple[int, bytes]], at: float
) -> None:
    assert frames_of(section() + interface(*options) + packet(3 * 10**6)) == [FileFrame(ETHERNET, DATA, at)]


@pytest.mark.parametrize(("snap_bytes", "original_bytes", "kept"), [(0, 5, 5), (0, 3, 3), (4, 1500, 4), (9, 5, 5)])
def test_pcapng_simple_packet_has_the_first_interface_and_no_time(
    snap_bytes: int, original_bytes: int, kept: int
) -> None:
    file = section() + interface(link_type=RAW, snap_bytes=snap_bytes) + interface()
    (frame,) = frames_of(file + simple_packet(original_bytes=original_bytes))
    assert frame == FileFrame(RAW, DATA[:kept], None)


def test_pcapng_sections_interfaces_and_unknown_blocks_are_kept_apart() -> None:
    statistics = block(5, bytes(12))
    first = section() + interface() + interface(link_type=RAW) + statistics + packet(10**6, of=1) + old_packet(10**6)
    second = section(">") + interface(order=">", link_type=RAW) + packet(2 * 10**6, order=">")
    assert frames_of(first + second) == [
        FileFrame(RAW, DATA, 1.0),
        FileFrame(ETHERNET, DATA, 1.0),
        FileFrame(RAW, DATA, 2.0),
    ]


FILES = [
    pcap(b"one", b"", b"three"),
    section() + interface((9, b"\x09")) + packet(1) + simple_packet() + section(">") + interface(order=">"),
]


@pytest.mark.parametrize("file", FILES, ids=["pcap", "pcapng"])
def test_frames_before_a_truncation_are_read(file: bytes) -> None:
    whole = frames_of(file)
    silent = 0
    for length in range(4, len(file)):
        frames, damage = read_until_damage(file[:length])
        assert frames == whole[: len(frames)]
        assert damage in ("", "is truncated")
        silent += not damage
    assert silent == (3 if file is FILES[0] else 5), "only between records or blocks"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (b"", "is not a pcap or pcapng file"),
        (b"text", "is not a pcap or pcapng file"),
        (pcap() + pack("<IIII", 1, 1, 2**32 - 1, 1), "is damaged: a frame of 4294967295 bytes"),
        (section() + pack("<II", 6, 2**32 - 4), "is damaged: a block of 4294967292 bytes"),
        (section() + pack("<II", 6, 8), "is damaged: a block of 8 bytes"),
        (section() + pack("<II", 6, 13), "is damaged: a block of 13 bytes"),
        (section() + interface()[:-4] + pack("<I", 24), "is damaged: a block with two lengths"),
        (section()[:8] + b"????", "is damaged: a section with byte order 3f3f3f3f"),
        (section() + packet(1), "is damaged: a block of type 6 with a body of 28 bytes"),
        (section() + simple_packet(), "is damaged: a block of type 3 with a body of 12 bytes"),
        (section() + interface((9, b"")), "is damaged: a block of type 1 with a body of 12 bytes"),
        (section() + interface() + block(6, bytes(8)), "is damaged: a block of type 6 with a body of 8 bytes"),
        (
            section() + interface() + block(6, pack("<IIIII", 0, 0, 0, 8, 8) + bytes(4)),
            "is damaged: a frame of 8 bytes in a block of 24",
        ),
        (section() + interface() * (2**16 + 1), "is damaged: more than 65536 interfaces"),
    ],
)
def test_damage_is_named(file: bytes, damage: str) -> None:
    assert read_until_damage(file) == ([], damage)


@pytest.mark.parametrize(
    "claim", [pcap() + pack("<IIII", 1, 1, 2**32 - 1, 1), section() + pack("<II", 6, 2**32 - 4)], ids=["pcap", "pcapng"]
)
def test_lengths_that_a_file_claims_take_no_memory(claim: bytes) -> None:
    tracemalloc.start()
    read_until_damage(claim)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**16


_BLOCKS = st.builds(lambda kind, body: block(kind, body), st.integers(0, 7), st.binary(max_size=40))


@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(lambda data: pcap() + data, st.binary(max_size=100)),
        st.builds(lambda blocks: section() + b"".join(blocks), st.lists(_BLOCKS, max_size=6)),
        st.builds(lambda blocks: section() + interface() + b"".join(blocks), st.lists(_BLOCKS, max_size=6)),
    )
)
def test_arbitrary_bytes_give_frames_or_damage_and_nothing_else(file: bytes) -> None:
    frames, _ = read_until_damage(file)
    assert sum(len(frame.data) for frame in frames) <= len(file)
