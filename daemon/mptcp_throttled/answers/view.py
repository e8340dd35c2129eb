"""What answers are made of: the snapshot of the last step, and what was observed last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from mptcp_throttled.accounting.accounts import Accounts, NetworkAccounts
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.observing.observer import Observer
from mptcp_throttled.vocabulary.snapshot import Snapshot, Snapshots


class Observed(NamedTuple):
    """What the observer has seen last, and what networks have carried since the daemon's start, by name."""

    enforcement: Enforcement
    accounts: Mapping[str, NetworkAccounts]


class View(Protocol):
    """The present state, for any thread."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the last step."""

    @property
    def observed(self) -> Observed:
        """What was observed last."""


class DaemonView:
    """The view of the running daemon."""

    def __init__(self, snapshots: Snapshots, observer: Observer, accounts: Accounts) -> None:
        self._snapshots = snapshots
        self._observer = observer
        self._accounts = accounts

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the last step."""
        return self._snapshots.snapshot

    @property
    def observed(self) -> Observed:
        """What was observed last."""
        return Observed(self._observer.enforcement, self._accounts.networks)
