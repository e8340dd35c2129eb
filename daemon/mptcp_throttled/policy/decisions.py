"""The decisions for all connections, kept up to date: only the connections that a change concerns are decided again.

A connection that has changed is decided at once. One change of a client's addresses may concern thousands of other
connections: they are decided a portion at a time, and keep their decisions until then. When none of them waits, all
decisions equal `decide` of every connection in the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from immutables import Map

from mptcp_throttle.model import AccessNetwork, Address, Connection, Token
from mptcp_throttle.ports import NO_PORTS, Ports
from mptcp_throttle.proxies import ONE_PROXY, Proxies
from mptcp_throttled.policy.clients import Clients, Link, links
from mptcp_throttled.policy.decide import decide
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP, ControlGroup
from mptcp_throttled.vocabulary.decision import Decision, Previous
from mptcp_throttled.vocabulary.locator import Locators
from mptcp_throttled.vocabulary.terms import ClientKey, PresentTerms

_PORTION: Final = 256
"""How many connections: to decide, plan and assign them takes some milliseconds, while all other work waits."""


class DecisionTable:
    """The connections and the decisions for them, as maps that never change. For one thread."""

    def __init__(self, control_group: ControlGroup = NO_CONTROL_GROUP, proxies: Proxies = ONE_PROXY) -> None:
        self._control_group = control_group
        self._proxies = proxies
        self.connections: Map[Token, Connection] = Map()
        self.decisions: Map[Token, tuple[Decision, ...]] = Map()
        self._renamed: dict[Token, None] = {}
        self._ports: Ports | None = None
        self._terms, self._paused = PresentTerms(), False
        self._use(())

    def _use(self, networks: Sequence[AccessNetwork]) -> None:
        self._networks = tuple(networks)
        self._locators = Locators(networks, self._proxies)
        self._clients: defaultdict[str, Clients] = defaultdict(Clients)
        self._users: dict[Address, set[Token]] = {}
        for connection in self.connections.values():
            self._add_user(connection)

    def reconfigure(
        self,
        networks: Sequence[AccessNetwork],
        terms: PresentTerms,
        *,
        paused: bool,
        ports: Ports | None = None,
    ) -> Previous:
        """Use these inputs of `decide` from now on; the previous decisions for connections that were decided again."""
        before, self._ports = self._ports, ports
        terms_before, self._terms = self._terms, terms
        is_same = paused == self._paused and (terms is terms_before or terms.kinds == terms_before.kinds)
        self._paused = paused
        if self._networks != tuple(networks):
            self._use(networks)
            self._change_clients((), self.connections.values())
            is_same = False
        if not is_same:
            self._renamed.clear()
            return self._decide(self.connections)
        tokens = {
            token
            for name, client in _changed(terms_before, terms)
            for address in self._clients[name].members(client)
            for token in self._users.get(address, ())
        }
        if before != ports:
            same = ports or before or NO_PORTS
            tokens.update(
                token
                for token, connection in self.connections.items()
                if not all(subflow.ends.proxy.port in same for subflow in connection.subflows)
            )
        return self._decide(tokens)

    @property
    def complete(self) -> bool:
        """Whether no connection waits for the next `update`."""
        return not self._renamed

    def replace(self, connections: Mapping[Token, Connection | None]) -> Previous:
        """Take a whole table in place of the present one; the previous decisions, as `update`."""
        changes: dict[Token, Connection | None] = {t: None for t in self.connections if t not in connections}
        changes.update((t, c) for t, c in connections.items() if self.connections.get(t) != c)
        return self.update(changes)

    def update(self, changes: Mapping[Token, Connection | None]) -> Previous:
        """Take changed connections, None for one that has ended, and decide them and a portion of those that wait.

        Returns the previous decisions for them.
        """
        if not (changes or self._renamed):
            return {}
        before = [self.connections[token] for token in changes if token in self.connections]
        after = [connection for connection in changes.values() if connection is not None]
        for connection in before:
            self._remove_user(connection)
        with self.connections.mutate() as connections:
            for token, changed in changes.items():
                if changed is None:
                    connections.pop(token, None)
                else:
                    connections[token] = changed
                    self._add_user(changed)
            self.connections = connections.finish()
        for address in self._change_clients(before, after):
            self._renamed.update(dict.fromkeys(self._users.get(address, ())))
        for token in changes:
            self._renamed.pop(token, None)
        portion = tuple(islice(self._renamed, _PORTION))
        for token in portion:
            del self._renamed[token]
        return self._decide((*changes, *portion))

    def _decide(self, tokens: Collection[Token]) -> Previous:
        previous: Previous = {}
        if not tokens:
            return previous
        with self.decisions.mutate() as decisions:
            for token in tokens:
                previous[token] = decisions.get(token, ())
                connection = self.connections.get(token)
                if connection is None:
                    decisions.pop(token, None)
                else:
                    decisions[token] = decide(
                        connection,
                        self._locators.of(connection.port),
                        self._client_of,
                        self._terms,
                        paused=self._paused,
                        ports=self._ports,
                        control_group=self._control_group,
                    )
            self.decisions = decisions.finish()
        return previous

    def _client_of(self, network: AccessNetwork, address: Address) -> Address:
        return self._clients[network.name](network.client(address))

    def _change_clients(self, before: Iterable[Connection], after: Iterable[Connection]) -> list[Address]:
        """Remove and add the links of connections; the addresses whose client has changed."""
        gone, come = self._links(before), self._links(after)
        return [
            address
            for name in {**gone, **come}
            for address in self._clients[name].change(gone.get(name, ()), come.get(name, ()))
        ]

    def _links(self, connections: Iterable[Connection]) -> dict[str, list[Link]]:
        by_network: dict[str, list[Link]] = {}
        for connection in connections:
            for name, link in links(connection, self._locators.of(connection.port)):
                by_network.setdefault(name, []).append(link)
        return by_network

    def _add_user(self, connection: Connection) -> None:
        for address in self._prefixes(connection):
            self._users.setdefault(address, set()).add(connection.token)

    def _remove_user(self, connection: Connection) -> None:
        for address in self._prefixes(connection):
            users = self._users[address]
            users.discard(connection.token)
            if not users:
                del self._users[address]

    def _prefixes(self, connection: Connection) -> set[Address]:
        locate = self._locators.of(connection.port)
        return {locate.client(subflow.ends.client.address) for subflow in connection.subflows}


def _changed(before: PresentTerms, after: PresentTerms) -> set[ClientKey]:
    """The clients that have other terms of their own than before, or none any more."""
    if before is after:
        return set()
    old, new = before.by_client, after.by_client
    changed = {key for key, terms in new.items() if (earlier := old.get(key)) is not terms and earlier != terms}
    return changed | (old.keys() - new.keys())
