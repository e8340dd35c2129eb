from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_sniffer.options import (
    AddAddr,
    Decoded,
    MpCapable,
    MpFail,
    MpFastclose,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MpPrio,
    MpTcpRst,
    Option,
    RemoveAddr,
    decode,
)
from mptcp_sniffer.segment import Flag

SYN, SYNACK, ACK, RST = Flag.SYN, Flag.SYN | Flag.ACK, Flag.ACK, Flag.RST

MSS = bytes([2, 4, 5, 180])
NOP = b"\x01"
END = b"\x00"
DSS = bytes([30, 8, 0x20, 0x01, 0, 0, 0, 1])
PRIO = bytes([30, 3, 0x51])

KEY = bytes.fromhex("0102030405060708")
PEER = bytes.fromhex("1112131415161718")
HMAC = bytes(range(20))
V4 = bytes([10, 2, 0, 2])
V6 = bytes.fromhex("fd000002000000000000000000000002")
PORT = bytes([0x1F, 0x90])


def option(body: bytes) -> bytes:
    return bytes([30, len(body) + 2]) + body


FORMS: dict[str, tuple[bytes, int, Option]] = {
    "MP_CAPABLE SYN v0": (b"\x00\x01" + KEY, SYN, MpCapable(0, KEY, None)),
    "MP_CAPABLE SYN v1": (b"\x01\x01", SYN, MpCapable(1, None, None)),
    "MP_CAPABLE SYN/ACK v0": (b"\x00\x01" + PEER, SYNACK, MpCapable(0, PEER, None)),
    "MP_CAPABLE SYN/ACK v1": (b"\x01\x81" + PEER, SYNACK, MpCapable(1, PEER, None)),
    "MP_CAPABLE ACK v0": (b"\x00\x01" + KEY + PEER, ACK, MpCapable(0, KEY, PEER)),
    "MP_CAPABLE ACK v1": (b"\x01\x01" + KEY + PEER, ACK, MpCapable(1, KEY, PEER)),
    "MP_CAPABLE data v1": (b"\x01\x01" + KEY + PEER + b"\x05\xb4", ACK, MpCapable(1, KEY, PEER)),
    "MP_CAPABLE data and checksum v1": (b"\x01\x81" + KEY + PEER + b"\x05\xb4\xbe\xef", ACK, MpCapable(1, KEY, PEER)),
    "MP_JOIN SYN": (b"\x10\x03\xde\xad\xbe\xefnonc", SYN, MpJoinSyn(False, 3, 0xDEADBEEF, b"nonc")),
    "MP_JOIN SYN, backup": (b"\x11\x00\x00\x00\x00\x01nonc", SYN, MpJoinSyn(True, 0, 1, b"nonc")),
    "MP_JOIN SYN/ACK": (b"\x10\x04" + HMAC[:8] + b"nonc", SYNACK, MpJoinSynAck(False, 4, HMAC[:8], b"nonc")),
    "MP_JOIN SYN/ACK, backup": (b"\x11\x00" + HMAC[:8] + b"nonc", SYNACK, MpJoinSynAck(True, 0, HMAC[:8], b"nonc")),
    "MP_JOIN ACK": (b"\x10\x00" + HMAC, ACK, MpJoinAck(HMAC)),
    "ADD_ADDR v0": (b"\x34\x05" + V4, ACK, AddAddr(5, ip_address(V4), None, False)),
    "ADD_ADDR v0, port": (b"\x34\x05" + V4 + PORT, ACK, AddAddr(5, ip_address(V4), 8080, False)),
    "ADD_ADDR v0, IPv6": (b"\x36\x05" + V6, ACK, AddAddr(5, ip_address(V6), None, False)),
    "ADD_ADDR v0, IPv6, port": (b"\x36\x05" + V6 + PORT, ACK, AddAddr(5, ip_address(V6), 8080, False)),
    "ADD_ADDR": (b"\x30\x05" + V4 + HMAC[:8], ACK, AddAddr(5, ip_address(V4), None, False)),
    "ADD_ADDR, port": (b"\x30\x05" + V4 + PORT + HMAC[:8], ACK, AddAddr(5, ip_address(V4), 8080, False)),
    "ADD_ADDR, IPv6": (b"\x30\x05" + V6 + HMAC[:8], ACK, AddAddr(5, ip_address(V6), None, False)),
    "ADD_ADDR, IPv6, port": (b"\x30\x05" + V6 + PORT + HMAC[:8], ACK, AddAddr(5, ip_address(V6), 8080, False)),
    "ADD_ADDR, unknown flag": (b"\x34\x05" + V4 + HMAC[:8], ACK, AddAddr(5, ip_address(V4), None, False)),
    "ADD_ADDR echo": (b"\x31\x05" + V4, ACK, AddAddr(5, ip_address(V4), None, True)),
    "ADD_ADDR echo, port": (b"\x31\x05" + V4 + PORT, ACK, AddAddr(5, ip_address(V4), 8080, True)),
    "ADD_ADDR echo, IPv6": (b"\x31\x05" + V6, ACK, AddAddr(5, ip_address(V6), None, True)),
    "ADD_ADDR echo, IPv6, port": (b"\x31\x05" + V6 + PORT, ACK, AddAddr(5, ip_address(V6), 8080, True)),
    "REMOVE_ADDR": (b"\x40\x07", ACK, RemoveAddr((7,))),
    "REMOVE_ADDR of 8": (b"\x40\x08\x07\x06\x05\x04\x03\x02\x01", ACK, RemoveAddr((8, 7, 6, 5, 4, 3, 2, 1))),
    "MP_PRIO": (b"\x50", ACK, MpPrio(False, None)),
    "MP_PRIO, backup": (b"\x51", ACK, MpPrio(True, None)),
    "MP_PRIO v0": (b"\x51\x09", ACK, MpPrio(True, 9)),
    "MP_FAIL": (b"\x60\x00" + KEY, ACK, MpFail(0x0102030405060708)),
    "MP_FASTCLOSE": (b"\x70\x00" + PEER, ACK, MpFastclose(PEER)),
    "MP_TCPRST": (b"\x80\x03", RST, MpTcpRst(False, 3)),
    "MP_TCPRST, transient": (b"\x81\x02", RST, MpTcpRst(True, 2)),
}

