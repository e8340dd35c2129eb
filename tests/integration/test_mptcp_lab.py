"""The command line of the scenarios, from a file to figures, on this machine's kernel."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest
from polling import eventually
from proxy_world import EXECUTABLES

from mptcp_lab.namespaces import in_namespace

SCENARIO = """\
title: two small links, one of which goes down
seed: {document: S2, lines: [617], finding: this is a test}
duration: 4s
hosts:
  a: {}
  b: {endpoints: {eth1: [signal]}}
links:
  one: {ends: [a.eth0, b.eth0], rate: 5mbit}
  two: {ends: [a.eth1, b.eth1], rate: 5mbit}
flows:
  mptcp: {from: a, to: b}
events:
  - {at: 2500ms, down: a.eth1}
report:
  both: {rate: [one, two], from: 1s, to: 2500ms, seed: 10 @ 617}
  payload: {received: mptcp, from: 1s, to: 2500ms}
expect:
  both links are used: {of: both, to: 10, at_least: 0.7}
"""
NETNS = Path("/run/netns")


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command: list[str | Path] = [EXECUTABLES / "mptcp-lab", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lab(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, output and errors of the program, which has left no namespace."""
    with start(*arguments) as process:
        output, errors = process.communicate(timeout=60)
    assert not namespaces(process.pid)
    return process.returncode, output, errors


def test_namespace_that_does_not_exist_cannot_be_entered() -> None:
    name, before = "mptl-no-such", os.readlink("/proc/thread-self/ns/net")
    with pytest.raises(FileNotFoundError), in_namespace(name):
        pass
    assert not (NETNS / name).exists()
    assert os.readlink("/proc/thread-self/ns/net") == before


def medians(out: Path) -> dict[str, float]:
    """The figures of the only result below a directory."""
    (path,) = out.rglob("result.json")
    return {name: figure["median"] for name, figure in json.loads(path.read_text())["figures"].items()}


def scenario(directory: Path, text: str = SCENARIO, name: str = "small") -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(text)
    return path


def namespaces(pid: int) -> list[str]:
    return [path.name for path in NETNS.glob(f"mptl-{pid}-*")]


def test_lab_run_leaves_figures_samples_and_a_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, output, errors = lab("run", scenario(tmp_path), "--kernel", "native", "--out", out)
    assert status == 0, output + errors
    assert "both links are used" in output

    (path,) = out.rglob("result.json")
    result = json.loads(path.read_text())
    assert result["kernel"] == "native"
    assert 7 <= result["figures"]["both"]["median"] <= 10.5
    # What one path has delivered early reaches the program when the other has filled the gap: in a burst.
    assert 6 <= result["figures"]["payload"]["median"] <= 15
    assert [event["text"] for event in result["runs"][0]["events"]] == ["down a.eth1"]
    arrived = {s["link"]: s for s in result["runs"][0]["subflows"] if s["host"] == "b" and s["received_bytes"] > 10**5}
    assert arrived.keys() == {"one", "two"}
    assert all(1000 < s["received_bytes"] / s["received_packets"] < 1461 for s in arrived.values()), arrived
    subflows = (path.parent / "subflows-1.csv").read_text().splitlines()
    assert {line.split(",")[2] for line in subflows[1:]} == {"one", "two"}
    assert (path.parent / "interfaces-1.csv").read_text().count("b,eth1,two") > 20
    pictures = [path.parent / name for name in ("timeline.png", "windows.png", "split.png")]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    for picture in pictures:
        picture.unlink()
    assert lab("draw", out)[0] == 0
    assert all(picture.exists() for picture in pictures)

    assert lab("report", out)[0] == 0
    report = (out / "report.md").read_text()
    # Of `both` the report also says how it compares with the seed's 10, which depends on the machine's load.
    compared = r"([≈≠] 10|\(seed 10, the link's\))"
    assert re.search(rf"^  \* Ours: both \S+ {compared} Mb/s; payload \S+ Mb/s\.$", report, re.MULTILINE), report
    assert re.search(r"^\* \S+/small: .* `lab/mptcp-lab run \S+ --kernel native --repeat 1`", report, re.MULTILINE)
    assert "both links are used: both / 10 ≥ 0.7" in report


