"""Frames are built with Scapy, independent of our parser."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import GRE, ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting
from scapy.layers.l2 import ARP, LLC, STP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Dot3, Ether
from scapy.layers.ppp import PPP, PPP_LCP, PPPoE, PPPoED
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw
from segments import PROXY, capable_syn, frame, segment

from mptcp_lab.capture_reader.encapsulation import Undecoded, find_segment
from mptcp_sniffer.segment import Malformed

ETHERNET, RAW, COOKED, COOKED_V2 = 1, 101, 113, 276
V4, V6 = (
    Ether(frame(client, 40000, proxy, 8080, "S", capable_syn())).payload
    for client, proxy in (("10.1.0.2", PROXY), ("fd00:1::2", "fd00:3::2"))
)
SEGMENTS = {
    4: segment("10.1.0.2", 40000, PROXY, 8080, "S", capable_syn()),
    6: segment("fd00:1::2", 40000, "fd00:3::2", 8080, "S", capable_syn()),
}
TCP_SEGMENT = V6[TCP]
OUTER = IP(src="192.0.2.1", dst="192.0.2.2")
OUTER6 = IPv6(src="2001:db8::1", dst="2001:db8::2")


def ether(**fields: int) -> Packet:
    """With addresses, else Scapy asks the network for them."""
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02", **fields)


def v6(*extensions: Packet) -> Packet:
    packet = IPv6(src=V6.src, dst=V6.dst)
    for extension in extensions:
        packet /= extension
    return packet / TCP_SEGMENT


def mpls(*labels: int) -> Packet:
    stack = MPLS(label=labels[0], s=len(labels) == 1)
    for number, label in enumerate(labels[1:], 2):
        stack /= MPLS(label=label, s=number == len(labels))
    return stack


WRAPPED = {
    "nothing": ether() / V4,
    "IPv6": ether() / V6,
    "a VLAN": ether() / Dot1Q(vlan=5) / V4,
    "QinQ of 802.1ad": ether() / Dot1AD(vlan=5) / Dot1Q(vlan=6) / V6,
    "QinQ with 0x9100": ether(type=0x9100) / Dot1Q(vlan=5) / Dot1Q(vlan=6) / V4,
    "PPPoE": ether() / PPPoE(sessionid=7) / PPP() / V4,
    "IPv6 in PPPoE in a VLAN": ether() / Dot1Q(vlan=5) / PPPoE(sessionid=7) / PPP() / V6,
    "MPLS": ether() / mpls(16) / V4,
    "a stack of labels": ether() / mpls(16, 17, 18) / V6,
    "MPLS in PPPoE": ether() / PPPoE(sessionid=7) / PPP(proto=0x0281) / mpls(16) / V4,
    "GRE": ether() / OUTER / GRE() / V4,
    "GRE with checksum, key and sequence number": ether()
    / OUTER6
    / GRE(chksum_present=1, key_present=1, seqnum_present=1)
    / V6,
    "Ethernet in GRE": ether() / OUTER / GRE(proto=0x6558) / ether() / V4,
    "MPLS in GRE": ether() / OUTER / GRE(proto=0x8847) / mpls(16) / V4,
    "IP in IP": ether() / OUTER / V4,
    "IPv6 in IP": ether() / OUTER / V6,
    "IP in IPv6": ether() / OUTER6 / V4,
    "MPLS in IP": ether() / IP(proto=137) / mpls(16) / V4,
    "VXLAN": ether() / OUTER / UDP(sport=50000, dport=4789) / VXLAN(vni=42) / ether() / V4,
    "VXLAN on Linux's port": ether() / OUTER6 / UDP(sport=50000, dport=8472) / VXLAN(vni=42) / ether() / Dot1Q() / V6,
    "IPv6 options": ether() / v6(IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt(), IPv6ExtHdrRouting()),
    "a first IPv6 fragment": ether() / v6(IPv6ExtHdrFragment(m=1)),
    "an authentication header": ether()
    / IPv6(src=V6.src, dst=V6.dst, nh=51)
    / Raw(bytes([6, 4]) + bytes(22))
    / TCP_SEGMENT,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_segment_is_found_in(name: str) -> None:
    wrapped = WRAPPED[name]
    expected = SEGMENTS[4 if bytes(V4)[12:20] in bytes(wrapped) else 6]
    assert find_segment(ETHERNET, bytes(wrapped)) == expected
    assert find_segment(COOKED, bytes(CookedLinux(proto=wrapped.type) / wrapped.payload)) == expected
    assert find_segment(COOKED_V2, bytes(CookedLinuxV2(proto=wrapped.type) / wrapped.payload)) == expected
    if wrapped.type in (0x0800, 0x86DD):
        assert find_segment(RAW, bytes(wrapped.payload)) == expected


WITHOUT_TCP = {
    "ARP": ether() / ARP(),
    "the spanning tree protocol": Dot3(src="02:00:00:00:00:01", dst="01:80:c2:00:00:00") / LLC() / STP(),
    "PPPoE discovery": ether() / PPPoED(),
    "PPP's link control": ether() / PPPoE() / PPP() / PPP_LCP(),
    "ICMP in GRE": ether() / OUTER / GRE() / IP() / ICMP(),
    "UDP": ether() / OUTER / UDP(dport=53) / Raw(b"\x08" + bytes(40)),
    "UDP to VXLAN's port": ether() / OUTER / UDP(dport=4789) / Raw(bytes(8)) / ether() / V4,
    "a later fragment": ether() / IP(frag=1) / V4[TCP],
    "a later IPv6 fragment": ether() / v6(IPv6ExtHdrFragment(offset=1)),
}


@pytest.mark.parametrize("name", WITHOUT_TCP)
def test_nothing_is_missed_in(name: str) -> None:
    assert find_segment(ETHERNET, bytes(WITHOUT_TCP[name])) is None


UNDECODED = {
    "link type 0": (0, Raw(bytes(4)) / V4),
    "ethertype 0x88e5": (ETHERNET, ether(type=0x88E5) / V4),
    "ethertype 0x88be": (ETHERNET, ether() / OUTER / GRE(proto=0x88BE) / V4),
    "MPLS that carries no IP": (ETHERNET, ether() / mpls(16) / Raw(bytes(4)) / ether() / V4),
    "PPP protocol 0x00fd": (ETHERNET, ether() / PPPoE() / PPP(proto=0x00FD) / V4),
    "GRE with routing or of another version": (ETHERNET, ether() / OUTER / GRE(version=1, proto=0x880B) / V4),
    "IP protocol 50": (ETHERNET, ether() / IP(src="192.0.2.1", proto=50) / V4),
    "more than 32 headers": (ETHERNET, Ether(bytes(12) + b"\x81\x00\x00\x05" * 10_000)),
}


@pytest.mark.parametrize("what", UNDECODED)
def test_frame_that_may_hide_a_segment_is_undecoded(what: str) -> None:
    link_type, wrapped = UNDECODED[what]
    with pytest.raises(Undecoded, match=f"^{what}$"):
        find_segment(link_type, bytes(wrapped))


@pytest.mark.parametrize("name", WRAPPED)
def test_frame_cut_off_anywhere_in_its_headers_is_malformed(name: str) -> None:
    whole = bytes(WRAPPED[name])
    for length in range(len(whole)):
        with pytest.raises(Malformed):
            find_segment(ETHERNET, whole[:length])


@given(st.sampled_from((ETHERNET, RAW, COOKED, COOKED_V2)), st.binary(max_size=120))
def test_arbitrary_bytes_raise_nothing_but_malformed_and_undecoded(link_type: int, data: bytes) -> None:
    with suppress(Malformed, Undecoded):
        find_segment(link_type, data)


_CHANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)


@given(st.sampled_from([bytes(wrapped) for wrapped in WRAPPED.values()]), _CHANGES)
def test_changed_frames_raise_nothing_but_malformed_and_undecoded(whole: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(whole)
    for position, value in changes:
        changed[position % len(changed)] = value
    with suppress(Malformed, Undecoded):
        find_segment(ETHERNET, bytes(changed))