LENGTHS = {
    "MP_CAPABLE of a SYN, v0": (b"\x00\x01", SYN, {12}),
    "MP_CAPABLE of a SYN, v1": (b"\x01\x01", SYN, {4}),
    "MP_CAPABLE of a SYN/ACK": (b"\x01\x01", SYNACK, {12}),
    "MP_CAPABLE of an ACK, v0": (b"\x00\x01", ACK, {20}),
    "MP_CAPABLE of an ACK, v1": (b"\x01\x01", ACK, {20, 22, 24}),
    "MP_JOIN of a SYN": (b"\x10", SYN, {12}),
    "MP_JOIN of a SYN/ACK": (b"\x10", SYNACK, {16}),
    "MP_JOIN of an ACK": (b"\x10", ACK, {24}),
    "ADD_ADDR": (b"\x30", ACK, {16, 18, 28, 30}),
    "ADD_ADDR echo": (b"\x31", ACK, {8, 10, 20, 22}),
    "ADD_ADDR v0": (b"\x34", ACK, {8, 10} | {16, 18, 28, 30}),  # the latter: version 1 with an unknown flag
    "ADD_ADDR v0, IPv6": (b"\x36", ACK, {20, 22} | {16, 18, 28, 30}),
    "REMOVE_ADDR": (b"\x40", ACK, set(range(4, 12))),
    "MP_PRIO": (b"\x50", ACK, {3, 4}),
    "MP_FAIL": (b"\x60", ACK, {12}),
    "MP_FASTCLOSE": (b"\x70", ACK, {12}),
    "MP_TCPRST": (b"\x80", RST, {4}),
}


@pytest.mark.parametrize(("body", "flags", "expected"), FORMS.values(), ids=FORMS)
def test_every_form_is_decoded_at_any_position(body: bytes, flags: int, expected: Option) -> None:
    for before in (b"", NOP, MSS, MSS + NOP + NOP, DSS):
        for after in (b"", NOP, MSS, DSS, END + b"\xff\xff"):
            assert decode(before + option(body) + after, flags) == Decoded((expected,), 0)


@pytest.mark.parametrize(("start", "flags", "lengths"), LENGTHS.values(), ids=LENGTHS)
def test_every_other_length_is_malformed(start: bytes, flags: int, lengths: set[int]) -> None:
    accepted = set()
    for length in range(len(start) + 2, 41):
        options, malformed = decode(option(start.ljust(length - 2, b"\0")), flags)
        assert len(options) + malformed == 1
        if options:
            accepted.add(length)
    assert accepted == lengths


@pytest.mark.parametrize("whole", [option(body) for body, _, _ in FORMS.values()], ids=FORMS)
def test_option_cut_off_anywhere_is_malformed_and_earlier_ones_are_kept(whole: bytes) -> None:
    for length in range(1, len(whole)):
        assert decode(PRIO + whole[:length], ACK) == Decoded((MpPrio(True, None),), 1)


@pytest.mark.parametrize(
    "malformed", [option(b""), option(b"\x10"), option(b"\x01\x01\x00"), option(b"\x35\x05" + V4 + HMAC)]
)
def test_malformed_option_does_not_affect_others(malformed: bytes) -> None:
    assert decode(PRIO + malformed + option(b"\x40\x07"), ACK) == Decoded((MpPrio(True, None), RemoveAddr((7,))), 1)


@pytest.mark.parametrize(
    "contradiction", [b"\x08\x00", b"\x08\x01", b"\x1e\x00", b"\x1e\x01", b"\x08\xff", b"\x1e\xff"]
)
def test_length_beyond_the_header_ends_the_walk_and_earlier_ones_are_kept(contradiction: bytes) -> None:
    assert decode(PRIO + contradiction + PRIO, ACK) == Decoded((MpPrio(True, None),), 1)


IGNORED = {
    "no MPTCP": MSS + NOP,
    "DSS": DSS,
    "unknown subtype": option(b"\x90\x01"),
    "experimental subtype": option(b"\xf0"),
    "future version": option(b"\x02\x01"),
    "extensibility flag": option(b"\x01\x41"),
    "unknown hash": option(b"\x01\x02"),
    "after the end of options": END + option(b"\x01\x01"),
}


@pytest.mark.parametrize("ignored", IGNORED.values(), ids=IGNORED)
def test_unknown_options_are_ignored(ignored: bytes) -> None:
    assert decode(ignored, SYN) == Decoded((), 0)


def test_several_options_keep_their_order() -> None:
    bodies = (b"\x51", b"\x40\x07", b"\x50", b"\x31\x05" + V4)
    expected = (MpPrio(True, None), RemoveAddr((7,)), MpPrio(False, None), AddAddr(5, ip_address(V4), None, True))
    assert decode(NOP.join(map(option, bodies)), ACK).options == expected
    assert decode(DSS.join(map(option, reversed(bodies))), ACK).options == expected[::-1]


@given(st.lists(st.one_of(st.binary(max_size=40), st.binary(max_size=30).map(option))), st.integers(0, 255))
def test_arbitrary_bytes_and_flags_raise_nothing(soup: list[bytes], flags: int) -> None:
    assert decode(b"".join(soup), flags).malformed >= 0
