"""The kernel's part of the capture: a classic BPF program that lets only signalling through to Python.

What passes, from or to the proxy ports: SYN, FIN and RST, and every segment with an MPTCP option other than DSS. Data
and its acknowledgments carry DSS alone and stay in the kernel, however fast they come.

A filter of libpcap cannot say this: options have no fixed place, and the language has no loop. Nor has the machine,
whose jumps go forward only; so the walk over the options is written out once per byte that an option can begin at.
"""

from __future__ import annotations

from enum import Enum, auto
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_sniffer.segment import Flag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SNAP_BYTES: Final = 14 + 2 * 4 + 60 + 60
"""What passes is cut to the longest headers: Ethernet, two VLAN tags, IPv4 with options, TCP with options."""

# include/uapi/linux/bpf_common.h and filter.h
_BPF_LD, _BPF_LDX, _BPF_ST, _BPF_STX, _BPF_ALU, _BPF_JMP, _BPF_RET, _BPF_MISC = range(8)
_BPF_H, _BPF_B = 0x08, 0x10
_BPF_IMM, _BPF_ABS, _BPF_IND, _BPF_MEM = 0x00, 0x20, 0x40, 0x60
_BPF_ADD, _BPF_SUB, _BPF_AND, _BPF_LSH, _BPF_RSH = 0x00, 0x10, 0x50, 0x60, 0x70
_BPF_JA, _BPF_JEQ, _BPF_JGT, _BPF_JGE, _BPF_JSET = 0x00, 0x10, 0x20, 0x30, 0x40
_BPF_K, _BPF_X = 0x00, 0x08
_BPF_TAX, _BPF_TXA = 0x00, 0x80

# The instructions we need, by their names in Documentation/networking/filter.rst. A is the accumulator, X the index.
_LDH_ABS: Final = _BPF_LD | _BPF_H | _BPF_ABS  # A = frame[k:k+2]
_LDB: Final = _BPF_LD | _BPF_B | _BPF_IND  # A = frame[X+k]
_LDH: Final = _BPF_LD | _BPF_H | _BPF_IND  # A = frame[X+k:X+k+2]
_LD_IMM: Final = _BPF_LD | _BPF_IMM  # A = k
_LDX_IMM: Final = _BPF_LDX | _BPF_IMM  # X = k
_LD_MEM: Final = _BPF_LD | _BPF_MEM  # A = M[k]
_LDX_MEM: Final = _BPF_LDX | _BPF_MEM  # X = M[k]
_ST: Final = _BPF_ST  # M[k] = A
_STX: Final = _BPF_STX  # M[k] = X
_TAX: Final = _BPF_MISC | _BPF_TAX  # X = A
_TXA: Final = _BPF_MISC | _BPF_TXA  # A = X
_ADD: Final = _BPF_ALU | _BPF_ADD | _BPF_K  # A += k
_ADD_X: Final = _BPF_ALU | _BPF_ADD | _BPF_X  # A += X
_SUB: Final = _BPF_ALU | _BPF_SUB | _BPF_K  # A -= k
_AND: Final = _BPF_ALU | _BPF_AND | _BPF_K  # A &= k
_LSH: Final = _BPF_ALU | _BPF_LSH | _BPF_K  # A <<= k
_RSH: Final = _BPF_ALU | _BPF_RSH | _BPF_K  # A >>= k
_JA: Final = _BPF_JMP | _BPF_JA  # always
_JEQ: Final = _BPF_JMP | _BPF_JEQ | _BPF_K  # if A == k
_JGT_X: Final = _BPF_JMP | _BPF_JGT | _BPF_X  # if A > X
_JGE: Final = _BPF_JMP | _BPF_JGE | _BPF_K  # if A >= k
_JSET: Final = _BPF_JMP | _BPF_JSET | _BPF_K  # if A & k
_RET: Final = _BPF_RET | _BPF_K  # keep k bytes of the frame; none: reject it

_SOCK_FILTER: Final = Struct("HBBI")

# Slots of scratch memory.
_TCP_HEADER: Final = 0
_OPTIONS_END: Final = 1
_KIND_AND_LENGTH: Final = 2

