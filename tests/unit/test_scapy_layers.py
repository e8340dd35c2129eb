from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from options_target import layer_of, on_the_wire
from scapy.layers.inet import ICMP, IP, TCP, TCPerror
from scapy.layers.l2 import Ether
from segments import frame

from mptcp_lab.scapy_layers import (
    AddAddrOption,
    AddAddrV0Option,
    DssOption,
    MpCapableOption,
    MpFailOption,
    MpFastcloseOption,
    MpJoinAckOption,
    MpJoinSynAckOption,
    MpJoinSynOption,
    MpPrioOption,
    MptcpOption,
    MpTcpRstOption,
    RemoveAddrOption,
)
from mptcp_sniffer.options import (
    AddAddr,
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

BIT = st.integers(0, 1)
BYTE = st.integers(0, 0xFF)
SHORT = st.integers(0, 0xFFFF)
INT = st.integers(0, 2**32 - 1)
LONG = st.integers(0, 2**64 - 1)
IPV4 = st.ip_addresses(v=4)
IPV6 = st.ip_addresses(v=6)
IDS = st.lists(BYTE, min_size=1, max_size=8)


def octets(count: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=count, max_size=count)


CAPABLE = {"version": BIT, "flags": BYTE}
KEYS = {"sender_key": octets(8), "receiver_key": octets(8)}
JOIN = {"backup": BIT, "address_id": BYTE, "sender_random_number": octets(4)}
ADDED = {"address_id": BYTE, "address": IPV4 | IPV6, "port": st.none() | SHORT}


def dss_fields(flags: int) -> dict[str, int]:
    """The fields of a DSS option with these flags, with values of the full width."""
    fields = {"flags": flags}
    if flags & 0x01:
        fields["data_ack"] = 0x0102030405060708 if flags & 0x02 else 0x01020304
    if flags & 0x04:
        fields["data_sequence_number"] = 0x1112131415161718 if flags & 0x08 else 0x11121314
        fields |= {"subflow_sequence_number": 0x21222324, "data_level_length": 0x3132}
    return fields


LAYERS: list[st.SearchStrategy[MptcpOption]] = [
    st.builds(MpCapableOption, **CAPABLE),
    st.builds(MpCapableOption, **CAPABLE, sender_key=octets(8)),
    st.builds(MpCapableOption, **CAPABLE, **KEYS),
    st.builds(MpCapableOption, **CAPABLE, **KEYS, data_level_length=SHORT),
    st.builds(MpCapableOption, **CAPABLE, **KEYS, data_level_length=SHORT, checksum=SHORT),
    st.builds(MpJoinSynOption, **JOIN, receiver_token=INT),
    st.builds(MpJoinSynAckOption, **JOIN, sender_truncated_hmac=octets(8)),
    st.builds(MpJoinAckOption, sender_hmac=octets(20)),
    st.builds(AddAddrOption, **ADDED, truncated_hmac=octets(8)),
    st.builds(AddAddrOption, **ADDED, echo=st.just(1)),
    st.builds(AddAddrV0Option, **ADDED | {"address": IPV4}),
    st.builds(AddAddrV0Option, **ADDED | {"address": IPV6}, ipver=st.just(6)),
    st.builds(RemoveAddrOption, address_ids=IDS),
    st.builds(RemoveAddrOption, address_ids=st.just([8, 7, 6, 5, 4, 3, 2, 1])),
    st.builds(MpPrioOption, backup=BIT, address_id=st.none() | BYTE),
    st.builds(MpFailOption, data_sequence_number=LONG),
    st.builds(MpFastcloseOption, receiver_key=octets(8)),
    st.builds(MpTcpRstOption, flags=st.integers(0, 15), reason=BYTE),
]

OPTIONS: dict[int, list[st.SearchStrategy[Option]]] = {
    Flag.SYN: [
        st.builds(MpCapable, st.just(0), octets(8), st.none()),
        st.builds(MpCapable, st.just(1), st.none(), st.none()),
        st.builds(MpJoinSyn, st.booleans(), BYTE, INT, octets(4)),
    ],
    Flag.SYN | Flag.ACK: [
        st.builds(MpCapable, BIT, octets(8), st.none()),
        st.builds(MpJoinSynAck, st.booleans(), BYTE, octets(8), octets(4)),
    ],
    Flag.ACK: [
        st.builds(MpCapable, BIT, octets(8), octets(8)),
        st.builds(MpJoinAck, octets(20)),
        st.builds(AddAddr, BYTE, IPV4 | IPV6, st.none() | SHORT, st.booleans()),
        st.builds(RemoveAddr, IDS.map(tuple)),
        st.builds(MpPrio, st.booleans(), st.none() | BYTE),
        st.builds(MpFail, LONG),
        st.builds(MpFastclose, octets(8)),
        st.builds(MpTcpRst, st.booleans(), BYTE),
    ],
}


def dissected(options: bytes) -> list[tuple[str | int, object]]:
    """The options that Scapy dissects from raw bytes, which fill their header."""
    header = bytes(TCP(dataofs=5 + len(options) // 4)) + options
    options_of_tcp: list[tuple[str | int, object]] = TCP(header).options
    return options_of_tcp


def assert_built_and_dissected(layer: MptcpOption) -> None:
    (name, again), *padding = dissected(on_the_wire(layer))
    assert (name, type(again)) == ("MPTCP", type(layer))
    assert again == layer
    again.clear_cache()
    assert bytes(again) == bytes(layer)
    assert padding in ([], [("EOL", None)])


@pytest.mark.parametrize("layers", LAYERS, ids=str)
@given(st.data())
@settings(max_examples=30)
def test_layer_that_is_built_is_dissected_to_the_same(
    layers: st.SearchStrategy[MptcpOption], data: st.DataObject
) -> None:
    assert_built_and_dissected(data.draw(layers))


@pytest.mark.parametrize("checksum", [None, 0xBEEF])
@pytest.mark.parametrize("flags", range(32))
def test_dss_layer_is_built_and_dissected_with_any_flags(flags: int, checksum: int | None) -> None:
    assert_built_and_dissected(DssOption(**dss_fields(flags), checksum=checksum))


@pytest.mark.parametrize("flags", OPTIONS, ids=str)
@given(st.data())
def test_decoder_reads_what_scapy_builds(flags: int, data: st.DataObject) -> None:
    option = data.draw(st.one_of(OPTIONS[flags]))
    assert decode(on_the_wire(layer_of(option)), flags) == ((option,), 0)


@given(st.binary(min_size=1, max_size=38), st.sampled_from(list(OPTIONS)))
def test_scapy_dissects_what_the_decoder_accepts_and_builds_it_again(body: bytes, flags: int) -> None:
    raw = bytes([30, len(body) + 2]) + body
    raw += bytes(-len(raw) % 4)
    (name, value), *_ = dissected(raw)
    assert name == "MPTCP" or not decode(raw, flags).options
    assert bytes(TCP(options=[(name, value)]))[20:] == raw


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x90\x01",
        b"\xf0",
        b"\x02\x01",
        b"\x10\x02",
        b"\x20",
        b"\x20\x01\x00",
        b"\x34" + bytes(17),
        b"\x31" + bytes(13),
    ],
)
def test_unknown_and_malformed_options_stay_bytes(body: bytes) -> None:
    raw = bytes([30, len(body) + 2]) + body
    assert dissected(raw + bytes(-len(raw) % 4))[0] == (30, body)


def test_truncated_option_is_not_dissected_as_a_shorter_form() -> None:
    join_ack_cut_to_the_length_of_a_join_syn = bytes([30, 24, 0x10, 0]) + bytes(8)
    assert dissected(join_ack_cut_to_the_length_of_a_join_syn) == [(30, b"\x10" + bytes(9))]


def test_raw_tuples_build_as_they_did_before() -> None:
    raw = bytes([2, 4, 5, 180, 1, 3, 3, 7, 30, 4, 1, 0x81])
    options = [("MSS", 1460), ("NOP", None), ("WScale", 7), (30, b"\x01\x81")]
    assert bytes(TCP(options=options))[20:] == raw
    assert dissected(raw)[:3] == options[:3]


def test_import_extends_scapy_even_after_it_has_built_segments() -> None:
    program = """
from scapy.layers.inet import TCP
bytes(TCP())
from mptcp_lab.scapy_layers import MpPrioOption
print(bytes(TCP(options=[("MPTCP", MpPrioOption(backup=1))]))[12:].hex())
"""
    built = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.strip()
    assert built.startswith("60")
    assert built.endswith("1e035100")


def test_captured_frame_shows_its_join() -> None:
    join = b"\x11\x02\x61\x3a\x7e\xd5nonc"
    shown = Ether(frame("10.2.0.2", 40000, "10.3.0.2", 8080, "S", join)).show(dump=True)
    assert "subtype=MP_JOIN reserved=0 backup=1 address_id=2 receiver_token=0x613a7ed5" in shown


def test_show_prints_the_fields_of_a_layer_but_no_absent_ones() -> None:
    shown = MpCapableOption(sender_key=b"\x01" * 8, flags="AH").show(dump=True)
    assert [line.split() for line in shown.splitlines()] == [
        ["###[", "MP_CAPABLE", "]###"],
        ["subtype", "=", "MP_CAPABLE"],
        ["version", "=", "1"],
        ["flags", "=", "HA"],
        ["sender_key=", "0101010101010101"],
    ]


def test_header_quoted_by_an_icmp_error_is_dissected_too() -> None:
    quoted = IP() / TCP(options=[("MPTCP", MpPrioOption(backup=1))])
    error = IP(bytes(IP() / ICMP(type=3, code=1) / bytes(quoted)))
    assert error[TCPerror].options[0] == ("MPTCP", MpPrioOption(backup=1))
