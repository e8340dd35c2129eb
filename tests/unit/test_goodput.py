"""What `benchmarks/goodput` makes of its runs."""

import pytest

from mptcp_lab.benchmarks.goodput import Cell, Figures, number_pair, summary

CELL = Cell("native", "bbr", (0, 0), (1.0, 40.0), "ours")


def figures(percent: float, gap: float, *, intact: bool = True) -> Figures:
    return Figures(percent, gap, 0.0, 0.0, 1.0, 1000.4, intact, {"TcpRetransSegs": 1})


def test_spread_of_a_cell_ends_with_the_lowest_goodput_and_the_longest_gap() -> None:
    runs = [(CELL, figures(90.0 + number, 0.1 * number, intact=number > 0)) for number in range(10)]
    (row,) = summary(runs)
    assert row["percent_of_permitted"] == (94.5, 90.0, 90.0)
    assert row["start_gap"] == (0.45, 0.8, 0.9)
    assert row["start_excess"] == (1000, 1000, 1000)
    assert (row["intact"], len(row["runs"])) == (9, 10)
    assert row["runs"][0]["counters"] == {"TcpRetransSegs": 1}


def test_cells_that_differ_in_when_the_rates_begin_have_rows_of_their_own() -> None:
    other = Cell("native", "bbr", (0, 0), (1.0, 40.0), "ours", "connection")
    rows = summary([(CELL, figures(90, 0)), (other, figures(80, 0)), (CELL, figures(70, 0))])
    assert [(row["begin"], row["percent_of_permitted"][2]) for row in rows] == [
        ("mid-transfer", 70),
        ("connection", 80),
    ]


@pytest.mark.parametrize(("text", "pair"), [("1+40", (1, 40)), ("0.25+10", (0.25, 10))])
def test_number_pair(text: str, pair: tuple[float, float]) -> None:
    assert number_pair(text) == pair
