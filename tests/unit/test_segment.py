from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import capable_syn, frame

from mptcp_sniffer.segment import Flag, Malformed, parse_ethernet, parse_ip

ETHERNET = 14


@pytest.mark.parametrize("vlans", [0, 1, 2])
@pytest.mark.parametrize(("client", "proxy"), [("10.1.0.2", "10.3.0.2"), ("fd00:1::2", "fd00:3::2")])
def test_header_is_found_behind_vlan_tags_in_both_ip_versions(client: str, proxy: str, vlans: int) -> None:
    segment = parse_ethernet(frame(client, 40000, proxy, 8080, "S", capable_syn(), seq=77, vlans=vlans))
    assert segment is not None
    assert (segment.source.port, segment.destination.port) == (40000, 8080)
    assert len(segment.source.address) == (16 if ":" in client else 4)
    assert (segment.sequence, segment.flags) == (77, Flag.SYN)
    assert capable_syn() in segment.options


@pytest.mark.parametrize(("client", "proxy"), [("10.1.0.2", "10.3.0.2"), ("fd00:1::2", "fd00:3::2")])
@pytest.mark.parametrize("payload", [0, 1, 1400])
def test_bytes_of_data_are_those_that_the_ip_header_states(client: str, proxy: str, payload: int) -> None:
    whole = frame(client, 40000, proxy, 8080, "S", capable_syn(), payload=bytes(payload))
    cut, padded = whole[:142], whole + bytes(20)
    for captured in (whole, cut, padded):
        segment = parse_ethernet(captured)
        assert segment is not None
        assert segment.payload == payload


def test_bytes_of_data_are_not_negative() -> None:
    packet = frame("fd00:1::2", 40000, "fd00:3::2", 8080, "A")[ETHERNET:]
    segment = parse_ip(packet[:4] + bytes(2) + packet[6:])  # the length of a jumbogram is elsewhere (RFC 2675)
    assert segment is not None
    assert segment.payload == 0


def test_other_protocols_and_later_fragments_are_not_tcp_segments() -> None:
    tcp = frame("10.1.0.2", 1, "10.3.0.2", 8080, "S")
    arp = tcp[:12] + b"\x08\x06" + tcp[14:]
    udp = tcp[: ETHERNET + 9] + b"\x11" + tcp[ETHERNET + 10 :]
    fragment = tcp[: ETHERNET + 6] + b"\x00\x01" + tcp[ETHERNET + 8 :]
    assert [parse_ethernet(data) for data in (arp, udp, fragment)] == [None, None, None]


@pytest.mark.parametrize("address", ["10.1.0.2", "fd00:1::2"])
def test_header_cut_off_anywhere_is_malformed_or_ignored(address: str) -> None:
    whole = frame(address, 40000, "fd00:3::2" if ":" in address else "10.3.0.2", 8080, "S", capable_syn())
    for length in range(ETHERNET, len(whole)):
        with pytest.raises(Malformed):
            parse_ethernet(whole[:length])


def test_data_offset_below_the_fixed_header_is_malformed() -> None:
    packet = bytearray(frame("10.1.0.2", 1, "10.3.0.2", 8080, "S")[ETHERNET:])
    packet[20 + 12] = 0x40
    with pytest.raises(Malformed):
        parse_ip(bytes(packet))


@given(st.binary(max_size=128))
def test_arbitrary_bytes_raise_nothing_but_malformed(data: bytes) -> None:
    for parse in (parse_ethernet, parse_ip):
        with suppress(Malformed):
            parse(data)
