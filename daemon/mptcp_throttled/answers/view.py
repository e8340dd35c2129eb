"""What answers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mptcp_throttled.accounting.accounts import NetworkAccounts
from mptcp_throttled.accounting.control_group import ComparedGroups
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.snapshot import Snapshot


class View(NamedTuple):
    """The snapshot of the last step, and what was observed last; `accounts` are those of the networks, by name.

    `groups` are None without a control group.
    """

    snapshot: Snapshot
    enforcement: Enforcement
    accounts: Mapping[str, NetworkAccounts]
    now: Now
    groups: ComparedGroups | None = None
