"""Results that are put in the repository's tables come out of them as they went in."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mptcp_lab.lab_errors import LabError
from mptcp_lab.scenario.files import chosen
from mptcp_lab.scenario.fingerprint import fingerprints
from mptcp_lab.scenario.kept import read_all
from mptcp_lab.scenario.lab_cli import run
from mptcp_lab.scenario.results import Result, Run, directory_of, write_result


def write(
    out: Path, name: str, *runs: Run, kernel: str = "native", commit: str = "0a1b2c3", of: str | None = None
) -> Result:
    """Leave a result in `out`, as a run does; it was measured at the set-up of the experiment `of`."""
    (experiment,) = chosen([of or name])
    known = fingerprints(experiment.scenario)
    result = Result(
        name=name,
        file=f"{name.partition(':')[0]}.yaml",
        commit=commit,
        kernel=kernel,
        release="6.18",
        congestion_control="reno",
        processors=2,
        time_scale=0.5,
        seed=7,
        runs=runs,
        directory=directory_of(out, kernel, name),
        fingerprints={figure: known[figure] for figure in ("", *runs[0].figures)},
    )
    result.directory.mkdir(parents=True)
    write_result(result)
    return result


def without_runs(result: Result) -> Result:
    """What its runs have in common."""
    return replace(result, runs=(), directory=Path())


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the tables, where the command line puts what is in `new`."""
    tables = tmp_path / "tables"
    tables.mkdir()
    monkeypatch.setattr(sys, "argv", ["mptcp-lab", "keep", str(tmp_path / "new"), "--tables", str(tables)])
    return tables


def test_tables_have_all_that_the_report_needs(tmp_path: Path, keep: Path) -> None:
    complete = Run({"ethernet": 1.25, "wifi": None}, 3.0, 0.25, ())
    written = [
        write(tmp_path / "new", "s0/mtu:1500", complete, Run({}, 0.0, 0.0, (), 'no such thing, "really"')),
        write(tmp_path / "new", "s0/mtu:1500", complete, kernel="debian-6.12"),
        write(tmp_path / "new", "s0/plain-tcp", *[complete] * 3),
        write(tmp_path / "new", "s1/h-lan-and-wan:wan", Run({}, 0.0, 0.0, (), "failed")),
    ]
    assert run("mptcp-lab") == 0
    assert sorted(path.name for path in keep.iterdir()) == ["s0.csv", "s1.csv"]
    kept = read_all(keep)
    assert [result.statistics for result in kept] == [result.statistics for result in written]
    assert [result.errors for result in kept] == [result.errors for result in written]
    assert [result.idle for result in kept] == [result.idle for result in written]
    assert [len(result.runs) for result in kept] == [2, 1, 3, 1]
    assert [without_runs(result) for result in kept] == [without_runs(result) for result in written]


def test_new_figures_replace_older_ones_of_the_same_experiment_and_kernel(tmp_path: Path, keep: Path) -> None:
    for name, mbps in (("s0/mtu:1500", 1.0), ("s0/mtu:1000", 2.0)):
        write(tmp_path / "new", name, *[Run({"ethernet": mbps}, 3.0, 0.25, ())] * 3)
    run("mptcp-lab")
    (tmp_path / "new").rename(tmp_path / "old")
    write(tmp_path / "new", "s0/mtu:1500", Run({"ethernet": 3.0}, 3.0, 0.25, ()), commit="4d5e6f7")
    run("mptcp-lab")
    kept = {
        result.name: (result.commit, [*(run.figures["ethernet"] for run in result.runs)]) for result in read_all(keep)
    }
    assert kept == {"s0/mtu:1500": ("4d5e6f7", [3.0]), "s0/mtu:1000": ("0a1b2c3", [2.0] * 3)}


def test_figures_of_another_set_up_are_dropped(tmp_path: Path, keep: Path) -> None:
    runs = [Run({"ethernet": 1.0}, 3.0, 0.25, ())]
    write(tmp_path / "new", "s0/mtu:1500", *runs, of="s0/mtu:1200")
    write(tmp_path / "new", "s0/mtu:1000", *runs)
    run("mptcp-lab")
    assert [result.name for result in read_all(keep)] == ["s0/mtu:1000"]


@pytest.mark.parametrize("commit", ["", "0a1b2c3-dirty"])
def test_what_was_not_measured_at_a_commit_is_refused(tmp_path: Path, keep: Path, commit: str) -> None:
    write(tmp_path / "new", "s0/mtu:1500", Run({"ethernet": 1.0}, 3.0, 0.25, ()), commit=commit)
    with pytest.raises(LabError, match="was not measured at a commit"):
        run("mptcp-lab")
    assert not any(keep.iterdir())


def test_damaged_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s0.csv").write_text("scenario,figure\ns0/mtu,1\n")
    with pytest.raises(LabError, match=r"s0\.csv: is not a table of kept results: its columns"):
        read_all(tmp_path)
