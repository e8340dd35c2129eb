"""Budgets as the command line shows them, and when the log says that their periods do not begin."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from examples import ETHERNET, WIFI, client
from loops import snapshot_of
from worlds import ManualClock

from mptcp_throttle.cli.budget_tables import explained_budget, show_budgets
from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from mptcp_throttle.rpc import Json

MONTHLY: Final = Budget(
    5 * 10**9, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, None, (Stage(1.0, {RateKind.CAP: Rate.parse("256kbit")}),)
)
SPENT: Final = {
    "network": "lte",
    "client": "10.1.0.17",
    "device": None,
    "per": "client",
    "direction": "down",
    "every": "month",
    "amount": 5_000_000_000,
    "used": 5_020_000_000,
    "used_without_mptcp": 0,
    "left": 0,
    "added": [],
    "period": {"start": 0.0, "end": datetime(2026, 12, 14, 23, tzinfo=UTC).timestamp()},
    "forecast": None,
    "overdue": False,
    "stages_reached": 1,
    "allowed": [{"direction": "downlink", "kind": "cap", "rate": "256kbit"}],
    "free_window": None,
}


def shown(capsys: pytest.CaptureFixture[str], **changed: Json) -> str:
    answer = {"budgets": [{**SPENT, **changed}], "omitted": 0, "problem": None, "time_zone": "Europe/Berlin"}
    show_budgets(answer)
    return capsys.readouterr().out


def test_periods_end_in_the_time_zone_of_the_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    text = shown(capsys)
    assert "period ends (Europe/Berlin)" in text
    assert "2026-12-15 00:00" in text
    assert "5 GB down a month" in text
    assert explained_budget(SPENT, "Europe/Berlin").endswith("until 2026-12-15 00:00 (Europe/Berlin)")


def test_free_window_says_that_no_rate_is_lower_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not now (window 01:00-06:00); then cap 256kbit" in shown(capsys, free_window="01:00-06:00")
    text = explained_budget({**SPENT, "free_window": "01:00-06:00"}, None)
    assert text.endswith("in the window 01:00-06:00 nothing is used, and no rate is lower")


def test_forecast_is_by_days_or_by_hours(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (datetime(2026, 12, day, 11, 30, tzinfo=UTC).timestamp() for day in (8, 11))
    foreseen: Json = {"spent_at": first, "earliest": first, "latest": None}
    assert "12-08 (12-08 to later)" in shown(capsys, forecast=foreseen)
    assert "12-08 (12-08 to 12-11)" in shown(capsys, forecast={**foreseen, "latest": second})
    assert "12:30 (12:30 to later)" in shown(capsys, forecast=foreseen, every="day")
    assert "not in this period" in shown(capsys, forecast=dict.fromkeys(foreseen))


def test_overdue_period_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(overdue)" in shown(capsys, overdue=True)
    assert explained_budget({**SPENT, "overdue": True}, None).endswith("overdue")


def test_log_says_once_that_periods_are_overdue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshot = snapshot_of(tmp_path, client(1))
    snapshot = replace(snapshot, networks=(WIFI, replace(ETHERNET, budgets=(MONTHLY,))))
    clock, is_synchronised = ManualClock(), [True]
    ledger = Ledger({}, lambda: is_synchronised[0])
    accounts = Accounts(History(tmp_path / "history.sqlite", "boot"), ledger, clock)
    with caplog.at_level("INFO", "mptcp-throttled"):
        for ahead, is_right in ((0.0, True), (40.0, False), (41.0, False), (41.0, True)):
            clock.epoch, is_synchronised[0] = 1.7e9 + ahead * 86400, is_right
            accounts.observe({}, snapshot, {})
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("budgets: ")]
    assert lines == [
        "budgets: 1 budget should begin again, but the clock is not synchronised",
        "budgets: the periods that were due have begun",
    ]


SHARED: Final = {
    **SPENT,
    "used_elsewhere": 20_000_000,
    "used_by_proxy": [{"name": "proxy-1", "used": 5_000_000_000}, {"name": "proxy-2", "used": 20_000_000}],
}


def test_part_of_each_proxy_is_beside_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    show_budgets({"budgets": [SHARED], "omitted": 0, "problem": None, "time_zone": None})
    shown = capsys.readouterr().out
    assert "by proxy" in shown
    assert "proxy-1 5 GB, proxy-2 20 MB" in shown
    expected = "20 MB of it at other proxies (by proxy: proxy-1 5 GB, proxy-2 20 MB)"
    assert expected in explained_budget(SHARED, None)
    # Nothing of it was used elsewhere.
    show_budgets({"budgets": [SPENT], "omitted": 0, "problem": None, "time_zone": None})
    assert "by proxy" not in capsys.readouterr().out
