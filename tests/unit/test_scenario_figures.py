from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mptcp_lab.curve import Curve
from mptcp_lab.disorder.summary import Disorder
from mptcp_lab.playback import Played
from mptcp_lab.port import Port
from mptcp_lab.sampler import InterfaceSample, SocketInfo, SubflowSample
from mptcp_lab.scenario.figures import measure
from mptcp_lab.scenario.files import Experiment, load
from mptcp_lab.scenario.judge import Statistic, compare, judge, summarise
from mptcp_lab.scenario.recording import Event, FlowResult, Recording
from mptcp_lab.scenario.results import Result, Run, read_results, subflow_totals, write_result
from mptcp_lab.video import segment_bytes, wifi_trace

HEAD = """\
title: two links
seed: {document: S2, lines: [617], finding: what the seed found}
why: the world has changed
scale: 10
duration: 10s
hosts: {a: {}, b: {}}
links:
  one: {ends: [a.eth0, b.eth0]}
  two: {ends: [a.eth1, b.eth1]}
flows:
  x: {from: a, to: b}
"""


def scenario_of(directory: Path, text: str) -> list[Experiment]:
    path = directory / "x.yaml"
    path.write_text(HEAD + text)
    return list(load("s/x", path))


def interface(at: float, port: str, received: int) -> InterfaceSample:
    host, _, name = port.partition(".")
    return InterfaceSample(at, Port(host, name), received, 0)


def subflow(at: float, cookie: int, local: str, received: int) -> SubflowSample:
    packets = received // 1000
    socket = SocketInfo(cookie, local, 5201, "10.1.0.1", 40000, 0, received, 10, 0.01, 0, 0, 0, packets)
    return SubflowSample(at, "b", socket)


# 1 MB/s over link one in 10 s; over link two 1 MB in the first 2 s, whose socket is closed then.
RECORDING = Recording(
    duration=10.0,
    interfaces=[
        *(interface(at, "b.eth0", at * 1_000_000) for at in range(11)),
        *(interface(at, "a.eth0", at * 10_000) for at in range(11)),
        *(interface(at, "b.eth1", min(at, 2) * 500_000) for at in range(11)),
    ],
    subflows=[
        *(subflow(at, 1, "10.1.0.2", 1_000_000 * (at if at < 4 else max(at, 7) - 4 + 1)) for at in range(11)),
        *(subflow(at, 2, "10.2.0.2", 500_000 * at) for at in range(3)),
    ],
    counters={"b": {"TcpRetransSegs": 7, "TcpInSegs": 28, "TcpOutRsts": 0, "TcpExtDelayedACKLost": 8}},
    flows={"x": FlowResult(8.0, 10_000_000)},
    events=[Event(4.0, "down a.eth0")],
    idle=0.5,
    disorder={"x": Disorder(1000, 40.0, 5.0, 123_000, 17, 250.0)},
    setups=[0.004, 0.001, 0.002, 0.009],
)


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("{rate: [one]}", 8.0),
        ("{rate: [one, two], to: 2s}", 12.0),
        ("{rate: [two], from: 2s}", 0.0),
        ("{rate: [one], from: 11s}", None),
        ("{volume: [one, two]}", 11.0),
        ("{volume: [two], from: 1s}", 0.5),
        ("{received: x, to: 2s}", 12.0),
        ("{received: x, over: [two]}", 0.8),
        ("{subflow_bytes: x}", 8_000_000),
        ("{subflow_bytes: x, over: [two], to: 1s}", 500_000),
        ("{subflow_packets: x}", 8000),
        ("{subflow_packets: x, over: [two]}", 1000),
        ("{goodput: x}", 10.0),
        ("{seconds: x}", 8.0),
        ("{counter: b.TcpRetransSegs}", 7.0),
        ("{counter: b.TcpRetransSegs, per: b.TcpInSegs}", 25.0),
        ("{counter: b.TcpRetransSegs, per: b.TcpInSegs, without: b.TcpExtDelayedACKLost}", 35.0),
        ("{counter: b.TcpRetransSegs, per: b.TcpInSegs, without: b.Unknown}", 25.0),
        ("{counter: b.TcpRetransSegs, per: b.TcpOutRsts}", None),
        ("{counter: b.Unknown, per: b.TcpInSegs}", None),
        ("{out_of_order: x}", 40.0),
        ("{out_of_order_in_subflows: x}", 5.0),
        ("{out_of_order_buffer: x}", 123.0),
        ("{reorder_extent: x}", 17.0),
        ("{reassembly_wait: x}", 250.0),
        ("{gap: x}", 3.0),
        ("{gap: x, to: 3s}", 0.0),
    ],
)
def test_measure_reads_each_kind_of_figure(tmp_path: Path, figure: str, value: float | None) -> None:
    (experiment,) = scenario_of(tmp_path, f"report:\n  f: {figure}\n")
    assert measure(experiment.scenario, RECORDING)["f"] == pytest.approx(value)


