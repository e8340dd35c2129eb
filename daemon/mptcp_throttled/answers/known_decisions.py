"""The decisions that an index of a snapshot has taken in, and what differs in the next snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_throttled.vocabulary.snapshot import Snapshot

if TYPE_CHECKING:
    from mptcp_throttle.model import AccessNetwork, Token
    from mptcp_throttled.vocabulary.decision import Decision

_NOTHING: Final[tuple[Decision, ...]] = ()


class Difference(NamedTuple):
    """Of connections: the decisions that hold no longer, and those that hold now.

    To be removed first: a new subflow may have the address and port that a subflow of another connection had.
    If `networks_changed`, the addresses that are one client may have, too: nothing is known of before.
    """

    networks_changed: bool
    outdated: list[tuple[Decision, ...]]
    changed: list[tuple[Decision, ...]]


class KnownDecisions:
    """Those of the latest `snapshot`, by connection; `networks` are its access networks, by name.

    The time of `take` depends on how much has changed.
    """

    def __init__(self) -> None:
        self.networks: dict[str | None, AccessNetwork] = {}
        self.snapshot = Snapshot()
        self._known: dict[Token, tuple[Decision, ...]] = {}

    def take(self, snapshot: Snapshot) -> Difference | None:
        """Know those of this snapshot from now on; None: nothing differs."""
        before, self.snapshot = self.snapshot, snapshot
        decisions, networks_changed = snapshot.decisions, snapshot.networks is not before.networks
        if networks_changed:
            self._known.clear()
            self.networks = {network.name: network for network in snapshot.networks}
        elif decisions is before.decisions:
            return None
        outdated = [self._known.pop(token) for token in self._known.keys() - decisions.keys()]
        changed = []
        for token, present in decisions.items():
            known = self._known.get(token, _NOTHING)
            if known is not present:
                outdated.append(known)
                changed.append(present)
                self._known[token] = present
        return Difference(networks_changed, outdated, changed)
