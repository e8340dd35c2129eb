"""Leaves out connections until they have lasted for a time: what ends earlier costs no decision, class or log line."""

from __future__ import annotations

from collections.abc import Mapping

from mptcp_throttle.model import Connection, Token


class Lasting:
    """The connections that have been passed on, and those that are too young. For one thread."""

    def __init__(self, connections: Mapping[Token, Connection | None]) -> None:
        """Begin with connections that have been passed on, whatever their age."""
        self._known = {token for token, connection in connections.items() if connection is not None}
        self._young: dict[Token, Connection] = {}

    def oldest(self) -> float | None:
        """When the oldest connection that is too young began, in monotonic seconds; None if there is none."""
        return min(map(_began, self._young.values()), default=None)

    def take(self, changes: Mapping[Token, Connection | None], until: float) -> dict[Token, Connection | None]:
        """What to pass on after these changes: connections that began `until` then, and what has become of known ones.

        Later changes of a connection that has been passed on are passed on at once.
        """
        passed: dict[Token, Connection | None] = {}
        young: dict[Token, Connection] = {}
        for token, connection in {**self._young, **changes}.items():
            if connection is None:
                if token in self._known:
                    self._known.remove(token)
                    passed[token] = None
            elif token in self._known or _began(connection) <= until:
                self._known.add(token)
                passed[token] = connection
            else:
                young[token] = connection
        self._young = young
        return passed


def _began(connection: Connection) -> float:
    return min(subflow.opened_at for subflow in connection.subflows)