def test_totals_are_what_each_subflow_had_when_it_was_last_seen(tmp_path: Path) -> None:
    (experiment,) = scenario_of(tmp_path, "report: {f: {goodput: x}}\n")
    idle = subflow(3, 3, "10.1.0.2", 0)
    totals = subflow_totals(experiment.scenario, [*RECORDING.subflows, idle])
    carried = [(total["link"], total["received_bytes"], total["received_packets"]) for total in totals]
    assert carried == [("one", 7_000_000, 7000), ("two", 1_000_000, 1000)]


def test_video_has_stalls_bitrate_and_a_least_volume(tmp_path: Path) -> None:
    played = [Played(1_000_000, 0.0, 1.0, 1.0), Played(500_000, 1.0, 6.0, 5.0)]
    recording = replace(RECORDING, flows={"x": FlowResult(6.0, 750_000, played)})
    text = """\
title: a video
duration: 10s
hosts: {ue: {}, proxy: {server: squid}, origin: {run: [origin]}}
links:
  wifi: {ends: [ue.eth0, proxy.eth0], trace: 1}
  origin: {ends: [ue.eth1, origin.eth0], rate: 8mbit}
flows: {x: {from: origin, to: ue, via: proxy, video: 8s}}
report: {stalls: {stalls: x}, bitrate: {bitrate: x}, least: {least_volume: x}}
"""
    (tmp_path / "x.yaml").write_text(text)
    (experiment,) = load("s/x", tmp_path / "x.yaml")
    found = measure(experiment.scenario, recording)
    assert (found["stalls"], found["bitrate"]) == (1.0, 0.75)
    wifi = wifi_trace(1, 10)[0].rate
    assert found["least"] == pytest.approx((segment_bytes(1_000_000) - wifi / 8) / 1e6)


def test_outages_paths_and_completion_have_figures(tmp_path: Path) -> None:
    text = (
        (Path(__file__).parent / "plans/switches.yaml").read_text().replace("seconds: 100ms}", "seconds: 1s, name: o}")
    )
    text = text.replace("over: a}", "over: a, size: 1MB}\n  y: {from: b, to: a, over: b, size: 1MB}")
    figures = "{o: {outage_length: o}, p0: {path_setup: 0}, p50: {path_setup: 50}, p100: {path_setup: 100}"
    text = text.replace("report: {}", f"report: {figures}, c50: {{completion: 50}}, c0: {{completion: 0}}}}")
    (tmp_path / "x.yaml").write_text(text)
    (experiment,) = load("s/x", tmp_path / "x.yaml")
    flows = {"x": FlowResult(8.0, 10), "y": FlowResult(9.0, 10)}
    recording = replace(RECORDING, outages={"o": 1.003}, flows=flows)
    found = measure(experiment.scenario, recording)
    assert found == pytest.approx({"o": 1003.0, "p0": 1.0, "p50": 2.0, "p100": 9.0, "c50": 8.0, "c0": 8.0})
    nothing = replace(RECORDING, setups=(), flows={name: FlowResult(None, None) for name in flows})
    assert set(measure(experiment.scenario, nothing).values()) == {None}


def test_curve_is_linear_between_its_points_and_flat_outside() -> None:
    curve = Curve([(1.0, 10.0), (3.0, 30.0)])
    assert [curve.at(time) for time in (0.0, 1.0, 2.0, 3.0, 9.0)] == [10.0, 10.0, 20.0, 30.0, 30.0]


def test_summarise_gives_the_median_and_the_range() -> None:
    assert summarise([3.0, None, 1.0, 8.0]) == Statistic(3.0, 1.0, 8.0, 3)
    assert summarise([None]) is None