_ETH_P_IP, _ETH_P_IPV6, _ETH_P_8021Q, _ETH_P_8021AD = 0x0800, 0x86DD, 0x8100, 0x88A8
_IPPROTO_TCP: Final = 6
_IPV4_FIXED_BYTES: Final = 20
_IPV6_HEADER_BYTES: Final = 40
_TCP_FIXED_BYTES: Final = 20
_KIND_END, _KIND_NOP, _KIND_MPTCP = 0, 1, 30
_DSS: Final = 0x2
_OPTION_STARTS: Final = 40 - 2
"""TCP has room for 40 bytes of options; the last option that can hold a subtype, its third byte, begins at the 38th."""


class Link(Enum):
    """What the frames of an interface begin with."""

    ETHERNET = auto()
    RAW_IP = auto()


class Instruction(NamedTuple):
    """One `struct sock_filter` (include/uapi/linux/filter.h); jumps count the instructions to skip."""

    code: int
    jump_true: int
    jump_false: int
    operand: int


class _Line(NamedTuple):
    """An instruction whose jumps name labels; the empty name is the next line."""

    code: int
    operand: int = 0
    then: str = ""
    otherwise: str = ""


_ACCEPT: Final = _Line(_RET, SNAP_BYTES)
_REJECT: Final = _Line(_RET, 0)


def signalling_filter(ports: Sequence[int], *, link: Link) -> tuple[Instruction, ...]:
    """The program for the proxy's `ports`, some hundred of them at most.

    It agrees with `mptcp_sniffer.segment` on what is a TCP segment, for up to two VLAN tags, and passes none with a
    header cut off. (Of a received frame, the kernel has taken the outermost tag away by then; Scapy puts it back.)
    TCP behind IPv6 extension headers is missed. Options are read as the kernel reads them (net/mptcp/options.c,
    mptcp_get_options): the walk ends at kind 0, at a length below 2, and at one that goes beyond the header.
    """
    return _assemble([*_find_ip(link), *_find_tcp(), *_select(ports), *_walk_options()])


def encode(program: Iterable[Instruction]) -> bytes:
    """The program as the kernel takes it: an array of `struct sock_filter`."""
    return b"".join(_SOCK_FILTER.pack(*instruction) for instruction in program)


def _find_ip(link: Link) -> Iterator[_Line | str]:
    """X = start of the IP header."""
    if link is Link.RAW_IP:
        yield _Line(_LDX_IMM, 0)
        return
    for start in (14, 18, 22):
        yield "tagged"
        yield _Line(_LDX_IMM, start)
        yield _Line(_LDH_ABS, start - 2)
        yield _Line(_JEQ, _ETH_P_IP, "ip")
        yield _Line(_JEQ, _ETH_P_IPV6, "ip")
        yield _Line(_JEQ, _ETH_P_8021Q, "tagged")
        yield _Line(_JEQ, _ETH_P_8021AD, "tagged", otherwise="reject")
    yield "tagged"
    yield "reject"
    yield _REJECT


def _find_tcp() -> Iterator[_Line | str]:
    """X = start of the TCP header, M[_OPTIONS_END] = its end."""
    yield "ip"
    yield _Line(_LDB, 0)
    yield _Line(_RSH, 4)
    yield _Line(_JEQ, 4, "ipv4")
    yield _Line(_JEQ, 6, otherwise="reject")
    yield _Line(_LDB, 6)
    yield _Line(_JEQ, _IPPROTO_TCP, otherwise="reject")
    yield _Line(_LD_IMM, _IPV6_HEADER_BYTES)
    yield _Line(_JA, then="tcp")
    yield "ipv4"
    yield _Line(_LDB, 9)
    yield _Line(_JEQ, _IPPROTO_TCP, otherwise="reject")
    yield _Line(_LDH, 6)
    yield _Line(_JSET, 0x1FFF, "reject")  # the fragment's offset
    yield _Line(_LDB, 0)
    yield _Line(_AND, 0x0F)
    yield _Line(_LSH, 2)
    yield _Line(_JGE, _IPV4_FIXED_BYTES, otherwise="reject")
    yield "tcp"
    yield _Line(_ADD_X)
    yield _Line(_TAX)
    yield _Line(_LDB, 12)
    yield _Line(_RSH, 2)  # from the upper four bits, in words, to bytes
    yield _Line(_AND, 0x3C)
    yield _Line(_JGE, _TCP_FIXED_BYTES, "store")
    # Before the stores: net/core/filter.c, check_load_and_stores, takes what follows a `ret` for reached from there.
    yield "reject"
    yield _REJECT
    yield "store"
    yield _Line(_ADD_X)
    yield _Line(_ST, _OPTIONS_END)
    # A load beyond the frame rejects it: what has the header's last byte has all of it.
    yield _Line(_STX, _TCP_HEADER)
    yield _Line(_SUB, 1)
    yield _Line(_TAX)
    yield _Line(_LDB, 0)
    yield _Line(_LDX_MEM, _TCP_HEADER)


