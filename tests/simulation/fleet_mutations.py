"""Defects of the exchange of totals, one at a time, that a run with a fleet must find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from mutations import Mutation

from mptcp_throttled.accounting import sharing
from mptcp_throttled.accounting.budget_account import BudgetAccount
from mptcp_throttled.accounting.history import History
from mptcp_throttled.fleet import totals, totals_book, totals_thread
from mptcp_throttled.fleet.keys import name_of
from mptcp_throttled.fleet.totals import BelievedTotal, merged
from mptcp_throttled.fleet.totals_book import TotalsBook
from mptcp_throttled.fleet.totals_server import ValkeyExchange
from mptcp_throttled.fleet.totals_thread import TotalsThread
from mptcp_throttled.lifecycle import fleet_member
from mptcp_throttled.vocabulary.fleet import OwnTotal


def _totals_are_added(patch: pytest.MonkeyPatch) -> None:
    later = totals.later_believed

    def added(before: BelievedTotal, total: int, *given: float) -> BelievedTotal:
        return later(before, before.total + total if total != before.total else total, *given)

    patch.setattr(totals, "later_believed", added)


def _ledgers_have_no_identifier(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet_member, "field_of", lambda proxy, _: f"{proxy}.00000000")


def _own_total_is_read_back(patch: pytest.MonkeyPatch) -> None:
    believe = TotalsThread._believe

    def with_own(each: TotalsThread, *given: Any) -> None:  # noqa: ANN401
        own, each._field = each._field, ""
        believe(each, *given)
        each._field = own

    patch.setattr(TotalsThread, "_believe", with_own)
    patch.setattr(ValkeyExchange, "without_own_totals", lambda _, contents, __: contents)


def _periods_share_a_hash(patch: pytest.MonkeyPatch) -> None:
    def without_period(total: OwnTotal, secret: bytes | None) -> bytes:
        return name_of(total._replace(period=total.period._replace(start=0.0)), secret)

    patch.setattr(totals_thread, "name_of", without_period)


def _others_of_the_last_period_count(patch: pytest.MonkeyPatch) -> None:
    def begin_period(account: BudgetAccount) -> None:
        if account.shared is not None:
            account.shared.clear()

    patch.setattr(sharing, "begin_period", begin_period)


def _totals_that_are_missing_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forgetful(believed: Mapping[str, BelievedTotal], read: Mapping[str, int], *given: float) -> Any:  # noqa: ANN401
        return merged({field: believed[field] for field in believed.keys() & read}, read, *given)

    patch.setattr(totals_book, "merged", forgetful)


def _lower_totals_are_believed_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(totals, "LOWER_SECONDS", 0.0)


def _false_totals_are_believed(patch: pytest.MonkeyPatch) -> None:
    def unbounded(
        believed: Mapping[str, BelievedTotal], read: Mapping[str, int], now: float, age: float, _: float
    ) -> Any:  # noqa: ANN401
        return merged(believed, read, now, age, 1e30)

    patch.setattr(totals_book, "merged", unbounded)


def _lost_totals_are_not_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TotalsBook, "note_lost", lambda *_: None)


def _failed_publishing_is_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    due = TotalsBook.due_to_publish

    def done(each: TotalsBook, tick: int) -> Any:  # noqa: ANN401
        entries = due(each, tick)
        each.note_published(entries)
        return entries

    patch.setattr(TotalsBook, "due_to_publish", done)
    patch.setattr(TotalsBook, "note_lost", lambda *_: None)


def _hashes_never_expire(patch: pytest.MonkeyPatch) -> None:
    publish = ValkeyExchange.publish
    patch.setattr(ValkeyExchange, "publish", lambda each, named, _: publish(each, named, {}))


def _identifiers_are_written_late(patch: pytest.MonkeyPatch) -> None:
    def ledger(each: History) -> str:
        if each._ledger is None:
            rows = each._select("SELECT identifier FROM ledger", ())
            each._ledger = str(rows[0][0]) if rows else each._instance[:8]
        return each._ledger

    patch.setattr(History, "ledger", ledger)


def _idle_clients_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    forget = TotalsBook.forget_idle

    def wholly(each: TotalsBook, now: float) -> None:
        forget(each, now)
        each._kept.clear()

    patch.setattr(TotalsBook, "forget_idle", wholly)


def _what_is_near_a_stage_waits_its_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(totals_book, "_NEAR_SECONDS", 0.0)
    patch.setattr(totals_book, "_BEGIN_SECONDS", 0.0)


def _all(*functions: Callable[[pytest.MonkeyPatch], None]) -> tuple[Mutation, ...]:
    names = [function.__name__.strip("_").replace("_", "-") for function in functions]
    return tuple(Mutation(name, f, FOUND_BY.get(name, 0)) for name, f in zip(names, functions, strict=True))


FOUND_BY: Final[dict[str, int]] = {
    "ledgers-have-no-identifier": 1,
    "others-of-the-last-period-count": 1,
    "totals-that-are-missing-are-forgotten": 3,
    "lower-totals-are-believed-at-once": 3,
    "false-totals-are-believed": 60,
    "lost-totals-are-not-written-again": 3,
    "identifiers-are-written-late": 23,
    "idle-clients-are-forgotten": 306,
}
"""The seed of the run that finds a defect soonest, if it is not 0."""

QUICK: Final = frozenset({"totals-are-added", "periods-share-a-hash", "false-totals-are-believed"})
"""Those that are found within a second."""

FLEET_MUTATIONS: Final = _all(
    _totals_are_added,
    _ledgers_have_no_identifier,
    _own_total_is_read_back,
    _periods_share_a_hash,
    _others_of_the_last_period_count,
    _totals_that_are_missing_are_forgotten,
    _lower_totals_are_believed_at_once,
    _false_totals_are_believed,
    _lost_totals_are_not_written_again,
    _failed_publishing_is_taken_for_done,
    _hashes_never_expire,
    _identifiers_are_written_late,
    _idle_clients_are_forgotten,
    _what_is_near_a_stage_waits_its_turn,
)