def numbers(**medians: float | None) -> Mapping[str, Statistic | None]:
    return {name: None if value is None else Statistic(value, value, value, 1) for name, value in medians.items()}


def test_compare_scales_the_seeds_rates_and_applies_the_tolerance(tmp_path: Path) -> None:
    report = (
        "report:\n  f: {rate: [one], seed: 100 @ 1, within: 10%}\n  g: {seconds: x, seed: 2 @ 1}\n  h: {seconds: x}\n"
    )
    report += "  i: {seconds: x, seed: 1 @ 1, not_comparable: a simulation}\n"
    (experiment,) = scenario_of(tmp_path, report)
    rows = compare(experiment.scenario, numbers(f=10.9, g=3.0, h=1.0, i=1.0))
    assert [(row.figure, row.seed, row.match, row.why) for row in rows] == [
        ("f", 10.0, "same", ""),
        ("g", 2.0, "different", "the world has changed"),
        ("h", None, None, ""),
        ("i", 1.0, "not comparable", "a simulation"),
    ]


def test_judge_compares_figures_of_this_and_other_variants(tmp_path: Path) -> None:
    text = """\
report:
  f: {rate: [one]}
  g: {rate: [two]}
expect:
  enough: {of: f, to: g, at_least: 2}
vary:
  slow: {}
  fast:
    expect:
      faster: {of: f, to: slow/f, at_least: 3, at_most: 5}
"""
    experiments = scenario_of(tmp_path, text)
    verdicts = judge(experiments, "native", {"s/x:slow": numbers(f=2, g=1), "s/x:fast": numbers(f=8, g=5)})
    assert [(v.expected, v.seen, v.held) for v in verdicts["s/x:slow"]] == [("enough: f / g ≥ 2", "2", True)]
    assert [(v.expected, v.seen, v.held) for v in verdicts["s/x:fast"]] == [
        ("enough: f / g ≥ 2", "1.6", False),
        ("faster: f / slow/f is 3 to 5", "4", True),
    ]
    assert len(judge(experiments, "native", {"s/x:fast": numbers(f=8, g=5)})["s/x:fast"]) == 1
    assert not judge(experiments, "native", {"s/x:slow": numbers(f=2, g=None)})["s/x:slow"][0].held
    assert not judge(experiments, "native", {"s/x:slow": numbers(f=0, g=0)})["s/x:slow"][0].held


@pytest.mark.parametrize(("other", "held"), [(41.0, True), (37.0, True), (36.9, False), (None, False), (0.0, False)])
def test_judge_takes_figures_that_differ_little_for_near(tmp_path: Path, other: float | None, *, held: bool) -> None:
    text = "report:\n  f: {out_of_order: x}\n  g: {out_of_order_in_subflows: x}\n"
    experiments = scenario_of(tmp_path, text + "expect:\n  alike: {of: f, to: g, near: 2}\n")
    (verdict,) = judge(experiments, "native", {"s/x": numbers(f=39.0, g=other)})["s/x"]
    assert (verdict.expected, verdict.held) == ("alike: f and g differ by ≤ 2 %", held)


def test_judge_leaves_out_expectations_of_another_kernel(tmp_path: Path) -> None:
    text = "report:\n  f: {seconds: x}\nexpect:\n  soon: {of: f, at_most: 1, kernel: native}\n"
    experiments = scenario_of(tmp_path, text)
    assert len(judge(experiments, "native", {"s/x": numbers(f=2)})["s/x"]) == 1
    assert judge(experiments, "debian-6.1", {"s/x": numbers(f=2)})["s/x"] == []


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    runs = [Run({"f": 1.5, "g": None}, 10.0, 0.75, (Event(4.0, "down a.eth0"),)), Run({}, 0.0, 0.0, (), "no luck")]
    result = Result("s/x", "/x.yaml", "", "native", "6.1", "cubic", 2, 1.0, 1, runs, tmp_path)
    write_result(result)
    (again,) = read_results(tmp_path)
    assert again.statistics == {"f": Statistic(1.5, 1.5, 1.5, 1), "g": None}
    assert again.errors == ["no luck"]
    assert again.idle == Statistic(75.0, 75.0, 75.0, 1)
