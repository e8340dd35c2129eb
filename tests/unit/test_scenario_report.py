"""The document of results: grouped by seed, and for each of a seed's numbers whether ours is the same."""

from pathlib import Path

from mptcp_lab.scenario.files import Experiment, load
from mptcp_lab.scenario.report import as_html, as_markdown, make_report
from mptcp_lab.scenario.results import Result, Run

SCENARIO = """\
title: two links
seed: what the seed found
why: the world has changed
scale: 10
duration: 10s
hosts: {a: {}, b: {}}
links:
  one: {ends: [a.eth0, b.eth0]}
flows:
  x: {from: a, to: b}
report:
  f: {rate: [one], seed: 100}
  g: {seconds: x, seed: 2}
  h: {seconds: x, seed: 3, not_comparable: a simulation}
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
    text = as_markdown(make_report(results(tmp_path), "the command", pictures=False), tmp_path)
    lines = text.splitlines()
    assert lines[4].startswith("Kernels: native is 6.18 ")
    assert "| S4: SDN-based test beds for MPTCP (BME Budapest, 2014) | 4 | 2 | 1 | 1 |" in lines
    assert (
        "| x:one | native | 0a1b2c3 | 25 | f 10.5 (10-11) Mb/s; g 4 (4-4) s; h 3 (3-3) s; i - s"
        " | f 10: same; g 2: different; h 3: not comparable |"
    ) in lines
    assert "| x:two | native | 0a1b2c3 |  | failed: no such thing |  |" in lines
    (finding,) = (line for line in lines if line.startswith("| s4/x |"))
    assert "two links; rates are the seed's divided by 10 | what the seed found |" in finding
    assert "it is fast: f is 9 Mb/s or more: 10.5 Mb/s (one)." in finding
    assert "DID NOT HOLD: it is fast: f is 9 Mb/s or more: 8 Mb/s (two)." in finding
    assert "Different (one g): the world has changed" in finding
    assert "Not comparable (one h): a simulation" in finding
    assert "`lab/mptcp-lab run s4/x --kernel native --repeat 2`" in finding


def test_report_shows_the_seeds_chart_beside_ours(tmp_path: Path) -> None:
    pairs = results(tmp_path)
    (tmp_path / "out/native/s4/x/bars.png").touch()
    (tmp_path / "out/native/s4/x/two/timeline.png").touch()
    blocks = make_report(pairs, "the command", pictures=True)
    text = as_markdown(blocks, tmp_path)
    charts = [line for line in text.splitlines() if line.startswith("![")]
    assert charts == ["![chart](out/native/s4/x/bars.png)", "![chart](out/native/s4/x/two/timeline.png)"]
    assert as_html(blocks, tmp_path).count("<img") == 2
