"""The use of budgets: what the ledger counts, and what it tells rules and the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mptcp_throttle.model import Address, Budget
from mptcp_throttle.periods import Period

Subject = Address | None
"""Whose budget it is: a client's, by the first address of its prefix; None: that of the whole network."""


class Reached(NamedTuple):
    """A budget whose first `stages` are reached, until `until` in seconds since the epoch.

    `until` is None if the end is not known, as while the clock is not synchronised.
    """

    budget: Budget
    stages: int
    until: float | None


Spent = Mapping[str, Mapping[Subject, tuple[Reached, ...]]]
"""By network and subject, the budgets of which a stage is reached."""


class AccountKey(NamedTuple):
    """A budget (`Budget.key`) of a network or a device, by its name."""

    owner: str
    budget: str


class Use(NamedTuple):
    """How many bytes of a budget are used, and how many of these by TCP without MPTCP, which cannot be throttled."""

    used: int = 0
    without_mptcp: int = 0

    def plus(self, added: Use) -> Use:
        """The sum."""
        return Use(self.used + added.used, self.without_mptcp + added.without_mptcp)


class Addition(NamedTuple):
    """An addition of `amount` bytes to a budget, of which some are `left`.

    It ends at `until`, in seconds since the epoch; None: when it is used.
    """

    amount: int
    left: int
    until: float | None


class LevelReached(NamedTuple):
    """By its use of a budget, a subject has reached the level at which the operator is warned, or a stage.

    `stages` is the number of stages that are reached.
    """

    key: AccountKey
    budget: Budget
    subject: Subject
    use: Use
    stages: int


class PeriodBegun(NamedTuple):
    """A period of a budget has begun, or an operator has reset the budget; `freed` subjects had reached a stage."""

    key: AccountKey
    budget: Budget
    period: Period
    freed: int


class StagesEnded(NamedTuple):
    """A subject has reached only `stages` of a rolling budget now: what it used long ago does not count any more."""

    key: AccountKey
    budget: Budget
    subject: Subject
    use: Use
    stages: int


BudgetChange = LevelReached | PeriodBegun | StagesEnded
"""What the operator is told of a budget."""
