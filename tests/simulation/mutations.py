"""Defects, one at a time in the product's code, that a run must find: each is named by what it breaks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from types import FunctionType, SimpleNamespace
from typing import Any, Final, cast

import pytest

from mptcp_sniffer.kernel_list import ListedSubflow
from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.tracker import Tracker
from mptcp_throttle import durable_file
from mptcp_throttle.model import Ailment, Connection, Health
from mptcp_throttle.periods import period_at
from mptcp_throttle.rpc import Json
from mptcp_throttle.schedule import window_at
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting import history, ledger, meter
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.clock_trust import ClockTrust
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.accounting.ledger_rows import write_changes
from mptcp_throttled.control import loop, operator_state
from mptcp_throttled.control.loop import Loop
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.control.source import Action, Follower, Wait
from mptcp_throttled.enforcing import reconciler
from mptcp_throttled.enforcing.diff import diff
from mptcp_throttled.enforcing.keeper import Keeper
from mptcp_throttled.enforcing.reconciler import Reconciler
from mptcp_throttled.enforcing.retries import Retries
from mptcp_throttled.enforcing.uplinks import UplinkReconciler
from mptcp_throttled.policy import decisions, shortfall
from mptcp_throttled.policy import terms as policy_terms
from mptcp_throttled.policy.decide import decide
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.rules import budget, overflow, override
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.terms import RuleName


@dataclass(frozen=True)
class Mutation:
    """`break_` changes the product until the patch is undone; `finds` is the seed of a run that finds it soon."""

    name: str
    break_: Callable[[pytest.MonkeyPatch], None]
    finds: int = 0


def _budgets_narrow_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy_terms, "RULES", tuple(rule for rule in policy_terms.RULES if rule is not budget.apply))


def _budgets_narrow_in_free_windows(patch: pytest.MonkeyPatch) -> None:
    narrowed = budget._narrowed
    patch.setattr(budget, "_narrowed", lambda *given, is_free: narrowed(*given, is_free=False))  # noqa: ARG005


def _free_windows_are_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_is_free", lambda *_: False)


def _periods_begin_by_utc(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "period_at", lambda every, starts, at, _: period_at(every, starts, at, UTC))


def _closed_subflows_count_twice(patch: pytest.MonkeyPatch) -> None:
    count = meter.Meter.count

    def all_of_it(counting: meter.Meter, at: float, live: Any, closed: Iterable[Any]) -> Any:  # noqa: ANN401
        listed = [*closed]
        for each in listed:
            counting._counted.pop(each.cookie, None)
        return count(counting, at, live, listed)

    patch.setattr(meter.Meter, "count", all_of_it)


def _ends_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Accounts, "note_closed", lambda *_: None)


def _failed_writing_is_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    flush = History.flush

    def always(*given: Any, **named: Any) -> bool:  # noqa: ANN401
        flush(*given, **named)
        return True

    patch.setattr(History, "flush", always)


def _budgets_are_written_apart_from_sockets(patch: pytest.MonkeyPatch) -> None:

    def apart(database: Any, changes: Any) -> None:  # noqa: ANN401
        database.commit()
        write_changes(database, changes)

    patch.setattr(history, "write_changes", _as_if_in(durable_file.__file__, cast("FunctionType", apart)))


def _override_file_is_written_in_place(patch: pytest.MonkeyPatch) -> None:
    source = "def in_place(path, text):\n    path.write_text('')\n    text = str(text)\n    path.write_text(text)\n"
    names: dict[str, Any] = {}
    exec(compile(source, durable_file.__file__, "exec"), names)  # noqa: S102
    patch.setattr(operator_state, "write_atomically", names["in_place"])


def _as_if_in(file: str, function: FunctionType) -> FunctionType:
    """The function, with lines that count as those of a file."""
    code = function.__code__.replace(co_filename=file)
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def _rates_by_hand_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operator_state, "is_over", lambda *_: False)
    patch.setattr(override, "is_over", lambda *_: False)


def _rate_of_a_client_is_that_of_all(patch: pytest.MonkeyPatch) -> None:
    of_network = policy_terms._of_network
    patch.setattr(
        policy_terms,
        "_of_network",
        lambda network, overrides: of_network(network, [replace(o, client=None) for o in overrides]),
    )


def _windows_begin_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy_terms, "next_change", lambda *_: None)


def _windows_hold_by_utc(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy_terms, "window_at", lambda schedule, at, _: window_at(schedule, at, UTC))


def _deciding(patch: pytest.MonkeyPatch, **changes: Any) -> None:  # noqa: ANN401

    def changed(connection: Connection, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        seen = replace(connection, subflows=tuple(replace(each, **changes) for each in connection.subflows))
        made = decide(seen, *given, **named)
        return tuple(replace(d, subflow=own) for d, own in zip(made, connection.subflows, strict=True))

    patch.setattr(decisions, "decide", changed)


def _backups_count_as_paths(patch: pytest.MonkeyPatch) -> None:
    _deciding(patch, backup=False)


def _stalled_paths_count_as_live(patch: pytest.MonkeyPatch) -> None:
    _deciding(patch, stalled=False)


def _pause_frees_no_subflow(patch: pytest.MonkeyPatch) -> None:
    reconfigure = DecisionTable.reconfigure

    def unpaused(table: DecisionTable, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        return reconfigure(table, *given, **{**named, "paused": False})

    patch.setattr(DecisionTable, "reconfigure", unpaused)


def _ended_connections_stay(patch: pytest.MonkeyPatch) -> None:
    update = DecisionTable.update

    def without_ends(table: DecisionTable, changes: Mapping[Any, Any]) -> Any:  # noqa: ANN401
        return update(table, {token: changed for token, changed in changes.items() if changed is not None})

    patch.setattr(DecisionTable, "update", without_ends)


def _reader_is_never_told_to_resynchronise(patch: pytest.MonkeyPatch) -> None:
    changes = PublishedTable.changes

    def never(table: PublishedTable, epoch: str, revision: int, *given: Any, **named: Any) -> Json:  # noqa: ANN401
        answer = changes(table, epoch, revision, *given, **named)
        if answer.get("resync"):
            return {"epoch": epoch, "revision": revision, "changes": [], "more": False}
        return answer

    patch.setattr(PublishedTable, "changes", never)


def _lost_sniffer_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    def actions(follower: Follower) -> Generator[Action, Json, None]:
        while True:
            try:
                yield from follower._follow()
            except Exception:
                yield Wait(0.2)

    patch.setattr(Follower, "actions", actions)


def _refused_objects_are_not_tried_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retries, "take_due", lambda *_: frozenset())
    patch.setattr(Retries, "next_due", float("inf"))


def _quick_checks_find_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconciler, "quick_check", lambda *_: True)


def _classes_come_after_their_assignments(patch: pytest.MonkeyPatch) -> None:

    def wrong_order(*given: Any) -> Sequence[op.Operation]:  # noqa: ANN401
        return sorted(diff(*given), key=lambda operation: isinstance(operation, op.AddClass))

    patch.setattr(reconciler, "diff", wrong_order)


def _uplinks_stay_throttled(patch: pytest.MonkeyPatch) -> None:
    step = UplinkReconciler.step

    def without_ends(uplinks: UplinkReconciler, changes: Mapping[Any, Any], *given: Any, **named: Any) -> Any:  # noqa: ANN401
        kept = {ends: d for ends, d in changes.items() if d is not None and d.uplink.share is not None}
        return step(uplinks, kept, *given, **named)

    patch.setattr(UplinkReconciler, "step", without_ends)


def _daemon_that_stops_leaves_its_classes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeper, "release", lambda _: ())


def _silent_ends_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    update = Tracker._update_listed

    def without_stalls(tracker: Tracker, entry: Any, ends: Any, listed: ListedSubflow, at: float) -> Any:  # noqa: ANN401
        return update(tracker, entry, ends, listed._replace(stalled=False), at)

    patch.setattr(Tracker, "_update_listed", without_stalls)


def _orphans_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tracker, "_forget_oldest", lambda *_: None)


def _unseen_sockets_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(meter, "FORGET_SECONDS", float("inf"))


def _reload_changes_nothing(patch: pytest.MonkeyPatch) -> None:
    take = RunningConfig.take

    def forgetful(running: RunningConfig, *given: Any) -> Any:  # noqa: ANN401
        before = running.config
        judgement = take(running, *given)
        running.config = before
        return judgement

    patch.setattr(RunningConfig, "take", forgetful)


def _devices_have_no_budgets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "_places_of_devices", lambda _: {})


def _overflow_raises_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy_terms, "RULES", tuple(rule for rule in policy_terms.RULES if rule is not overflow.apply))


def _overflow_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shortfall, "_FALL_SECONDS", float("inf"))


def _overflow_exceeds_budgets(patch: pytest.MonkeyPatch) -> None:
    others = [rule for rule in policy_terms.RULES if rule is not overflow.apply]
    others.insert(others.index(budget.apply) + 1, overflow.apply)
    patch.setattr(policy_terms, "RULES", tuple(others))


def _raised_caps_are_shown_as_scheduled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overflow, "RuleName", SimpleNamespace(OVERFLOW=RuleName.SCHEDULE))


def _bursts_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rate, "with_burst", lambda rate, _: rate)


def _clients_that_come_back_have_whole_bursts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "MAX_BURST_SECONDS", 0)


def _sick_paths_count_as_healthy(patch: pytest.MonkeyPatch) -> None:
    _deciding(patch, ailment=None)


def _sick_paths_never_recover(patch: pytest.MonkeyPatch) -> None:
    update = Loop._with_other_ailments

    def with_earlier(control: Loop) -> Mapping[Any, Any]:
        before = control._ailments
        changed = update(control)
        control._ailments = {**before, **control._ailments}
        return changed

    patch.setattr(Loop, "_with_other_ailments", with_earlier)


def _reasons_name_another_bound(patch: pytest.MonkeyPatch) -> None:
    broken, ailments = Health.broken, tuple(Ailment)
    others = dict(zip(ailments, (*ailments[1:], ailments[0]), strict=True))
    patch.setattr(Health, "broken", lambda health, ailment: broken(health, others[ailment]))


def _periods_begin_by_a_wrong_clock(patch: pytest.MonkeyPatch) -> None:
    init = ClockTrust.__init__
    patch.setattr(ClockTrust, "__init__", lambda trust, _: init(trust, lambda: True))


def _all(*functions: Callable[[pytest.MonkeyPatch], None]) -> tuple[Mutation, ...]:
    finds = dict(FOUND_BY)
    names = [function.__name__.strip("_").replace("_", "-") for function in functions]
    return tuple(Mutation(name, f, finds.get(name, 0)) for name, f in zip(names, functions, strict=True))


QUICK: Final = frozenset(
    {
        "budgets-narrow-nothing",
        "closed-subflows-count-twice",
        "rate-of-a-client-is-that-of-all",
        "failed-writing-is-taken-for-done",
        "pause-frees-no-subflow",
        "daemon-that-stops-leaves-its-classes",
        "overflow-raises-nothing",
        "sick-paths-never-recover",
    }
)
"""Those that are found within seconds."""

FOUND_BY: Final[dict[str, int]] = {
    "budgets-narrow-in-free-windows": 5,
    "failed-writing-is-taken-for-done": 11,
    "budgets-are-written-apart-from-sockets": 4,
    "override-file-is-written-in-place": 4,
    "rates-by-hand-never-end": 1,
    "rate-of-a-client-is-that-of-all": 10,
    "windows-begin-unnoticed": 5,
    "pause-frees-no-subflow": 1,
    "reader-is-never-told-to-resynchronise": 1,
    "lost-sniffer-is-not-noticed": 1,
    "refused-objects-are-not-tried-again": 56,
    "quick-checks-find-nothing": 35,
    "daemon-that-stops-leaves-its-classes": 11,
    "silent-ends-are-not-noticed": 1,
    "unseen-sockets-are-kept": 3,
    "periods-begin-by-a-wrong-clock": 1,
    "overflow-raises-nothing": 2,
    "overflow-never-ends": 2,
    "overflow-exceeds-budgets": 26,
    "raised-caps-are-shown-as-scheduled": 2,
    "bursts-are-forgotten": 2,
    "clients-that-come-back-have-whole-bursts": 54,
    "sick-paths-count-as-healthy": 34,
    "sick-paths-never-recover": 34,
    "reasons-name-another-bound": 34,
}
"""The seed of the run that finds a defect soonest, if it is not 0."""

MUTATIONS: Final = _all(
    _budgets_narrow_nothing,
    _budgets_narrow_in_free_windows,
    _free_windows_are_counted,
    _periods_begin_by_utc,
    _closed_subflows_count_twice,
    _ends_are_not_counted,
    _failed_writing_is_taken_for_done,
    _budgets_are_written_apart_from_sockets,
    _override_file_is_written_in_place,
    _rates_by_hand_never_end,
    _rate_of_a_client_is_that_of_all,
    _windows_begin_unnoticed,
    _windows_hold_by_utc,
    _backups_count_as_paths,
    _stalled_paths_count_as_live,
    _pause_frees_no_subflow,
    _ended_connections_stay,
    _reader_is_never_told_to_resynchronise,
    _lost_sniffer_is_not_noticed,
    _refused_objects_are_not_tried_again,
    _quick_checks_find_nothing,
    _classes_come_after_their_assignments,
    _uplinks_stay_throttled,
    _daemon_that_stops_leaves_its_classes,
    _silent_ends_are_not_noticed,
    _orphans_are_kept,
    _unseen_sockets_are_kept,
    _reload_changes_nothing,
    _devices_have_no_budgets,
    _periods_begin_by_a_wrong_clock,
    _overflow_raises_nothing,
    _overflow_never_ends,
    _overflow_exceeds_budgets,
    _raised_caps_are_shown_as_scheduled,
    _bursts_are_forgotten,
    _clients_that_come_back_have_whole_bursts,
    _sick_paths_count_as_healthy,
    _sick_paths_never_recover,
    _reasons_name_another_bound,
)
