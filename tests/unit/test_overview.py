"""What the page says first: in a word whether all is well, and what to do."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from page_server import STATUS

from mptcp_throttle.findings import daemon_findings
from mptcp_throttle_web.overview import commands, verdict

if TYPE_CHECKING:
    from collections.abc import Callable


def pause(status: dict[str, Any]) -> None:
    status["daemon"]["pause"] = {"expires_at": None, "seconds_left": None}


def miss_a_feature(status: dict[str, Any]) -> None:
    status["daemon"]["features"]["pacing"]["problem"] = "no CAP_PERFMON"


def not_enforce(status: dict[str, Any]) -> None:
    status["daemon"]["not_enforced"] = ["10.1.0.2:40001 sends 5.00 Mb/s"]


def be_sick(status: dict[str, Any]) -> None:
    status["networks"][0]["sick"] = [{"ailment": "loss", "text": "loss above 5%", "subflows": 2}]


def lose_the_sniffer(status: dict[str, Any]) -> None:
    status["sniffer"].update(connected=False, problem="no service answers")


def be_well(_: dict[str, Any]) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "level", "problems", "notes"),
    [
        (be_well, "ok", 0, 0),
        (be_sick, "note", 0, 0),
        (miss_a_feature, "note", 0, 1),
        (pause, "paused", 1, 0),
        (not_enforce, "problem", 1, 0),
        (lose_the_sniffer, "away", 1, 0),
    ],
)
def test_level_says_whether_all_is_well(
    change: Callable[[dict[str, Any]], None], level: str, problems: int, notes: int
) -> None:
    status = deepcopy(STATUS)
    status["daemon"]["errors"] = []
    change(status)
    found = verdict(status, [finding for finding in daemon_findings(status) if finding.problem is not None])
    assert (found["level"], found["problems"], found["notes"]) == (level, problems, notes)
    assert found["sick"] == (["lte"] if change is be_sick else [])
    assert found["not_enforced"] == (change is not_enforce)


def test_commands_of_a_remedy_are_those_in_backticks() -> None:
    remedy = "`mptcp-throttle resume`, or `A rate is not enforced`; then `systemctl status mptcp-sniffer`"
    assert commands(remedy) == ["mptcp-throttle resume", "systemctl status mptcp-sniffer"]
    assert commands(None) == []
