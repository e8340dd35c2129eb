"""What has become of budgets, as events."""

from __future__ import annotations

from collections.abc import Iterable

from mptcp_throttle.model import Budget, Per
from mptcp_throttle.units import format_percentage, format_volume
from mptcp_throttled.vocabulary.budgets import Begun, Level
from mptcp_throttled.vocabulary.events import Event, EventKind
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import RuleName


def budget_events(told: Iterable[Level | Begun], snapshot: Snapshot) -> list[Event]:
    """The events of what the ledger tells at one moment, in its order; `snapshot` has the names of devices."""
    return [_begun(each) if isinstance(each, Begun) else _level(each, snapshot) for each in told]


def _level(level: Level, snapshot: Snapshot) -> Event:
    budget, network = level.budget, level.key.network
    client, device = None, None
    if level.subject is not None:
        client, device = str(level.subject), snapshot.device(network, level.subject)
    whose = " ".join(filter(None, (network, client, device)))
    share = format_percentage(level.use.used / budget.amount)
    text = f"{whose}: {format_volume(level.use.used)} used of the {_named(budget)} ({share})"
    if not level.stages:
        return Event(EventKind.BUDGET_WARNING, text, network, client, RuleName.BUDGET, _named(budget))
    is_spent = budget.stages[level.stages - 1].at >= 1
    rates = ", ".join(f"{kind} {rate}" for kind, rate in budget.allowed(level.stages).items())
    kind = EventKind.BUDGET_SPENT if is_spent else EventKind.BUDGET_STAGE
    return Event(kind, f"{text}: at most {rates}", network, client, RuleName.BUDGET, _named(budget))


def _begun(begun: Begun) -> Event:
    network, budget = begun.key.network, _named(begun.budget)
    text = f"{network}: {budget} begins again" + (f"; {begun.freed} are freed" if begun.freed else "")
    return Event(EventKind.BUDGET_BEGAN, text, network, None, RuleName.BUDGET, budget, begun.period.end)


def _named(budget: Budget) -> str:
    whose = "client and " if budget.per is Per.CLIENT else ""
    return f"budget of {format_volume(budget.amount)} per {whose}{budget.every}"
