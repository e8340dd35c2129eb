from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import KEY, capable_syn, capable_synack, join_syn, join_synack

from mptcp_sniffer.options import MpCapable, MpJoinSyn, MpJoinSynAck, decode_handshake
from mptcp_sniffer.segment import Malformed
from mptcp_throttle.model import Token

MSS = bytes([2, 4, 5, 180])
NOP = b"\x01"
END = b"\x00"


def option(body: bytes) -> bytes:
    return bytes([30, len(body) + 2]) + body


@pytest.mark.parametrize("before", [b"", NOP, MSS, MSS + NOP + NOP])
@pytest.mark.parametrize("after", [b"", NOP, MSS, END + b"\xff\xff"])
@pytest.mark.parametrize(
    ("body", "ack", "expected"),
    [
        (capable_syn(1), False, MpCapable(1, None)),
        (capable_syn(0), False, MpCapable(0, b"clientke")),
        (capable_synack(KEY, 1), True, MpCapable(1, KEY)),
        (capable_synack(KEY, 0), True, MpCapable(0, KEY)),
        (join_syn(Token(0xDEADBEEF), address_id=3), False, MpJoinSyn(False, 3, 0xDEADBEEF)),
        (join_syn(Token(0xDEADBEEF), backup=True), False, MpJoinSyn(True, 2, 0xDEADBEEF)),
        (join_synack(), True, MpJoinSynAck(False, 0)),
    ],
)
def test_the_handshake_option_is_found_wherever_it_stands(
    before: bytes, after: bytes, body: bytes, ack: bool, expected: object
) -> None:
    assert decode_handshake(before + option(body) + after, ack=ack) == expected


def test_segments_without_a_handshake_option_have_none() -> None:
    dss = option(bytes([0x20, 0x01, 0, 0, 0, 1]))
    future_version = option(bytes([0x02, 0x81]))
    for options in (b"", MSS, dss, future_version, END + option(capable_syn())):
        assert decode_handshake(options, ack=False) is None


@pytest.mark.parametrize(
    "options",
    [
        bytes([30]),
        bytes([30, 0]),
        bytes([30, 1]),
        bytes([30, 2]),
        bytes([30, 12, 0x10]),
        option(capable_syn(1) + b"x"),
        option(capable_syn(0)[:-1]),
        option(join_syn(Token(1))[:-1]),
        option(join_synack()),
        option(capable_syn()) + option(join_syn(Token(1))),
        bytes([8, 0, 0, 0]),
    ],
)
def test_wrong_lengths_and_contradictions_are_malformed(options: bytes) -> None:
    with pytest.raises(Malformed):
        decode_handshake(options, ack=False)


@given(st.binary(max_size=40), st.booleans())
def test_no_option_soup_raises_anything_but_malformed(options: bytes, ack: bool) -> None:
    with suppress(Malformed):
        decode_handshake(options, ack=ack)
