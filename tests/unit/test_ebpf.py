"""eBPF instructions as the kernel encodes them (Documentation/bpf/standardization/instruction-set.rst)."""

from __future__ import annotations

import pytest

from mptcp_throttle.linux import ebpf
from mptcp_throttle.linux.ebpf import R0, R1, R3, R6, R10


@pytest.mark.parametrize(
    ("instruction", "encoded"),
    [
        (ebpf.load(R3, R6, 68), "61 63 44 00 00000000"),
        (ebpf.store(R10, -16, R3), "63 3a f0 ff 00000000"),
        (ebpf.load64(R3, R6, 8), "79 63 08 00 00000000"),
        (ebpf.store64(R10, -8, R3), "7b 3a f8 ff 00000000"),
        (ebpf.store_constant(R10, -8, 16384), "62 0a f8 ff 00400000"),
        (ebpf.move(R6, R1), "bf 16 00 00 00000000"),
        (ebpf.constant(R0, 1), "b7 00 00 00 01000000"),
        (ebpf.constant32(R3, 0xFFFFFFFF), "b4 03 00 00 ffffffff"),
        (ebpf.add(R3, -32), "07 03 00 00 e0ffffff"),
        (ebpf.call(49), "85 00 00 00 31000000"),
        (ebpf.leave(), "95 00 00 00 00000000"),
    ],
)
def test_instruction_is_encoded_in_eight_bytes(instruction: ebpf.Instruction, encoded: str) -> None:
    assert ebpf.assemble([instruction]).hex() == encoded.replace(" ", "")


def test_jump_offset_counts_skipped_instructions_both_ways() -> None:
    forward = ebpf.assemble([ebpf.jump_if_equal(R3, 2, "end"), ebpf.constant(R0, 0), "end", ebpf.leave()])
    assert forward[:8].hex() == "1503010002000000"
    backward = ebpf.assemble(["begin", ebpf.constant(R0, 0), ebpf.jump("begin")])
    assert backward[8:].hex() == "0500feff00000000"


def test_load_map_takes_two_slots() -> None:
    assert ebpf.assemble(ebpf.load_map(R1, 7)).hex() == "1811000007000000" + "00" * 8


def test_constant64_takes_two_slots() -> None:
    assert ebpf.assemble(ebpf.constant64(R1, 0x8765432101234567)).hex() == "1801000067452301" + "0000000021436587"
