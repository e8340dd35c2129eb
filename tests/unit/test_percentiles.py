"""The figures that benchmarks print of several runs."""

import pytest

from mptcp_lab.percentiles import Spread, percentile, spread


@pytest.mark.parametrize(("low_is_bad", "expected"), [(False, Spread(50.5, 90, 100)), (True, Spread(50.5, 10, 1))])
def test_spread_ends_with_the_worst_value(low_is_bad: bool, expected: Spread) -> None:
    assert spread(range(100, 0, -1), low_is_bad=low_is_bad) == expected


def test_spread_names_its_figures() -> None:
    assert spread([7.0]).named("gap, s") == {"gap, s: median": 7, "gap, s: p90": 7, "gap, s: worst": 7}


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (90, 90), (99, 99), (100, 100), (0, 1)])
def test_percentile_is_a_value_that_this_part_does_not_exceed(percent: float, expected: float) -> None:
    assert percentile(range(100, 0, -1), percent) == expected
    assert percentile([7], percent) == 7