UNEQUAL: Final = """\
title: two unequal paths, and a flow of four megabytes
why: this is a test
duration: 30s
hosts:
  a: {sysctls: {net.ipv4.tcp_congestion_control: reno}}
  b: {endpoints: {eth1: [signal]}}
links:
  one: {ends: [a.eth0, b.eth0], rate: 6mbit}
  two: {ends: [a.eth1, b.eth1], rate: 2mbit}
flows:
  mptcp: {from: a, to: b, size: 4MB}
report:
  payload: {payload: mptcp}
  out_of_order: {out_of_order: mptcp}
  by_counters: {counter: b.MPTcpExtOFOQueue, per: b.TcpInSegs}
  in_subflows: {out_of_order_in_subflows: mptcp}
  buffer: {out_of_order_buffer: mptcp}
  extent: {reorder_extent: mptcp}
  wait: {reassembly_wait: mptcp}
expect:
  capture and counters agree: {of: out_of_order, to: by_counters, near: 2}
  paths keep the order: {of: in_subflows, at_most: 10}
"""


def test_disorder_of_a_captured_flow_agrees_with_the_kernels_counters(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = scenario(tmp_path, UNEQUAL)
    status, output, errors = lab("run", path, "--kernel", "native", "--out", out)
    figures = medians(out)
    assert status == 0, f"{figures} {output} {errors}"
    assert figures["payload"] == 4
    assert figures["out_of_order"] > 10
    assert figures["buffer"] > 5
    assert figures["extent"] >= 1
    assert figures["wait"] > 0


def test_lab_run_exits_with_1_if_an_expectation_does_not_hold(tmp_path: Path) -> None:
    path = scenario(tmp_path, SCENARIO.replace("at_least: 0.7", "at_least: 7"))
    status, _, errors = lab("run", path, "--kernel", "native", "--time-scale", "0.5", "--out", tmp_path / "out")
    assert status == 1
    assert "1 expectations did not hold" in errors


def test_lab_run_exits_with_78_and_one_line_for_an_invalid_file(tmp_path: Path) -> None:
    status, _, errors = lab("run", scenario(tmp_path, SCENARIO.replace("5mbit", "5mbps", 1)))
    assert status == os.EX_CONFIG
    assert "small.yaml:8: links.one.rate: '5mbps': is not a rate" in errors
    assert errors.count("\n") == 1


def test_lab_run_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    path = scenario(tmp_path, SCENARIO.replace("duration: 4s", "duration: 60s"))
    with start("run", path, "--kernel", "native", "--out", tmp_path / "out") as runner:

        def flows() -> bool:
            pids = [subprocess.check_output(["ip", "netns", "pids", name]) for name in namespaces(runner.pid)]
            return sum(len(listed.split()) for listed in pids) >= 2

        eventually(flows, "both ends of the flow running")
        runner.kill()
    assert len(namespaces(runner.pid)) == 2
    lab("run", scenario(tmp_path), "--time-scale", "0.25", "--kernel", "native", "--out", tmp_path)
    assert not namespaces(runner.pid)


def test_lab_run_cleans_up_after_a_signal(tmp_path: Path) -> None:
    path = scenario(tmp_path, SCENARIO.replace("duration: 4s", "duration: 60s"))
    with start("run", path, "--kernel", "native", "--out", tmp_path / "out") as runner:
        eventually(lambda: len(namespaces(runner.pid)) == 2, "built")
        runner.terminate()
        _, errors = runner.communicate(timeout=20)
    assert runner.returncode == 128 + signal.SIGTERM
    assert errors == "mptcp-lab: interrupted by SIGTERM; everything is cleaned up\n"
    assert not namespaces(runner.pid)
