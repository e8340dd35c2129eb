"""An assembler for classic BPF, whose labels may occur several times.

Packet sockets and the `bpf` classifier of tc accept classic BPF (Documentation/networking/filter.rst). Its jumps go
forward only; a conditional jump skips at most 255 instructions.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.ports import Ports

# include/uapi/linux/bpf_common.h and filter.h
_BPF_LD, _BPF_LDX, _BPF_ST, _BPF_STX, _BPF_ALU, _BPF_JMP, _BPF_RET, _BPF_MISC = range(8)
_BPF_W, _BPF_H, _BPF_B = 0x00, 0x08, 0x10
_BPF_IMM, _BPF_ABS, _BPF_IND, _BPF_MEM, _BPF_MSH = 0x00, 0x20, 0x40, 0x60, 0xA0
_BPF_ADD, _BPF_SUB, _BPF_OR, _BPF_AND, _BPF_LSH, _BPF_RSH = 0x00, 0x10, 0x40, 0x50, 0x60, 0x70
_BPF_JA, _BPF_JEQ, _BPF_JGT, _BPF_JGE, _BPF_JSET = 0x00, 0x10, 0x20, 0x30, 0x40
_BPF_K, _BPF_X, _BPF_A = 0x00, 0x08, 0x10
_BPF_TAX, _BPF_TXA = 0x00, 0x80

# Instructions, named as in Documentation/networking/filter.rst. A is the accumulator, X the index register.
LDH_ABS: Final = _BPF_LD | _BPF_H | _BPF_ABS  # A = frame[k:k+2]
LDB: Final = _BPF_LD | _BPF_B | _BPF_IND  # A = frame[X+k]
LDH: Final = _BPF_LD | _BPF_H | _BPF_IND  # A = frame[X+k:X+k+2]
LD_IND: Final = _BPF_LD | _BPF_W | _BPF_IND  # A = frame[X+k:X+k+4]
LD_IMM: Final = _BPF_LD | _BPF_IMM  # A = k
LDX_IMM: Final = _BPF_LDX | _BPF_IMM  # X = k
LD_MEM: Final = _BPF_LD | _BPF_MEM  # A = M[k]
LDX_MEM: Final = _BPF_LDX | _BPF_MEM  # X = M[k]
ST: Final = _BPF_ST  # M[k] = A
STX: Final = _BPF_STX  # M[k] = X
TAX: Final = _BPF_MISC | _BPF_TAX  # X = A
TXA: Final = _BPF_MISC | _BPF_TXA  # A = X
ADD: Final = _BPF_ALU | _BPF_ADD | _BPF_K  # A += k
ADD_X: Final = _BPF_ALU | _BPF_ADD | _BPF_X  # A += X
SUB: Final = _BPF_ALU | _BPF_SUB | _BPF_K  # A -= k
AND: Final = _BPF_ALU | _BPF_AND | _BPF_K  # A &= k
LSH: Final = _BPF_ALU | _BPF_LSH | _BPF_K  # A <<= k
RSH: Final = _BPF_ALU | _BPF_RSH | _BPF_K  # A >>= k
JA: Final = _BPF_JMP | _BPF_JA  # always
JEQ: Final = _BPF_JMP | _BPF_JEQ | _BPF_K  # if A == k
JGT_X: Final = _BPF_JMP | _BPF_JGT | _BPF_X  # if A > X
JGE_X: Final = _BPF_JMP | _BPF_JGE | _BPF_X  # if A >= X
JGE: Final = _BPF_JMP | _BPF_JGE | _BPF_K  # if A >= k
JSET: Final = _BPF_JMP | _BPF_JSET | _BPF_K  # if A & k
RET: Final = _BPF_RET | _BPF_K  # accept k bytes of the frame; 0 rejects it

OR: Final = _BPF_ALU | _BPF_OR | _BPF_K  # A |= k
LD: Final = _BPF_LD | _BPF_W | _BPF_ABS  # A = frame[k:k+4]
LDB_ABS: Final = _BPF_LD | _BPF_B | _BPF_ABS  # A = frame[k]
LDX_MSH: Final = _BPF_LDX | _BPF_B | _BPF_MSH  # X = 4 * (frame[k] & 0xf)
RET_A: Final = _BPF_RET | _BPF_A  # return A

SKF_AD_MARK: Final = 0xFFFF_F000 + 20
"""Load offset of the packet's mark (SKF_AD_OFF + SKF_AD_MARK)."""

