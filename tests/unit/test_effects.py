"""A seed's finding is reproduced, or not, by two measured figures; some pairs of figures are no evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mptcp_lab.scenario.effects import Effect, Shown, Side, counts_of_effects, effects_of, judged, lines_of
from mptcp_lab.scenario.files import load
from mptcp_lab.scenario.results import Result, Run
from mptcp_lab.scenario.seed_section import EffectSection

if TYPE_CHECKING:
    from pathlib import Path

SCENARIO = """\
title: two links
seed: {document: S2, lines: [617], finding: what the seed found}
duration: 10s
hosts: {a: {}, b: {}}
links:
  one: {ends: [a.eth0, b.eth0], rate: 10mbit}
flows:
  x: {from: a, to: b}
report:
  f: {rate: [one]}
vary:
  three:
    effects:
      three carry less: {lines: [617], of: f, to: two/f, at_most: 0.9, because: they are new}
  two: {}
  none:
    effects:
      nothing can be told: {lines: [617], not_comparable: a simulation}
"""


def effect(**keys: object) -> EffectSection:
    return EffectSection.model_validate({"lines": [617], "of": "f", "to": "g", **keys})


def side(median: float, limit: float | None = None, idle: float | None = 50.0) -> Side:
    return Side(median, limit, idle)


@pytest.mark.parametrize(
    ("keys", "of", "to", "shown"),
    [
        ({"at_most": 0.9}, 2.0, 3.0, Shown.REPRODUCED),
        ({"at_most": 0.9}, 2.9, 3.0, Shown.NOT_REPRODUCED),
        ({"at_least": 0.8, "at_most": 1.25}, 1.0, 1.2, Shown.REPRODUCED),
        ({"at_least": 0.8, "at_most": 1.25}, 1.0, 1.3, Shown.NOT_REPRODUCED),
        ({"at_least": 2}, 1.0, 0.0, Shown.REPRODUCED),
        ({"at_most": 0.1}, 0.0, 5.0, Shown.REPRODUCED),
        ({"at_most": 0.1}, 0.0, 0.0, Shown.NO_EVIDENCE),
        ({"apart": 2}, 1.0, 2.5, Shown.REPRODUCED),
        ({"apart": 2}, 2.5, 1.0, Shown.REPRODUCED),
        ({"apart": 2}, 1.5, 1.0, Shown.NOT_REPRODUCED),
    ],
)
def test_relation_decides_where_no_link_does(keys: dict[str, object], of: float, to: float, shown: Shown) -> None:
    assert judged(effect(**keys), side(of), side(to))[0] is shown


@pytest.mark.parametrize(
    ("keys", "of", "to", "shown"),
    [
        ({"at_least": 0.9}, 9.5, 9.4, Shown.NO_EVIDENCE),
        ({"at_most": 1.03}, 9.5, 9.4, Shown.NO_EVIDENCE),
        ({"at_least": 1.05}, 7.0, 9.4, Shown.NO_EVIDENCE),
        ({"at_most": 0.2}, 9.5, 9.4, Shown.NOT_REPRODUCED),
        ({"at_most": 0.2}, 1.0, 9.4, Shown.REPRODUCED),
        ({"at_least": 0.5}, 9.5, 9.4, Shown.REPRODUCED),
        ({"at_least": 1.05}, 9.4, 7.0, Shown.REPRODUCED),
    ],
)
def test_link_at_its_limit_is_no_evidence(keys: dict[str, object], of: float, to: float, shown: Shown) -> None:
    assert judged(effect(**keys), side(of, 10), side(to, 10))[0] is shown


def test_limits_that_differ_decide_nothing() -> None:
    assert judged(effect(at_least=1.5), side(19, 20), side(9.5, 10)) == (Shown.REPRODUCED, "")


def test_busy_machine_and_missing_figures_tell_nothing() -> None:
    shown, why = judged(effect(at_most=0.9), side(1), side(2, idle=9.9))
    assert (shown, "processors" in why) == (Shown.NOT_COMPARABLE, True)
    assert judged(effect(at_most=0.9), side(1), None) == (Shown.NOT_MEASURED, "")
    assert judged(effect(at_most=0.9, not_comparable="a simulation"), side(1), side(2)) == (
        Shown.NOT_COMPARABLE,
        "a simulation",
    )


def test_unexplained_failure_says_so() -> None:
    assert judged(effect(at_most=0.9), side(1), side(1)) == (Shown.NOT_REPRODUCED, "no reason is known")


def test_findings_are_judged_within_a_kernel_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SCENARIO)
    three, two, none = load("s2/x", path)
    base = Result(three.name, "x", "0a1b2c3", "native", "6.18", "reno", 2, 1.0, 1, [], tmp_path)
    results = {
        e.name: replace(base, name=e.name, runs=[Run({"f": mbps}, 10.0, 0.5, ())])
        for e, mbps in ((three, 5.0), (two, 4.0))
    }
    pairs = [(three, results[three.name]), (two, results[two.name])]
    effects = list(effects_of(pairs, [three, two, none]))
    assert effects == [
        Effect("three carry less", "three", Shown.NOT_REPRODUCED, "f / two/f 1.25 ≤ 0.9", "they are new"),
        Effect("nothing can be told", "none", Shown.NOT_COMPARABLE, "", "a simulation"),
    ]
    elsewhere = [(three, results[three.name]), (two, replace(results[two.name], kernel="debian-6.1"))]
    assert next(effects_of(elsewhere, [three])).shown is Shown.NOT_MEASURED
    assert counts_of_effects(effects) == ["2", "0", "1", "1", "0", "0"]
    assert list(lines_of([*effects, replace(effects[0], shown=Shown.NOT_MEASURED)])) == [
        "*Not reproduced*: three carry less (three): f / two/f 1.25 ≤ 0.9: they are new.",
        "*Cannot be compared*: nothing can be told (none): a simulation.",
        "*Not measured*: three carry less (three).",
    ]
