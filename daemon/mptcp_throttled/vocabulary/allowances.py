"""What kernel programs are to know of budgets: how much is left until a stage, and which rates apply then."""

from __future__ import annotations

from typing import Final, NamedTuple

from mptcp_throttle.model import AccessNetwork, Budget, Counting
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.budgets import Subject

MAX_ALLOWANCES: Final = 1024
"""That kernel programs have room for, less one: number 0 is none."""


class StageAhead(NamedTuple):
    """A budget of a subject of a network that is `left` bytes before its stage with this number; 0 is the first.

    `left` is not more than 0 once the stage is reached, until its rates apply.
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
        """Each subject has one."""
        return AllowanceKey(self.ahead.network, self.ahead.subject)

    @property
    def stage(self) -> tuple[str, int, Counting]:
        """What it is that is ahead."""
        budget = self.ahead.budget
        return budget.key, self.ahead.stage, budget.counting


class SubnetAllowances(NamedTuple):
    """The subnets of a network, and which allowances their subflows use: that of their client, and the network's."""

    network: AccessNetwork
    of_client: AllowanceKey | None
    of_network: AllowanceKey | None
