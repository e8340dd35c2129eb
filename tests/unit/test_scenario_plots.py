from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mptcp_lab.sampler import SocketInfo, SubflowSample
from mptcp_lab.scenario.files import Experiment, load
from mptcp_lab.scenario.plots import draw_split, draw_windows
from mptcp_lab.scenario.recording import Event, Recording
from mptcp_lab.scenario.results import Result, Run, subflow_totals, write_samples
from mptcp_lab.scenario.subflow_curves import sent_subflows, split_of

if TYPE_CHECKING:
    from pathlib import Path

SCENARIO = """\
title: two links
duration: 4s
hosts: {a: {}, b: {}}
links:
  one: {ends: [a.eth0, b.eth0]}
  two: {ends: [a.eth1, b.eth1]}
flows: {x: {from: a, to: b}}
report: {f: {goodput: x}}
"""
PNG = b"\x89PNG"


def sample(at: float, link: int, port: int, carried: int, window: int) -> list[SubflowSample]:
    """A socket of the sender `a` and its peer at `b`, and how much has come from one to the other."""
    near, far = f"10.{link}.0.1", f"10.{link}.0.2"
    sender = SocketInfo(port, near, port, far, 5201, carried, 0, window, 0.01, 0, 0, 0)
    receiver = SocketInfo(port, far, 5201, near, port, 0, carried, 10, 0.01, 0, 0, 0, carried // 1000)
    return [SubflowSample(at, "a", sender), SubflowSample(at, "b", receiver)]


def recorded(*samples: list[SubflowSample]) -> Recording:
    return Recording(4.0, [], [sample for pair in samples for sample in pair], {}, {}, [Event(2.0, "down a.eth1")], 0.5)


# Over link one 1 MB/s; over link two 1 MB until second 2; a control connection with 1 kB.
RECORDING = recorded(
    *(sample(at, 1, 4001, 1_000_000 * at, 10 + at) for at in range(5)),
    *(sample(at, 2, 4002, 500_000 * at, 20 - at) for at in range(3)),
    *(sample(at, 1, 4000, 1000, 10) for at in range(5)),
)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / "x.yaml").write_text(SCENARIO)
    (experiment,) = load("s/x", tmp_path / "x.yaml")
    return experiment


def run_of(experiment: Experiment, recording: Recording) -> Run:
    totals = subflow_totals(experiment.scenario, recording.subflows)
    return Run({}, recording.duration, recording.idle, recording.events, subflows=totals)


def test_windows_are_those_of_subflows_that_sent(experiment: Experiment, tmp_path: Path) -> None:
    write_samples(tmp_path, 1, experiment.scenario, RECORDING)
    one, two = sent_subflows(tmp_path)
    assert (one.name, two.name) == ("a 10.1.0.1 4001 to 10.1.0.2 5201", "a 10.2.0.1 4002 to 10.2.0.2 5201")
    assert one.windows == [(0.0, 10), (1.0, 11), (2.0, 12), (3.0, 13), (4.0, 14)]
    assert two.windows == [(0.0, 20), (1.0, 19), (2.0, 18)]
    assert (one.acked.mbps(0, 4), two.acked.mbps(0, 2)) == (8.0, 4.0)


def test_split_is_what_each_subflow_brought(experiment: Experiment) -> None:
    one, two = split_of(run_of(experiment, RECORDING))
    assert (one.name, one.mbps, one.packets) == ("10.1.0.1 4001 to b 10.1.0.2 5201", 8.0, 4000)
    assert (two.name, two.mbps, two.packets) == ("10.2.0.1 4002 to b 10.2.0.2 5201", 2.0, 1000)


def test_pictures_of_subflows_have_the_twelve_largest(experiment: Experiment, tmp_path: Path) -> None:
    many = recorded(*(sample(1, 1, 4000 + number, 20_000 * number, 10) for number in range(1, 15)))
    write_samples(tmp_path, 1, experiment.scenario, many)
    ports = [str(4000 + number) for number in range(3, 15)]
    assert [subflow.name.split()[2] for subflow in sent_subflows(tmp_path)] == ports
    assert [subflow.name.split()[1] for subflow in split_of(run_of(experiment, many))] == ports


def test_pictures_of_subflows_are_drawn_where_there_are_samples(experiment: Experiment, tmp_path: Path) -> None:
    def drawn(run: Run, directory: Path) -> list[bytes]:
        result = Result("s/x", "x.yaml", "", "native", "6.1", "cubic", 2, 1.0, 1, [run], directory)
        draw_windows(experiment, result, directory / "windows.png")
        draw_split(result, directory / "split.png")
        return [path.read_bytes()[:4] for path in directory.glob("*.png")]

    assert drawn(Run({}, 0.0, 0.0, (), "it failed"), tmp_path) == []
    write_samples(tmp_path, 1, experiment.scenario, RECORDING)
    assert drawn(run_of(experiment, RECORDING), tmp_path) == [PNG, PNG]
