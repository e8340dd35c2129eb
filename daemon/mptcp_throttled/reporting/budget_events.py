"""Makes events of what the ledger of budgets tells."""

from __future__ import annotations

from collections.abc import Iterable

from mptcp_throttle.devices import alone, named
from mptcp_throttle.model import Budget, Per
from mptcp_throttle.units import format_percentage, format_volume
from mptcp_throttled.vocabulary.budgets import AccountKey, BudgetChange, LevelReached, PeriodBegun, StagesEnded
from mptcp_throttled.vocabulary.events import Event, EventKind
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import RuleName


def budget_events(told: Iterable[BudgetChange], snapshot: Snapshot) -> list[Event]:
    """The events of what the ledger tells at one moment, in its order; `snapshot` has the names of devices."""
    return [_begun(each) if isinstance(each, PeriodBegun) else _level(each, snapshot) for each in told]


def _level(level: LevelReached | StagesEnded, snapshot: Snapshot) -> Event:
    budget, network, client = level.budget, None if level.budget.networks else level.key.owner, None
    whose = _owner(level.key, budget)
    if network is not None and level.subject is not None:
        client = str(level.subject)
        whose = f"{whose} {named(client, snapshot.device(network, level.subject))}"
    share = format_percentage(level.use.used / budget.amount)
    text = f"{whose}: {format_volume(level.use.used)} used of the {_named(budget)} ({share})"
    if isinstance(level, StagesEnded):
        stages = f"{level.stages} of {len(budget.stages)} stages" if level.stages else "no stage any more"
        text = f"{text}: {stages}"
        return Event(EventKind.BUDGET_EASED, text, network, client, RuleName.BUDGET, _named(budget))
    if not level.stages:
        return Event(EventKind.BUDGET_WARNING, text, network, client, RuleName.BUDGET, _named(budget))
    is_spent = budget.stages[level.stages - 1].at >= 1
    rates = ", ".join(f"{kind} {rate}" for kind, rate in budget.allowed(level.stages).items())
    kind = EventKind.BUDGET_SPENT if is_spent else EventKind.BUDGET_STAGE
    return Event(kind, f"{text}: at most {rates}", network, client, RuleName.BUDGET, _named(budget))


def _begun(begun: PeriodBegun) -> Event:
    network, budget = None if begun.budget.networks else begun.key.owner, _named(begun.budget)
    freed = f"; {begun.freed} are freed" if begun.freed else ""
    text = f"{_owner(begun.key, begun.budget)}: {budget} begins again{freed}"
    return Event(EventKind.BUDGET_BEGAN, text, network, None, RuleName.BUDGET, budget, begun.period.end)


def _owner(key: AccountKey, budget: Budget) -> str:
    """The network or the device that has a budget."""
    return alone(key.owner) if budget.networks else key.owner


def _named(budget: Budget) -> str:
    amount = f"budget of {format_volume(budget.amount)}"
    if budget.networks:
        return f"{amount} {budget.span} in {', '.join(budget.networks)}"
    if budget.per is not Per.CLIENT:
        return f"{amount} {budget.span}"
    return f"{amount} per client {budget.span}" if budget.rolling else f"{amount} per client and {budget.every}"
