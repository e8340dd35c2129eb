"""Open vSwitches and their controller: subflows on paths of their own, an outage, and nothing left behind."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path
from typing import Final

from polling import eventually
from test_mptcp_lab import lab, medians, namespaces, scenario, start

SCENARIO: Final = """\
title: two sites with a path between them, and one over a three site
duration: 7s
hosts:
  one: {node: ovs}
  two: {node: ovs}
  three: {node: ovs}
  a: {addresses: {eth0: 2}, endpoints: {eth0: [subflow]}, sysctls: {net.ipv4.tcp_congestion_control: reno}}
  b: {}
links:
  a: {ends: [one.host, a.eth0], families: [4]}
  b: {ends: [two.host, b.eth0], families: [4]}
  direct: {ends: [one.two, two.one], families: [4], rate: 5mbit}
  one-three: {ends: [one.three, three.one], families: [4], rate: 5mbit}
  three-two: {ends: [three.two, two.three], families: [4], rate: 5mbit}
controller: {}
flows:
  flow: {from: a, to: b, over: a}
events:
  - {at: 4s, outage: direct, seconds: 2500ms, name: failure}
report:
  before: {received: flow, from: 1s, to: failure}
  direct: {rate: [direct], from: 1s, to: failure}
  other: {rate: [three-two], from: 1s, to: failure}
  without: {rate: [direct], from: failure + 500ms, to: failure + 2s}
  outage: {outage_length: failure}
  path_setup: {path_setup: 50}
"""


def of_lab(pid: int) -> list[str]:
    """The command lines of all processes whose files are those of that lab."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if f"mptl-{pid}-".encode() in line:
            lines.append(line.replace(b"\0", b" ").decode())
    return lines


def test_subflows_take_disjoint_paths_and_survive_an_outage(tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, output, errors = lab("run", scenario(tmp_path, SCENARIO, "switches"), "--kernel", "native", "--out", out)
    assert status == 0, output + errors
    (path,) = out.rglob("result.json")
    figures = medians(out)
    assert figures["before"] > 6
    assert figures["direct"] > 3
    assert figures["other"] > 3
    assert figures["without"] < 0.5
    assert 2500 <= figures["outage"] < 3500
    assert 0 < figures["path_setup"] < 1000
    with (path.parent / "interfaces-1.csv").open() as file:
        ports = {tuple(row[1:3]) for row in csv.reader(file)}
    assert {("three", "two"), ("one", "host")} <= ports
    assert "refused" not in (path.parent / "logs-1/controller.log").read_text()


def test_switches_and_controller_end_with_a_lab_that_is_interrupted(tmp_path: Path) -> None:
    text = SCENARIO.replace("duration: 7s", "duration: 60s")
    with start("run", scenario(tmp_path, text, "switches"), "--kernel", "native", "--out", tmp_path / "out") as runner:
        eventually(lambda: any("iperf3 --client" in line for line in of_flows(runner.pid)), "the flow has begun")
        assert sum("ovs-vswitchd" in line for line in of_lab(runner.pid)) == 3
        runner.terminate()
        _, errors = runner.communicate(timeout=30)
    assert runner.returncode == 128 + signal.SIGTERM
    assert "everything is cleaned up" in errors
    assert not namespaces(runner.pid)
    assert of_lab(runner.pid) == []


def of_flows(pid: int) -> list[str]:
    """The command lines of the processes in the lab's namespaces."""
    inodes = {os.stat(f"/run/netns/{name}").st_ino for name in namespaces(pid)}
    lines = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if (directory / "ns/net").stat().st_ino in inodes:
                lines.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return lines