SKF_AD_NLATTR: Final = 0xFFFF_F000 + 12
"""Load offset (SKF_AD_OFF + SKF_AD_NLATTR): A = offset of the netlink attribute of type X in those from A on, or 0."""

SKF_NET_OFF: Final = 0xFFF0_0000
"""Load offset of the network header, whatever the link layer."""

_SOCK_FILTER: Final = Struct("HBBI")
_SOCK_FPROG: Final = Struct("HP")
_SO_ATTACH_FILTER: Final = 26  # include/uapi/asm-generic/socket.h; the socket module has no name for it


class Instruction(NamedTuple):
    """One `struct sock_filter` (include/uapi/linux/filter.h); jumps count the instructions to skip."""

    code: int
    jump_true: int
    jump_false: int
    operand: int


class Line(NamedTuple):
    """An instruction whose jumps name labels; an empty name means the next line."""

    code: int
    operand: int = 0
    then: str = ""
    otherwise: str = ""


def assemble(lines: Sequence[Line | str]) -> tuple[Instruction, ...]:
    """Turn labels into distances. A label may occur several times: a jump goes to the next occurrence."""
    reversed_program: list[Instruction] = []
    labels = {}
    for line in reversed(lines):
        following = len(reversed_program)
        if isinstance(line, str):
            labels[line] = following
            continue
        then, otherwise = (following - labels[label] if label else 0 for label in (line.then, line.otherwise))
        # An unconditional jump has its distance in the operand, with 32 instead of 8 bits.
        reversed_program.append(
            Instruction(line.code, 0, 0, then)
            if line.code == JA
            else Instruction(line.code, then, otherwise, line.operand)
        )
    return tuple(reversed(reversed_program))


def jump_by_port(ports: Ports, inside: str, outside: str) -> list[Line | str]:
    """Jump to the label `inside` if A is one of these ports, else to `outside`: a binary search over their bounds."""
    return _search([bound for each in ports.ranges for bound in (each.start, each.stop)], outside, inside)


def _search(bounds: Sequence[int], even: str, odd: str) -> list[Line | str]:
    """Jump to `odd` if A has reached an odd number of these bounds, else to `even`."""
    if not bounds:
        return [Line(JA, then=even)]
    if len(bounds) == 2 and bounds[1] == bounds[0] + 1:
        return [Line(JEQ, bounds[0], odd, even)]
    middle = len(bounds) // 2
    bound, below, above = bounds[middle], bounds[:middle], bounds[middle + 1 :]
    above_even, above_odd = (even, odd) if middle % 2 else (odd, even)
    lines: list[Line | str] = [Line(JGE, bound, f"from {bound}" if above else above_even, "" if below else even)]
    if below:
        lines += _search(below, even, odd)
    if above:
        lines += [f"from {bound}", *_search(above, above_even, above_odd)]
    return lines


def encode(program: Iterable[Instruction]) -> bytes:
    """The program as an array of `struct sock_filter`."""
    return b"".join(_SOCK_FILTER.pack(*instruction) for instruction in program)


def attach_filter(sock: socket.socket, program: Sequence[Instruction]) -> None:
    """Let `sock` receive only what `program` accepts, from the next frame or message on. Raises OSError."""
    instructions = ctypes.create_string_buffer(encode(program))
    fprog = _SOCK_FPROG.pack(len(program), ctypes.addressof(instructions))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)
