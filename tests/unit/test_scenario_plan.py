"""Golden: a scenario in `plans/`, and beside it the commands that build it and that its events are.

After a wanted change, `python tests/unit/test_scenario_plan.py` writes the commands again: read the difference before
it is committed.
"""

import re
from pathlib import Path

import pytest

from mptcp_lab.scenario.files import load
from mptcp_lab.scenario.plan import (
    curl_arguments,
    event_commands,
    iperf_arguments,
    kernel_parameters,
    reshape,
    send_arguments,
)
from mptcp_lab.scenario.scenario_schema import Scenario
from mptcp_lab.scenario.stage import describe
from mptcp_lab.sdn.switch_plan import whole_plan
from mptcp_lab.squid import SQUID

SCENARIOS = sorted((Path(__file__).parent / "plans").glob("*.yaml"))
ABBREVIATED = {
    r": namespace\n(?=\S+: namespace$)": ", ",
    r"^(\S+): ip link set lo up\n((\1: ip link set .* up\n)+)\1: ip mptcp limits set subflow 8 add_addr_accepted 8\n": (
        r"\1: lo is up, and up to 8 subflows are allowed and accepted\n\2"
    ),
    r"^(\S+: ip -[46]) route replace default via (\S+) dev (\S+) metric (\d+)\n"
    r"\1 route replace (\S+) dev \3 src (\S+) table (\d+)\n"
    r"\1 route replace default via \2 dev \3 src \6 table \7\n"
    r"\1 rule add from \6 lookup \7$": r"\1 routes from \6 via \2 dev \3 metric \4, table \7 with \5",
    r"^(\S+: ip link) add (\S+) type veth (peer .*)\n\1 set \2( mtu 1500|) master (\S+) up$": (
        r"\1 add \2 type veth\4 master \5 \3"
    ),
    r"^(\S+): tc qdisc replace dev (\S+) root (.*)\n(\S+): tc qdisc replace dev (\S+) root \3$": (
        r"\1 \2, \4 \5: tc qdisc replace root \3"
    ),
}
"""What stands for commands that each of these expressions matches."""
HEAD = """\
title: flows
duration: 10s
hosts: {a: {run: [origin]}, b: {server: squid}, c: {}}
links:
  one: {ends: [a.eth0, b.eth0, c.eth0]}
  two: {ends: [a.eth1, b.eth1, c.eth1]}
report: {}
flows:
"""


def with_flow(directory: Path, flow: str) -> Scenario:
    """A scenario with this flow, x."""
    path = directory / "x.yaml"
    path.write_text(f"{HEAD}  x: {flow}\n")
    return load("x", path)[0].scenario


def planned(path: Path) -> str:
    scenario = load("plans/x", path)[0].scenario
    common = {f" {key} = {value}" for key, value in kernel_parameters(forwarding=False).items()}
    lines = [line for line in str(whole_plan(scenario)).splitlines() if line.partition(":")[2] not in common]
    for event in scenario.events:
        lines += ["", f"at {event.at}: {describe(event)}", *map(str, event_commands(scenario, event))]
        scenario = reshape(scenario, event)
    text = "\n".join(lines) + "\n"
    for pattern, short in ABBREVIATED.items():
        text = re.sub(pattern, short, text, flags=re.MULTILINE)
    return text


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_plan_consists_of_these_commands(path: Path) -> None:
    assert planned(path) == path.with_suffix(".txt").read_text()


@pytest.mark.parametrize(
    ("flow", "command"),
    [
        ("{from: a, to: b}", "mptcpize run iperf3 --client 10.1.0.2 --port 5201 --time 8 --json"),
        (
            "{from: a, to: b, protocol: tcp, over: two}",
            "iperf3 --client 10.2.0.2 --port 5201 --bind 10.2.0.1 --time 8 --json",
        ),
        ("{from: a, to: b, family: 6}", "mptcpize run iperf3 --client fd00:1::2 --port 5201 --time 8 --json"),
        (
            "{from: a, to: c, protocol: udp, rate: 9mbit}",
            "iperf3 --client 10.1.0.3 --port 5201 --udp --bitrate 9000000 --pacing-timer 1287 --time 8 --json",
        ),
    ],
)
def test_iperf_arguments_follow_the_flow(tmp_path: Path, flow: str, command: str) -> None:
    assert " ".join(iperf_arguments(with_flow(tmp_path, flow), "x", 8.0)) == command


@pytest.mark.parametrize(
    ("flow", "arguments"),
    [
        ("{from: a, to: b, size: 2MB}", "send 5201 mptcp 2000000 10.1.0.2"),
        ("{from: a, to: c, size: 1kB, protocol: tcp, over: two}", "send 5201 tcp 1000 10.2.0.3 10.2.0.1"),
        ("{from: a, to: c, size: 1kB, protocol: fallback, family: 6}", "send 5201 mptcp 1000 fd00:1::3"),
    ],
)
def test_flow_with_a_size_is_sent_by_our_own_program(tmp_path: Path, flow: str, arguments: str) -> None:
    assert " ".join(send_arguments(with_flow(tmp_path, flow), "x")) == arguments


def test_curl_arguments_bind_to_the_address_on_the_flows_link(tmp_path: Path) -> None:
    scenario = with_flow(tmp_path, "{from: a, to: c, via: b, over: two, size: 1MB}")
    arguments = " ".join(map(str, curl_arguments(scenario, "x", "http://10.1.0.1/f", SQUID)))
    assert arguments.startswith("mptcpize run curl ")
    assert arguments.endswith(" --interface 10.2.0.3 --proxy http://10.1.0.2:8080 http://10.1.0.1/f")


if __name__ == "__main__":
    for scenario_path in SCENARIOS:
        scenario_path.with_suffix(".txt").write_text(planned(scenario_path))
