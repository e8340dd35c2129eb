"""Allowances: what kernel programs know of budgets, how much is left until a stage and which rates apply then."""

from __future__ import annotations

from typing import Final, NamedTuple

from mptcp_throttle.model import AccessNetwork, Budget, Counting
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.budgets import Subject

MAX_ALLOWANCES: Final = 1024
"""The entries of the kernel programs' map. Entry 0 means none, so that one allowance less has room."""


class StageAhead(NamedTuple):
    """The next stage of a budget of a subject of a network, by its number from 0 on; `left` bytes are left until it.

    `left` is 0 or negative if the stage is reached, and its rates do not apply yet.
    """

    network: str
    subject: Subject
    budget: Budget
    stage: int
    left: int


class AllowanceKey(NamedTuple):
    """Whose allowance it is."""

    network: str
    subject: Subject


class Allowance(NamedTuple):
    """What is left until a stage of a budget, and the rates of downloads then; None: unlimited."""

    ahead: StageAhead
    cap: Rate | None
    limit: Rate | None

    @property
    def key(self) -> AllowanceKey:
        """Whose allowance it is: a subject has one at most."""
        return AllowanceKey(self.ahead.network, self.ahead.subject)

    @property
    def stage(self) -> tuple[str, int, Counting]:
        """What identifies the stage, and how its bytes are counted."""
        budget = self.ahead.budget
        return budget.key, self.ahead.stage, budget.counting


class SubnetAllowances(NamedTuple):
    """Which allowances the subflows in the subnets of a network use: their client's, and that of the whole network."""

    network: AccessNetwork
    of_client: AllowanceKey | None
    of_network: AllowanceKey | None
