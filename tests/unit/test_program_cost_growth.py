"""When kernel programs have become more costly for the verifier than recorded."""

from __future__ import annotations

from dataclasses import replace

from mptcp_lab.program_cost import ProgramCost, grown

KNOWN = ProgramCost("6.1", "throttle/throttle", 1000, stack=100, milliseconds=1.0, compiler="clang 14.0.6", commit="")


def test_growth_is_told_of_instructions_and_stack() -> None:
    known = {("6.1", KNOWN.program): KNOWN}
    assert grown([replace(KNOWN, instructions=1100, stack=110, milliseconds=50.0)], known) == []
    assert grown([replace(KNOWN, instructions=1101)], known) == [
        "throttle/throttle: instructions on Linux 6.1: 1101, recorded 1000"
    ]
    assert grown([replace(KNOWN, stack=111)], known) == ["throttle/throttle: stack on Linux 6.1: 111, recorded 100"]
    assert grown([replace(KNOWN, program="new")], known) == ["new: nothing is recorded for Linux 6.1"]
