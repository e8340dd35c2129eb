"""What is done with whom, kept up to date: only the connections that a change concerns are decided again.

At any time it is what `policy.decide` says of the whole table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttled.policy.clients import Clients
from mptcp_throttled.policy.decide import Decision, Locator, links, treat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mptcp_throttle.model import AccessNetwork, Address, Connection, Token

Previous = dict["Token", tuple[Decision, ...]]
"""The decisions that connections had before a change; none for those that are new."""


class DecisionTable:
    """The table, and the decisions of every connection in it. For one thread; what it hands out is live."""

    def __init__(self, networks: Sequence[AccessNetwork] = (), *, paused: bool = False) -> None:
        self.connections: dict[Token, Connection] = {}
        self.decisions: dict[Token, tuple[Decision, ...]] = {}
        self._users: dict[Address, set[Token]] = {}
        self._follow(networks, paused=paused)

    def _follow(self, networks: Sequence[AccessNetwork], *, paused: bool) -> None:
        self._rules = tuple(networks), paused
        self._locate = Locator(networks)
        self._clients = Clients()

    def reconfigure(self, networks: Sequence[AccessNetwork], *, paused: bool) -> Previous:
        """Go on with these networks; what is done with everybody may have changed."""
        if self._rules == (tuple(networks), paused):
            return {}
        self._follow(networks, paused=paused)
        self._clients.change((), self._links(self.connections.values()))
        return self._decide(self.connections)

    def replace(self, connections: Mapping[Token, Connection | None]) -> Previous:
        """Take a whole table in place of the present one."""
        changes: dict[Token, Connection | None] = dict.fromkeys(self.connections.keys() - connections.keys())
        changes.update((t, c) for t, c in connections.items() if self.connections.get(t) != c)
        return self.update(changes)

    def update(self, changes: Mapping[Token, Connection | None]) -> Previous:
        """Take connections as they are now; None is one that has ended."""
        before = [self.connections[token] for token in changes if token in self.connections]
        after = [connection for connection in changes.values() if connection is not None]
        gone, come = self._links(before), self._links(after)
        for connection in before:
            self._count_users(connection, present=False)
        for token, changed in changes.items():
            if changed is None:
                self.connections.pop(token, None)
            else:
                self.connections[token] = changed
                self._count_users(changed, present=True)
        concerned = dict.fromkeys(changes)
        for address in self._clients.change(gone, come):
            concerned.update(dict.fromkeys(self._users.get(address, ())))
        return self._decide(concerned)

    def _decide(self, tokens: Iterable[Token]) -> Previous:
        _, paused = self._rules
        former: Previous = {}
        for token in tokens:
            former[token] = self.decisions.get(token, ())
            connection = self.connections.get(token)
            if connection is None:
                self.decisions.pop(token, None)
            else:
                self.decisions[token] = treat(connection, self._locate, self._clients, paused=paused)
        return former

    def _links(self, connections: Iterable[Connection]) -> list[tuple[Address, Address]]:
        return [link for connection in connections for link in links(connection, self._locate)]

    def _count_users(self, connection: Connection, *, present: bool) -> None:
        for address in {subflow.ends.client.address for subflow in connection.subflows}:
            if present:
                self._users.setdefault(address, set()).add(connection.token)
            else:
                users = self._users[address]
                users.discard(connection.token)
                if not users:
                    del self._users[address]
