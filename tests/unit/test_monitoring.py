"""`mptcp-throttle doctor --monitoring`: one line and an exit status, as plugins of Nagios have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_throttle.cli import doctor, main
from mptcp_throttle.cli.monitoring import State, judge, unknown
from mptcp_throttle.findings import Finding

CONFIG = str(Path(__file__).parents[2] / "config/mptcp-throttle.yaml")
OK = Finding("kernel")
NOTE = Finding("JOINs", "are opened by the proxy itself", "`ip mptcp limits`", harm=False)
PROBLEM = Finding("proxy port 8080", "no process listens on it", "start the proxy")
UNCHECKED = Finding("marks of others", unchecked="only root may list them")


@pytest.mark.parametrize(
    ("findings", "state", "line"),
    [
        ([OK], State.OK, "mptcp-throttle OK: no problem was found | problems=0 notes=0 unchecked=0"),
        ([OK, UNCHECKED], State.OK, "mptcp-throttle OK: no problem was found | problems=0 notes=0 unchecked=1"),
        (
            [OK, NOTE],
            State.WARNING,
            "mptcp-throttle WARNING: JOINs: are opened by the proxy itself | problems=0 notes=1 unchecked=0",
        ),
        (
            [NOTE, UNCHECKED, PROBLEM],
            State.CRITICAL,
            "mptcp-throttle CRITICAL: proxy port 8080: no process listens on it; JOINs: are opened by the proxy itself"
            " | problems=1 notes=1 unchecked=1",
        ),
    ],
)
def test_monitoring_state_is_that_of_the_worst_finding(findings: list[Finding], state: State, line: str) -> None:
    assert judge(findings) == (state, line)


def test_monitoring_line_is_bounded_and_has_one_bar() -> None:
    _, line = judge([NOTE, *(Finding("a|b", f"problem {number}") for number in range(9))])
    assert line.startswith("mptcp-throttle CRITICAL: a/b: problem 0; a/b: problem 1; a/b: problem 2; and 7 more | ")
    assert line.count("|") == 1
    assert unknown("a|b: 1\nc: 2\nd: 3") == (State.UNKNOWN, "mptcp-throttle UNKNOWN: a/b: 1; and 2 more")


@pytest.mark.parametrize(
    ("findings", "status"), [([OK], 0), ([OK, NOTE], 1), ([NOTE, PROBLEM], 2), ([OK, UNCHECKED], 0)]
)
def test_monitoring_prints_one_line_and_ends_with_the_state(
    findings: list[Finding], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda *_: findings)
    assert main(["--config", CONFIG, "doctor", "--monitoring"]) == status
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (f"{judge(findings)[1]}\n", "")


def test_monitoring_of_an_invalid_configuration_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "none.yaml"), "doctor", "--monitoring"]) == State.UNKNOWN
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith(f"mptcp-throttle UNKNOWN: {tmp_path}/none.yaml: cannot be read: ")


def test_monitoring_without_ss_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--config", CONFIG, "doctor", "--monitoring"]) == State.UNKNOWN
    assert capsys.readouterr().out == "mptcp-throttle UNKNOWN: ss: not found; it is part of iproute2\n"


def test_monitoring_is_explained_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    shown = capsys.readouterr().out
    for state in State:
        assert f"\n    {state}  {state.name}: " in shown
