"""What the CLI says where there is nothing to show, and what the log says of a pause that survives a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import connection, subflow
from loops import snapshot_of

from mptcp_throttle.cli import tables
from mptcp_throttled.answers.status import connections
from mptcp_throttled.answers.view import View
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.reporting.eventlog import log_pause_at_start
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.operator import Pause
from mptcp_throttled.vocabulary.snapshot import Snapshot, SnifferState

NOW = Now(1000.0, 1.7e9)


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (None, "no MPTCP connections\n"),
        ("sniffer.sock: no [service] answers", "no connection is known: the sniffer does not answer: sniffer.sock: "),
    ],
)
def test_connections_say_why_there_is_none(problem: str | None, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = connections(View(Snapshot(sniffer=SnifferState("epoch", 1, problem)), Enforcement(), {}, NOW))
    tables.show_connections(answer)
    shown = capsys.readouterr().out
    assert shown.startswith(line)
    assert (problem or "") in shown


def test_connections_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = snapshot_of(tmp_path, connection(1, subflow("10.1.0.1"), subflow("10.2.0.1")))
    tables.show_connections(connections(View(snapshot, Enforcement(), {}, NOW)))
    assert "10.1.0.1 40000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pause", "lines"),
    [
        (None, []),
        (Pause(None), ["paused by the operator, until resumed: nothing is throttled; "]),
        (Pause(1060.0), ["paused by the operator, for 60 s: nothing is throttled; "]),
    ],
)
def test_start_while_paused_is_a_warning(
    pause: Pause | None, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log_pause_at_start(pause, 1000.0)
    assert [record.message.partition("`")[0] for record in caplog.records if record.levelname == "WARNING"] == lines
