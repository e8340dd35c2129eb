"""Every number that a scenario says a seed has is on the line that it names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mptcp_lab.lab_errors import LabError
from mptcp_lab.scenario.files import load
from mptcp_lab.scenario.seed_lines import (
    SeedLine,
    cited,
    contradictions,
    experiments,
    read_seeds,
    read_table,
    write_table,
)
from mptcp_lab.scenario.seed_section import Cited, Lines, Seed, numbers_in

SCENARIO = """\
title: two links
seed: {document: S2, lines: [617-618], finding: Two links of 15 Mb/s carried 30.22 Mb/s}
duration: 10s
hosts: {a: {}, b: {}}
links: {one: {ends: [a.eth0, b.eth0]}}
flows: {x: {from: a, to: b}}
report: {f: {rate: [one], seed: 30.22 @ 617}, g: {rate: [one]}}
effects: {both carry 15: {lines: [619], of: f, to: g, at_least: 1}}
"""
TABLE = {
    (Seed.S2, 617): SeedLine("a", (15.0, 30.22)),
    (Seed.S2, 618): SeedLine("b", ()),
    (Seed.S2, 619): SeedLine("c", (15.0,)),
}


def test_numbers_of_the_project_are_on_the_lines_that_it_names() -> None:
    of, table = experiments(), read_table()
    assert list(contradictions(of, table)) == []
    assert cited(of) == {*table}


@pytest.mark.skipif("SEEDS" not in os.environ, reason="SEEDS names no directory with the seeds")
def test_table_is_what_the_seeds_have() -> None:
    table = read_table()
    assert read_seeds(Path(os.environ["SEEDS"]), table) == table


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("seed: 30.22 @", "seed: 30.2 @", "s2/x: f: 30.2 is not on line 617 of S2"),
        ("30.22 @ 617", "30.22 @ 618", "s2/x: f: 30.22 is not on line 618 of S2"),
        ("carried 30.22", "carried 31", "s2/x: finding: 31 is on none of its lines of S2"),
        ("[617-618]", "[617-620]", "s2/x: finding: there is no line 620 of S2"),
        ("both carry 15", "both carry 16", "s2/x: both carry 16: 16 is on none of its lines of S2"),
    ],
)
def test_number_that_is_not_on_its_line_is_found(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "x.yaml"
    for text, found in ((SCENARIO, []), (SCENARIO.replace(old, new), [problem])):
        path.write_text(text)
        assert list(contradictions(load("s2/x", path), TABLE)) == found


def test_cited_lines_are_those_of_finding_numbers_and_effects(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SCENARIO)
    assert cited(load("s2/x", path)) == {(Seed.S2, line) for line in (617, 618, 619)}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("| H1 | 15 Mbps | 30,22 Mbps |", [15.0, 30.22]),
        ("10.0.0.2 to 10.0.3.2, 33,3ms and 1Gb/s", [33.3, 1.0]),
        ("eth1 and 0.085.", [0.085]),
        ("1499264", [1499264.0]),
    ],
)
def test_numbers_are_read_with_point_or_comma(text: str, numbers: list[float]) -> None:
    assert numbers_in(text) == numbers


def test_numbers_and_lines_are_parsed_once() -> None:
    assert (Cited.parse("30.22 @ 617"), Cited.parse("3 * 1000 @ 2219").value) == (Cited(30.22, 1, 617), 3000)
    assert [*Lines.parse("617-619").each()] == [617, 618, 619]
    for text in ("0", "619-617", "617-", "a"):
        with pytest.raises(ValueError, match="allowed: a line such as 617"):
            Lines.parse(text)
    with pytest.raises(ValueError, match="allowed: NUMBER @ LINE"):
        Cited.parse("617")


def test_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_table(TABLE, tmp_path / "t.csv")
    assert read_table(tmp_path / "t.csv") == TABLE
    (tmp_path / "t.csv").write_text("seed,line\nS9,1\n")
    with pytest.raises(LabError, match=r"t\.csv: is not a table of the seeds' lines"):
        read_table(tmp_path / "t.csv")


def test_seeds_are_read_by_line(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"has 0 files S0-\*\.txt"):
        read_seeds(tmp_path, [])
    for seed in Seed:
        (tmp_path / f"{seed}-x.txt").write_text("a 1\nb 2,5\f\n")
    found = read_seeds(tmp_path, [(Seed.S1, 2)])
    assert found[Seed.S1, 2].numbers == (2.5,)
    with pytest.raises(LabError, match="S1 has no line 9"):
        read_seeds(tmp_path, [(Seed.S1, 9)])
