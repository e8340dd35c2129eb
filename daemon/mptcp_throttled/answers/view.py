"""The state of the daemon from which answers are made."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from mptcp_throttled.accounting.accounts import NetworkAccounts
from mptcp_throttled.accounting.control_group import ByDay, ComparedGroups
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.fleet import FleetState, LeaseState
from mptcp_throttled.vocabulary.snapshot import Snapshot


class View(NamedTuple):
    """The snapshot of the last step, and what was observed last; `accounts` are those of the networks, by name.

    `groups` is None without a control group; `by_day` has the sums of both groups on each day. `budget_problem` is why
    no period of a budget begins; None: none is due. `fleet` and `leases` are None for a proxy without a fleet.
    """

    snapshot: Snapshot
    enforcement: Enforcement
    accounts: Mapping[str, NetworkAccounts]
    now: Now
    groups: ComparedGroups | None = None
    budget_problem: str | None = None
    by_day: ByDay = MappingProxyType({})
    fleet: FleetState | None = None
    leases: LeaseState | None = None

    @property
    def proxy(self) -> str | None:
        """The name of this proxy in its fleet."""
        return None if self.fleet is None else self.fleet.name
