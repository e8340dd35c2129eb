"""A result belongs to the set-up at which it was measured, and to no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_lab.scenario.files import load
from mptcp_lab.scenario.fingerprint import SET_UP, fingerprints
from mptcp_lab.scenario.kept import read_all

SCENARIO = """\
title: two links
duration: 10s
hosts: {a: {}, b: {}}
links:
  one: {ends: [a.eth0, b.eth0], rate: 5mbit}
flows:
  x: {from: a, to: b}
report:
  f: {rate: [one], from: 2s}
  g: {received: x}
"""


def prints(directory: Path, text: str) -> dict[str, str]:
    path = directory / "x.yaml"
    path.write_text(text)
    (experiment,) = load("s4/x", path)
    return fingerprints(experiment.scenario)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("rate: 5mbit", "rate: 6mbit", {SET_UP, "f", "g"}),
        ("duration: 10s", "duration: 20s", {SET_UP, "f", "g"}),
        ("to: b}", "to: b, protocol: tcp}", {SET_UP, "f", "g"}),
        ("from: 2s", "from: 3s", {"f"}),
        ("from: 2s", "from: 2s, within: 10%, why: a reason", set()),
        ("two links", "another title", set()),
        ("rate: 5mbit", "rate: 5000kbit, mtu: 1500", set()),
        ("  g: {received: x}", "  g: {received: x}\n  h: {seconds: x}", set()),
    ],
)
def test_fingerprint_is_of_what_the_numbers_depend_on(tmp_path: Path, old: str, new: str, changed: set[str]) -> None:
    before, after = prints(tmp_path, SCENARIO), prints(tmp_path, SCENARIO.replace(old, new, 1))
    assert {name for name in before if before[name] != after[name]} == changed


def test_kept_results_have_a_fingerprint_of_each_figure() -> None:
    for result in read_all(Path(__file__).parents[2] / "lab/measured"):
        assert {SET_UP, *result.statistics} == {*result.fingerprints}, result.name
