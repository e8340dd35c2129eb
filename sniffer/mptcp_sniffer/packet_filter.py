"""The classic BPF program of the packet socket: it passes only signalling to Python.

It accepts, from or to the proxy ports, SYN, FIN and RST, and every segment with an MPTCP option other than DSS. Data
and acknowledgments carry DSS alone and are rejected in the kernel. So are acknowledgments with the MP_PRIO that the
daemon's program for uplinks appends, perhaps to each of an upload, and the copies that its steering programs make.

libpcap's filter language cannot express this: options have no fixed offset, and it has no loop. Classic BPF jumps
forward only, so the walk over the options is unrolled: once per byte at which an option can begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mptcp_sniffer.options import KIND, KIND_END, KIND_NOP, Subtype
from mptcp_sniffer.segment import IPV6_HEADER_BYTES, PROTOCOL_TCP, TCP_FIXED_BYTES, Flag
from mptcp_throttle import steering_mark
from mptcp_throttle.linux import cbpf
from mptcp_throttle.linux.cbpf import Instruction, Line, assemble, jump_by_port
from mptcp_throttle.linux.link_header import LinkHeader
from mptcp_throttle.ports import Ports

SNAP_BYTES: Final = 14 + 2 * 4 + 60 + 60
"""Accepted frames are cut to the longest headers: Ethernet, two VLAN tags, IPv4 with options, TCP with options."""

# Slots of scratch memory.
_TCP_HEADER: Final = 0
_OPTIONS_END: Final = 1
_KIND_AND_LENGTH: Final = 2
_OPTION: Final = 3

_ETH_P_IP, _ETH_P_IPV6, _ETH_P_8021Q, _ETH_P_8021AD = 0x0800, 0x86DD, 0x8100, 0x88A8
_IPV4_FIXED_BYTES: Final = 20
_OPTION_STARTS: Final = 40 - 2
"""TCP has up to 40 bytes of options; the last option with a subtype, its third byte, begins at the 38th."""


_ACCEPT: Final = Line(cbpf.RET, SNAP_BYTES)
_REJECT: Final = Line(cbpf.RET, 0)


def signalling_filter(ports: Ports, *, link: LinkHeader) -> tuple[Instruction, ...]:
    """The program for the proxy's `ports`, up to 64 ranges.

    It agrees with `mptcp_sniffer.segment` on what is a TCP segment, for up to two VLAN tags, and rejects truncated
    headers. (The kernel removes the outermost tag of a received frame before the filter; Scapy puts it back.)
    TCP behind IPv6 extension headers is rejected. Options are read as in Linux (net/mptcp/options.c,
    mptcp_get_options): the walk ends at kind 0, at a length below 2, and at a length that exceeds the header.
    """
    return assemble([*_find_ip(link), *_find_tcp(), *_select(ports), *_walk_options(), *_accept_unless_appended(ports)])


def _find_ip(link: LinkHeader) -> Iterator[Line | str]:
    """X = start of the IP header."""
    if link is LinkHeader.RAW_IP:
        yield Line(cbpf.LDX_IMM, 0)
        return
    for start in (14, 18, 22):
        yield "tagged"
        yield Line(cbpf.LDX_IMM, start)
        yield Line(cbpf.LDH_ABS, start - 2)
        yield Line(cbpf.JEQ, _ETH_P_IP, "ip")
        yield Line(cbpf.JEQ, _ETH_P_IPV6, "ip")
        yield Line(cbpf.JEQ, _ETH_P_8021Q, "tagged")
        yield Line(cbpf.JEQ, _ETH_P_8021AD, "tagged", otherwise="reject")
    yield "tagged"
    yield "reject"
    yield _REJECT


def _find_tcp() -> Iterator[Line | str]:
    """X = start of the TCP header, M[_OPTIONS_END] = its end."""
    yield "ip"
    yield Line(cbpf.LDB, 0)
    yield Line(cbpf.RSH, 4)
    yield Line(cbpf.JEQ, 4, "ipv4")
    yield Line(cbpf.JEQ, 6, otherwise="reject")
    yield Line(cbpf.LDB, 6)
    yield Line(cbpf.JEQ, PROTOCOL_TCP, otherwise="reject")
    yield Line(cbpf.LD_IMM, IPV6_HEADER_BYTES)
    yield Line(cbpf.JA, then="tcp")
    yield "ipv4"
    yield Line(cbpf.LDB, 9)
    yield Line(cbpf.JEQ, PROTOCOL_TCP, otherwise="reject")
    yield Line(cbpf.LDH, 6)
    yield Line(cbpf.JSET, 0x1FFF, "reject")  # fragment offset
    yield Line(cbpf.LDB, 0)
    yield Line(cbpf.AND, 0x0F)
    yield Line(cbpf.LSH, 2)
    yield Line(cbpf.JGE, _IPV4_FIXED_BYTES, otherwise="reject")
    yield "tcp"
    yield Line(cbpf.ADD_X)
    yield Line(cbpf.TAX)
    yield Line(cbpf.LDB, 12)
    yield Line(cbpf.RSH, 2)  # data offset: the upper four bits, in words of 4 bytes
    yield Line(cbpf.AND, 0x3C)
    yield Line(cbpf.JGE, TCP_FIXED_BYTES, "store")
    # Before the stores: check_load_and_stores (net/core/filter.c) assumes that a `ret` falls through.
    yield "reject"
    yield _REJECT
    yield "store"
    yield Line(cbpf.ADD_X)
    yield Line(cbpf.ST, _OPTIONS_END)
    # A load beyond the end of the frame rejects it: load the last byte of the header.
    yield Line(cbpf.STX, _TCP_HEADER)
    yield Line(cbpf.SUB, 1)
    yield Line(cbpf.TAX)
    yield Line(cbpf.LDB, 0)
    yield Line(cbpf.LDX_MEM, _TCP_HEADER)


def _select(ports: Ports) -> Iterator[Line | str]:
    """Reject other ports, accept SYN, FIN and RST; X = start of the options."""
    yield Line(cbpf.LDH, 0)
    yield from jump_by_port(ports, "from proxy", "to proxy")
    yield "from proxy"  # a conditional jump over the second search could be too long
    yield Line(cbpf.JA, then="proxy")
    yield "to proxy"
    yield Line(cbpf.LDH, 2)
    yield from jump_by_port(ports, "proxy", "reject")
    yield "reject"
    yield _REJECT
    yield "proxy"
    yield Line(cbpf.LDB, 13)
    yield Line(cbpf.JSET, Flag.FIN | Flag.SYN | Flag.RST, otherwise="options")
    yield Line(cbpf.JA, then="accept")
    yield "options"
    yield Line(cbpf.TXA)
    yield Line(cbpf.ADD, TCP_FIXED_BYTES)
    yield Line(cbpf.TAX)


def _walk_options() -> Iterator[Line | str]:
    """At the start of each iteration X = start of an option."""
    for _ in range(_OPTION_STARTS):
        yield Line(cbpf.LD_MEM, _OPTIONS_END)
        yield Line(cbpf.JGT_X, otherwise="end")
        # Kind and length in one load, since a load is a function call. A frame that ends after the kind is rejected.
        yield Line(cbpf.LDH, 0)
        yield Line(cbpf.ST, _KIND_AND_LENGTH)
        yield Line(cbpf.JEQ, KIND << 8 | 2, "skip")  # too short for a subtype
        yield Line(cbpf.RSH, 8)
        yield Line(cbpf.JEQ, KIND_END, "end")
        yield Line(cbpf.JEQ, KIND_NOP, "advance")  # a byte long, and A is 1
        yield Line(cbpf.JEQ, KIND, otherwise="skip")
        yield Line(cbpf.LDB, 2)
        yield Line(cbpf.AND, 0xF0)
        yield Line(cbpf.JEQ, Subtype.DSS << 4, "skip")
        yield Line(cbpf.JA, then="signalling")
        yield "skip"
        yield Line(cbpf.LD_MEM, _KIND_AND_LENGTH)
        yield Line(cbpf.AND, 0xFF)
        yield Line(cbpf.JGE, 2, "advance")
        yield "end"
        yield _REJECT
        yield "advance"
        yield Line(cbpf.ADD_X)
        yield Line(cbpf.TAX)
    yield _REJECT


def _accept_unless_appended(ports: Ports) -> Iterator[Line | str]:
    """Accept the option at X if it is complete and no MP_PRIO that the daemon has appended or copied.

    The appended one is what `options.without_appended_priority` removes.
    """
    yield "signalling"
    yield Line(cbpf.STX, _OPTION)
    yield Line(cbpf.LDB, 1)
    yield Line(cbpf.JGE, 2, otherwise="reject")
    yield Line(cbpf.ADD_X)
    yield Line(cbpf.LDX_MEM, _OPTIONS_END)
    yield Line(cbpf.JGT_X, then="reject")
    yield Line(cbpf.JGE_X, otherwise="accept")  # not the last option
    yield Line(cbpf.LD_MEM, _OPTION)
    yield Line(cbpf.SUB, 1)
    yield Line(cbpf.TAX)
    yield Line(cbpf.LD_IND, 0)
    yield Line(cbpf.AND, 0xFFFF_FFF0)
    yield Line(cbpf.JEQ, KIND_NOP << 24 | KIND << 16 | 3 << 8 | Subtype.MP_PRIO << 4, otherwise="accept")
    yield Line(cbpf.LDX_MEM, _TCP_HEADER)
    yield Line(cbpf.LDH, 0)
    yield from jump_by_port(ports, "reject", "accept")
    yield "accept"
    yield Line(cbpf.LD, cbpf.SKF_AD_MARK)
    yield Line(cbpf.AND, steering_mark.MARK_MASK)
    yield Line(cbpf.JEQ, steering_mark.MARK, "reject")
    yield _ACCEPT
    yield "reject"
    yield _REJECT
