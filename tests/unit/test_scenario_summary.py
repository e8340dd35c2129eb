"""The short document of results: what did not hold, what differs and what failed is in it, whatever is left out."""

import re
from dataclasses import replace
from pathlib import Path

from test_scenario_report import SCENARIO, results

from mptcp_lab.scenario.files import load
from mptcp_lab.scenario.report import as_markdown
from mptcp_lab.scenario.results import Run
from mptcp_lab.scenario.summary import make_summary


def test_summary_has_what_differs_did_not_hold_or_failed(tmp_path: Path) -> None:
    lines = as_markdown(make_summary(results(tmp_path), "the command"), tmp_path).splitlines()
    assert "* Measured at 0a1b2c3, where no other commit is named." in lines
    assert "| S4: SDN-based test beds for MPTCP (BME Budapest, 2014) | 4 | 2 | 1 | 1 | 0 | 2 | 1 |" in lines
    assert "`lab/mptcp-lab run s4 --kernel native --repeat 2`." in lines
    first = lines.index("* **x** (rates / 10): what the seed found (S2, lines 617).")
    assert lines[first + 1 :] == [
        "  * Ours: f 10.5 ≈ 10 (one), 8 ≈ 10 (two); g (s) 4 ≠ 2 (one), - (two, seed 2);"
        " h (s) 3 (one, seed 3), - (two, seed 3).",
        "  * Held: it is fast: 10.5 Mb/s ≥ 9 Mb/s (one).",
        "  * DID NOT HOLD: it is fast: f ≥ 9 Mb/s: 8 Mb/s (two).",
        "  * Different: the world has changed",
        "  * Not comparable: a simulation",
        "  * FAILED (two): no such thing",
    ]


def test_summary_names_what_other_commands_and_commits_have_measured(tmp_path: Path) -> None:
    (one, first), (two, second) = results(tmp_path)
    busy = [Run({"f": value, "g": 2.0, "h": 3.0}, 10.0, 0.05, ()) for value in (4.0, 9.0, 30.0)]
    pairs = [(one, first), (two, replace(second, commit="4d5e6f7", runs=busy))]
    text = as_markdown(make_summary(pairs, "the command"), tmp_path)
    assert "\nWith `--kernel native --repeat 3` at 4d5e6f7: x (two).\n" in text
    assert "9 (4-30) ≈ 10 (two)" in text
    assert "; idle 5 %." in text


def test_summary_has_all_figures_of_an_experiment_without_comparison(tmp_path: Path) -> None:
    (_, result), _ = results(tmp_path)
    path = tmp_path / "y.yaml"
    path.write_text(re.sub(r", seed: \d+ @ 1|, not_comparable: a simulation|expect:\n.*\n", "", SCENARIO))
    experiment, _ = load("s4/y", path)
    lines = as_markdown(make_summary([(experiment, result)], "the command"), tmp_path).splitlines()
    assert lines[-1] == "  * Ours: f 10.5 (one); g (s) 4 (one); h (s) 3 (one); i (s) - (one)."


def test_summary_names_figures_that_no_run_has_measured(tmp_path: Path) -> None:
    (one, result), _ = results(tmp_path)
    old = replace(result, runs=[Run({"f": 11.0, "h": 3.0}, 10.0, 0.5, ())])
    lines = as_markdown(make_summary([(one, old)], "the command"), tmp_path).splitlines()
    assert "  * Figures not measured at this set-up: g." in lines
    assert "  * Ours: f 11 ≈ 10 (one); h (s) 3 (one, seed 3)." in lines


def test_summary_tells_kernels_apart_and_breaks_long_lines(tmp_path: Path) -> None:
    (one, result), _ = results(tmp_path)
    runs = [Run({"f": 11.0, "g": 4.0, "h": 3.0}, 10.0, 0.5, ())]
    pairs = [(one, replace(result, kernel=f"kernel-{number:0>60}", runs=runs)) for number in range(5)]
    lines = as_markdown(make_summary(pairs, "the command"), tmp_path).splitlines()
    ours = [line for line in lines if line.startswith("  * Ours: ")]
    assert len(ours) == 3
    assert sum(line.count(f"kernel-{4:0>60}") for line in ours) == 3