def _select(ports: Sequence[int]) -> Iterator[_Line | str]:
    """Other services end here, and so do SYN, FIN and RST; X = start of the options."""
    for field in (0, 2):
        yield _Line(_LDH, field)
        for port in ports:
            yield _Line(_JEQ, port, "proxy")
    yield "reject"
    yield _REJECT
    yield "proxy"
    yield _Line(_LDB, 13)
    yield _Line(_JSET, Flag.FIN | Flag.SYN | Flag.RST, otherwise="options")
    yield _ACCEPT
    yield "options"
    yield _Line(_TXA)
    yield _Line(_ADD, _TCP_FIXED_BYTES)
    yield _Line(_TAX)


def _walk_options() -> Iterator[_Line | str]:
    """X = start of an option, in each round."""
    for _ in range(_OPTION_STARTS):
        yield _Line(_LD_MEM, _OPTIONS_END)
        yield _Line(_JGT_X, otherwise="end")
        # Kind and length at once, for a load costs a call: a frame that ends after the kind has nothing to offer.
        yield _Line(_LDH, 0)
        yield _Line(_ST, _KIND_AND_LENGTH)
        yield _Line(_JEQ, _KIND_MPTCP << 8 | 2, "other")  # too short for a subtype
        yield _Line(_RSH, 8)
        yield _Line(_JEQ, _KIND_END, "end")
        yield _Line(_JEQ, _KIND_NOP, "advance")  # one byte long, and A is one
        yield _Line(_JEQ, _KIND_MPTCP, otherwise="other")
        yield _Line(_LDB, 2)
        yield _Line(_AND, 0xF0)
        yield _Line(_JEQ, _DSS << 4, "other")
        yield _Line(_JA, then="signalling")
        yield "other"
        yield _Line(_LD_MEM, _KIND_AND_LENGTH)
        yield _Line(_AND, 0xFF)
        yield _Line(_JGE, 2, "advance")
        yield "end"
        yield _REJECT
        yield "advance"
        yield _Line(_ADD_X)
        yield _Line(_TAX)
    yield _REJECT
    yield "signalling"
    yield _Line(_LDB, 1)
    yield _Line(_JGE, 2, otherwise="reject")
    yield _Line(_ADD_X)
    yield _Line(_LDX_MEM, _OPTIONS_END)
    yield _Line(_JGT_X, then="reject")
    yield _ACCEPT
    yield "reject"
    yield _REJECT


def _assemble(lines: Sequence[_Line | str]) -> tuple[Instruction, ...]:
    """Turn labels into distances. A label may occur many times: a jump goes to the next one."""
    reversed_program: list[Instruction] = []
    labels = {}
    for line in reversed(lines):
        following = len(reversed_program)
        if isinstance(line, str):
            labels[line] = following
            continue
        then, otherwise = (following - labels[label] if label else 0 for label in (line.then, line.otherwise))
        # An unconditional jump keeps its distance, of 32 instead of 8 bits, in the operand.
        reversed_program.append(
            Instruction(line.code, 0, 0, then)
            if line.code == _JA
            else Instruction(line.code, then, otherwise, line.operand)
        )
    return tuple(reversed(reversed_program))
