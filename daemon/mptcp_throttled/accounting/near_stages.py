"""Finds the subjects of budgets that are near to a stage: what these use is counted in the kernel."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Final

from mptcp_throttled.accounting.budget_account import BudgetAccount, unexpired
from mptcp_throttled.vocabulary.allowances import MAX_ALLOWANCES, StageAhead
from mptcp_throttled.vocabulary.budgets import AccountKey, Spent, Subject

# A subject that may use the rest within an observation or two is near to a stage, whatever its rate becomes.
_NEAR_BYTES: Final = 256 * 10**6
_NEAR_SECONDS: Final = 4.0
_FAR_BYTES: Final = 10**10


class NearStages:
    """The subjects that are near to a stage, the least recently active first.

    If there are more than kernel programs have room for, the least recently active are left out.
    """

    def __init__(self) -> None:
        self._near: dict[tuple[AccountKey, Subject], None] = {}

    def note_idle(self, key: AccountKey, subject: Subject, left: float) -> None:
        """A subject that carries nothing now has `left` bytes until its next stage. It displaces no other subject."""
        if left < _NEAR_BYTES and len(self._near) < MAX_ALLOWANCES - 1:
            self._near.setdefault((key, subject))

    def note(self, key: AccountKey, subject: Subject, left: float, rate: float) -> None:
        """A subject has `left` bytes until its next stage, and uses them at a `rate` in bytes/s."""
        if left >= max(_NEAR_BYTES, _NEAR_SECONDS * rate):
            return
        self._near.pop((key, subject), None)
        self._near[key, subject] = None
        if len(self._near) >= MAX_ALLOWANCES:
            del self._near[next(iter(self._near))]

    def ahead(
        self, accounts: Mapping[AccountKey, BudgetAccount], free: Container[str], applied: Spent, at: float
    ) -> list[StageAhead]:
        """The nearest stage of each subject of a network, without the stages that are `applied` already.

        In the networks that are `free`, nothing counts at this time. `at` is in seconds since the epoch.
        """
        nearest: dict[tuple[str, Subject], StageAhead] = {}
        for key, subject in list(self._near):
            account = accounts.get(key)
            ahead = [] if account is None else list(_ahead(account, subject, applied, at))
            if not any(each.left <= _FAR_BYTES for each in ahead):
                del self._near[key, subject]
                continue
            for each in ahead:
                before = nearest.get((each.network, each.subject))
                if each.network not in free and (before is None or each.left < before.left):
                    nearest[each.network, each.subject] = each
        return list(nearest.values())


def _ahead(account: BudgetAccount, subject: Subject, applied: Spent, at: float) -> Iterator[StageAhead]:
    """The next stage of a budget in each of its networks, beyond those that are applied there."""
    budget, use = account.budget, account.use_everywhere(subject)
    if subject is None and account.has_clients:
        return
    added = sum(addition.left for addition in unexpired(account.additions_of(subject), at))
    for network in account.networks:
        whose = account.firsts.get(network.name, subject)
        reached = (each for each in applied.get(network.name, {}).get(whose, ()) if each.budget.key == budget.key)
        stage = max((each.stages for each in reached), default=0)
        if stage < len(budget.stages):
            left = math.ceil(budget.stages[stage].at * budget.amount) - use.used + added
            yield StageAhead(network.name, whose, budget, stage, left)
