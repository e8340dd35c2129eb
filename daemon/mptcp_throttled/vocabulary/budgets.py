"""Budgets as they are used: what the ledger tells the rules, and what an operator may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mptcp_throttle.model import Address, Budget, Stage

Subject = Address | None
"""Whose budget it is: a client's, by the first address of its prefix; None: that of the whole network."""


class Reached(NamedTuple):
    """A budget of which the `stages` are reached until `until`, in seconds since the epoch.

    `until` is None while no period can begin because the clock is not synchronised.
    """

    budget: Budget
    stages: tuple[Stage, ...]
    until: float | None


Spent = Mapping[str, Mapping[Subject, tuple[Reached, ...]]]
"""By network, what has reached a stage."""
