"""The document of results: grouped by seed, and for each of a seed's numbers whether ours is the same."""

from dataclasses import replace
from pathlib import Path

from mptcp_lab.scenario.files import Experiment, load
from mptcp_lab.scenario.report import as_html, as_markdown, make_report
from mptcp_lab.scenario.results import Result, Run

SCENARIO = """\
title: two links
seed: {document: S2, lines: [617], finding: what the seed found}
why: the world has changed
scale: 10
duration: 10s
hosts: {a: {}, b: {}}
links:
  one: {ends: [a.eth0, b.eth0]}
flows:
  x: {from: a, to: b}
report:
  f: {rate: [one], seed: 100 @ 1}
  g: {seconds: x, seed: 2 @ 1}
  h: {seconds: x, seed: 3 @ 1, not_comparable: a simulation}
  i: {seconds: x}
expect:
  it is fast: {of: f, at_least: 9}
vary:
  one: {}
  two: {}
"""


def results(directory: Path) -> list[tuple[Experiment, Result]]:
    """Of two variants: one ran twice, the other failed once and missed its expectation."""
    path = directory / "x.yaml"
    path.write_text(SCENARIO)
    one, two = load("s4/x", path)
    runs = {
        one.name: [Run({"f": value, "g": 4.0, "h": 3.0, "i": None}, 10.0, 0.25, ()) for value in (10.0, 11.0)],
        two.name: [Run({"f": 8.0}, 10.0, 0.5, ()), Run({}, 0.0, 0.0, (), "no such thing")],
    }
    found = []
    for experiment in (one, two):
        place = directory / "out/native/s4/x" / str(experiment.variant)
        place.mkdir(parents=True)
        result = Result(
            experiment.name,
            str(path),
            "0a1b2c3",
            "native",
            "6.18",
            "reno",
            2,
            1.0,
            1,
            runs[experiment.name],
            directory=place,
        )
        found.append((experiment, result))
    return found


def test_report_counts_and_explains_the_numbers_of_each_seed(tmp_path: Path) -> None:
    text = as_markdown(make_report(results(tmp_path), "the command"), tmp_path)
    lines = text.splitlines()
    assert "* Measured at 0a1b2c3, where no other commit is named." in lines
    assert "* Kernel native is 6.18 (reno, 2 processors)." in lines
    assert "| S4: SDN-based test beds for MPTCP (BME Budapest, 2014) | 4 | 2 | 1 | 1 | 0 |" in lines
    assert "| scenario | f, Mb/s | g, s | h, s | i, s |" in lines
    assert "| x:one | 10.5 ≈ 10 | 4 ≠ 2 | 3 (seed 3) | - |" in lines
    assert "| x:two | 8 ≈ 10 | - (seed 2) | - (seed 3) | - |" in lines
    heading = "* s4/x: two links; rates / 10. `lab/mptcp-lab run s4/x --kernel native --repeat 2`"
    first = lines.index(heading)
    assert lines[first + 1 : first + 7] == [
        "  * Seed: what the seed found (S2, lines 617).",
        "  * Held: it is fast: f ≥ 9 Mb/s: 10.5 Mb/s (one).",
        "  * DID NOT HOLD: it is fast: f ≥ 9 Mb/s: 8 Mb/s (two).",
        "  * Different: the world has changed",
        "  * Not comparable: a simulation",
        "  * Failed (two): no such thing",
    ]


def test_report_names_other_commits_busy_machines_and_wide_ranges(tmp_path: Path) -> None:
    (one, first), (two, second) = results(tmp_path)
    busy = [Run({"f": value, "g": 2.0, "h": 3.0}, 10.0, 0.05, ()) for value in (4.0, 9.0, 30.0)]
    pairs = [(one, first), (two, replace(second, commit="4d5e6f7", runs=busy))]
    lines = as_markdown(make_report(pairs, "the command"), tmp_path).splitlines()
    command = "`lab/mptcp-lab run s4/x --kernel native --repeat"
    assert any(line.endswith(f". one: {command} 2`; two: {command} 3` at 4d5e6f7, idle 5 %") for line in lines)
    assert "| x:two | 9 (4-30) ≈ 10 | 2 ≈ 2 | 3 (seed 3) | - |" in lines


def test_report_has_figures_of_a_single_experiment_in_words(tmp_path: Path) -> None:
    lines = as_markdown(make_report(results(tmp_path)[:1], "the command"), tmp_path).splitlines()
    assert "  * Ours (one): f 10.5 ≈ 10 Mb/s; g 4 ≠ 2 s; h 3 (seed 3) s; i - s." in lines
    assert not any(line.startswith("| scenario") for line in lines)


def test_report_tells_kernels_of_one_experiment_apart(tmp_path: Path) -> None:
    (one, result), _ = results(tmp_path)
    pairs = [(one, result), (one, replace(result, kernel="debian-6.1"))]
    lines = as_markdown(make_report(pairs, "the command"), tmp_path).splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("| x:one")] == [
        "| x:one (native)",
        "| x:one (debian-6.1)",
    ]


def test_report_counts_the_variants_in_which_an_expectation_held(tmp_path: Path) -> None:
    (_, result), _ = results(tmp_path)
    (tmp_path / "x.yaml").write_text(SCENARIO + "  three: {}\n")
    pairs = [(experiment, replace(result, name=experiment.name)) for experiment in load("s4/x", tmp_path / "x.yaml")]
    lines = as_markdown(make_report(pairs, "the command"), tmp_path).splitlines()
    assert "  * Held: it is fast: f ≥ 9 Mb/s: in 3 variants." in lines


def test_report_shows_the_seeds_chart_beside_ours(tmp_path: Path) -> None:
    pairs = results(tmp_path)
    (tmp_path / "out/native/s4/x/bars.png").touch()
    (tmp_path / "out/native/s4/x/two/timeline.png").touch()
    blocks = make_report(pairs, "the command")
    text = as_markdown(blocks, tmp_path)
    charts = [line for line in text.splitlines() if line.startswith("![")]
    assert charts == ["![chart](out/native/s4/x/bars.png)", "![chart](out/native/s4/x/two/timeline.png)"]
    assert as_html(blocks, tmp_path).count("<img") == 2
