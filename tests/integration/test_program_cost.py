"""What the verifier says of the kernel programs; also run on Debian's stock kernels (tests/guest)."""

from __future__ import annotations

import pytest

from mptcp_lab.program_cost import compiler, costs, grown, kernel_series, recorded


def test_no_program_costs_the_verifier_a_tenth_more_than_recorded() -> None:
    known = recorded()
    if not any((kernel, cost.compiler) == (kernel_series(), compiler()) for (kernel, _), cost in known.items()):
        pytest.skip(
            f"nothing is recorded for Linux {kernel_series()} and {compiler()}: benchmarks/program-cost --record"
        )
    assert grown(costs(), known) == []
