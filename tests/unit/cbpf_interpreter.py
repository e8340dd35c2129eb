"""An interpreter for classic BPF, written from the kernel's documentation, independent of our generator.

Documentation/networking/filter.rst and include/uapi/linux/filter.h; only the instructions that our programs use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mptcp_throttle.linux.cbpf import Instruction

MAX_INSTRUCTIONS = 4096
SCRATCH_SLOTS = 16
RETURN, JUMP_ALWAYS = 0x06, 0x05
STORES, LOADS_OF_SCRATCH = (0x02, 0x03), (0x60, 0x61)
CONDITIONS: dict[int, Callable[[int, int, int], bool]] = {
    0x15: lambda a, k, _x: a == k,
    0x2D: lambda a, _k, x: a > x,
    0x35: lambda a, k, _x: a >= k,
    0x3D: lambda a, _k, x: a >= x,
    0x45: lambda a, k, _x: a & k != 0,
}
ARITHMETIC: dict[int, Callable[[int, int, int], int]] = {
    0x04: lambda a, k, _x: a + k,
    0x0C: lambda a, _k, x: a + x,
    0x14: lambda a, k, _x: a - k,
    0x54: lambda a, k, _x: a & k,
    0x64: lambda a, k, _x: a << k,
    0x74: lambda a, k, _x: a >> k,
}
MARK_LOAD = 0x20, 0xFFFF_F000 + 20  # SKF_AD_OFF + SKF_AD_MARK
PACKET_LOADS = {0x28: (2, False), 0x40: (4, True), 0x48: (2, True), 0x50: (1, True)}  # code: bytes, from X on


def check(program: Sequence[Instruction]) -> None:
    """The kernel's checks of a program (net/core/filter.c, bpf_check_classic) as assertions."""
    assert 0 < len(program) <= MAX_INSTRUCTIONS
    assert program[-1].code == RETURN
    # The slots written on every path to an instruction. Like the kernel, assume that `ret` falls through.
    everything = set(range(SCRATCH_SLOTS))
    written_at = [set(everything) for _ in program]
    written: set[int] = set()
    for at, instruction in enumerate(program):
        code, operand = instruction.code, instruction.operand
        written &= written_at[at]
        if code in STORES:
            assert operand < SCRATCH_SLOTS
            written = written | {operand}
        elif code in LOADS_OF_SCRATCH:
            assert operand in written, f"{at}: M[{operand}] is read before it is written"
        elif code == JUMP_ALWAYS or code in CONDITIONS:
            for skipped in (operand,) if code == JUMP_ALWAYS else (instruction.jump_true, instruction.jump_false):
                assert 0 <= skipped < len(program) - at - 1, f"{at}: jumps out of the program"
                written_at[at + 1 + skipped] &= written
            written = set(everything)


def steps(program: Sequence[Instruction]) -> set[tuple[int, int]]:
    """All pairs of instructions where the second can follow the first."""
    return {
        (at, at + 1 + skipped)
        for at, (code, jump_true, jump_false, operand) in enumerate(program)
        if code != RETURN
        for skipped in ({operand} if code == JUMP_ALWAYS else {jump_true, jump_false})
    }


def run(
    program: Sequence[Instruction], frame: bytes, taken: set[tuple[int, int]] | None = None, *, mark: int = 0
) -> int:
    """The number of bytes that the program keeps of a frame with this mark; adds the executed steps to `taken`."""
    accumulator = index = at = before = 0
    scratch: dict[int, int] = {}
    while True:
        if taken is not None and before != at:
            taken.add((before, at))
        before = at
        code, jump_true, jump_false, operand = program[at]
        at += 1
        if code == RETURN:
            return min(operand, len(frame))
        if code == JUMP_ALWAYS:
            at += operand
        elif code in CONDITIONS:
            at += jump_true if CONDITIONS[code](accumulator, operand, index) else jump_false
        elif code in ARITHMETIC:
            accumulator = ARITHMETIC[code](accumulator, operand, index) & 0xFFFF_FFFF
        elif code in PACKET_LOADS:
            size, indirect = PACKET_LOADS[code]
            start = operand + (index if indirect else 0)
            if start + size > len(frame):
                return 0
            accumulator = int.from_bytes(frame[start : start + size])
        elif (code, operand) == MARK_LOAD:
            accumulator = mark
        elif code == 0x00:
            accumulator = operand
        elif code == 0x01:
            index = operand
        elif code == 0x60:
            accumulator = scratch[operand]
        elif code == 0x61:
            index = scratch[operand]
        elif code == 0x02:
            scratch[operand] = accumulator
        elif code == 0x03:
            scratch[operand] = index
        elif code == 0x07:
            index = accumulator
        elif code == 0x87:
            accumulator = index
        else:
            raise NotImplementedError(f"{before}: code {code:#x}")
