"""The decisions that an index of a snapshot contains, and the difference to the next snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_throttled.vocabulary.snapshot import Snapshot

if TYPE_CHECKING:
    from mptcp_throttle.model import AccessNetwork, Token
    from mptcp_throttled.vocabulary.decision import Decision

_NOTHING: Final[tuple[Decision, ...]] = ()


class Difference(NamedTuple):
    """By connection, the `outdated` decisions, and those that have `changed` or are new.

    Remove the outdated ones first: a new subflow may have the address and port that an ended one of another connection
    had. If `networks_changed`, empty the index instead: then `changed` has all decisions.
    """

    networks_changed: bool
    outdated: list[tuple[Decision, ...]]
    changed: list[tuple[Decision, ...]]


class KnownDecisions:
    """The decisions of the latest `snapshot`, by connection; `networks` are its access networks, by name."""

    def __init__(self) -> None:
        self.networks: dict[str | None, AccessNetwork] = {}
        self.snapshot = Snapshot()
        self._known: dict[Token, tuple[Decision, ...]] = {}

    def take(self, snapshot: Snapshot) -> Difference | None:
        """Take the decisions of another snapshot; the difference, None: there is none."""
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
