"""The history as the CLI prints it: a line for each period, sums, and CSV with all that is kept."""

from __future__ import annotations

from typing import Final

import pytest

from mptcp_throttle.cli import tables
from mptcp_throttle.rpc import Json
from mptcp_throttled.accounting.history_rows import Account, HistoryRow, Kind
from mptcp_throttled.answers.status import history
from mptcp_throttled.vocabulary.traffic import Traffic

ETHERNET: Final = Account(Kind.NETWORK, "ethernet")
PERIODS: Final = (
    HistoryRow(1_800_000_000, Traffic(ip_sent=1_000_000, ip_sent_throttled=250_000, held_back_ms=1234)),
    HistoryRow(1_800_000_060, Traffic(ip_sent=500, ip_received=2_000, held_back_ms=100)),
)


def answer(*periods: HistoryRow) -> Json:
    return history(ETHERNET, 60, periods)


def test_periods_and_their_sums_have_what_was_throttled_and_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_history(answer(*PERIODS))
    head, first, second, *sums = capsys.readouterr().out.splitlines()
    for column, values in (("throttled", ("25.0 %", "0.0 %")), ("held back", ("1.2 s", "0.1 s"))):
        at = head.index(column)
        assert [row[at:].split("  ")[0] for row in (first, second)] == list(values)
    assert sums == [
        "total IP bytes: 1 MB sent (250 kB throttled), 2 kB received",
        "total time held back: 1.3 s",
    ]


def test_csv_has_all_columns(capsys: pytest.CaptureFixture[str]) -> None:
    tables.write_history_csv(answer(*PERIODS))
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.startswith("start,sent,")
    rows = [dict(zip(head.split(","), line.split(","), strict=True)) for line in (first, second)]
    assert [(row["ip_sent_throttled"], row["held_back_ms"]) for row in rows] == [("250000", "1234"), ("0", "100")]


def test_account_without_history_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_history(answer())
    assert capsys.readouterr().out == "no history of network ethernet in that time\n"
