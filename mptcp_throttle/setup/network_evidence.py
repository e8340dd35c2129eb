"""Which addresses of clients the sniffer sees, and which of them belong to one connection; bounded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from mptcp_throttle.model import Address, ClientPrefix, Connection, Token
from mptcp_throttle.rpc import RpcClient, RpcError
from mptcp_throttle.rpc.wire import decode_connection, decode_token

_POLL_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.5
# The sniffer answers at once while it has many readers.
_PAUSE_SECONDS: Final = 0.05
_MOST_CONNECTIONS: Final = 16384
_MOST_SIGHTINGS: Final = 16384
_MOST_ADDRESSES: Final = 8
_CLIENT: Final = ClientPrefix()

_Position = tuple[str, int]
"""An epoch of the sniffer's table, and a revision."""


class Sighting(NamedTuple):
    """The addresses of one connection, and which of them its client has made backups.

    Of an IPv6 address only the prefix counts, 64 bits, of which a host can use any address.
    """

    addresses: frozenset[Address]
    backups: frozenset[Address] = frozenset()


def client_address(address: Address) -> Address:
    """The address without the bits that a client chooses."""
    host_bits = address.max_prefixlen - _CLIENT.bits(address)
    return type(address)(int(address) >> host_bits << host_bits) if host_bits else address


@dataclass(slots=True)
class Evidence:
    """How many connections have been seen with each set of addresses, and how many changes were too many to record
    (`unrecorded`)."""

    unrecorded: int = 0
    _open: dict[Token, Sighting] = field(default_factory=dict)
    _ended: Counter[Sighting] = field(default_factory=Counter)

    def add(self, token: Token, connection: Connection | None) -> None:
        """A connection as it is now; None if it has ended."""
        if connection is None:
            sighting = self._open.pop(token, None)
            if sighting is not None:
                self._end(sighting)
        elif token in self._open or len(self._open) < _MOST_CONNECTIONS:
            self._open[token] = _joined(self._open.get(token), connection)
        else:
            self.unrecorded += 1

    def end_all(self) -> None:
        """End all connections: later ones may have the same tokens."""
        for sighting in self._open.values():
            self._end(sighting)
        self._open.clear()

    def _end(self, sighting: Sighting) -> None:
        if sighting in self._ended or len(self._ended) < _MOST_SIGHTINGS:
            self._ended[sighting] += 1
        else:
            self.unrecorded += 1

    @property
    def sightings(self) -> Counter[Sighting]:
        """How many connections have had these addresses."""
        return self._ended + Counter(self._open.values())


def _joined(before: Sighting | None, connection: Connection) -> Sighting:
    """The connection with the addresses that it has had before, up to a bound."""
    before = before or Sighting(frozenset())
    is_backup = {client_address(s.ends.client.address): s.backup or s.backup_at_join for s in connection.subflows}
    room = _MOST_ADDRESSES - len(before.addresses)
    new = frozenset(islice((address for address in is_backup if address not in before.addresses), room))
    addresses = before.addresses | new
    backups = frozenset(address for address, backup in is_backup.items() if backup and address in addresses)
    return Sighting(addresses, before.backups | backups)


def follow(
    client: RpcClient,
    seconds: float,
    evidence: Evidence,
    began: Callable[[], None],
    *,
    now: Callable[[], float] = time.monotonic,
) -> str | None:
    """Add what the sniffer's table shows now, call `began`, and add what it shows in the next `seconds`.

    The problem, if the sniffer does not answer at the end; while it is away, it is asked again. Raises RpcError if it
    does not answer at the beginning, and KeyboardInterrupt; then `evidence` has what was seen until then.
    """
    position: _Position | None = _take_table(client, evidence)
    began()
    end = now() + seconds
    while True:
        try:
            if position is None:
                evidence.end_all()
                position = _take_table(client, evidence)
            if _follow_changes(client, position, end, evidence, now):
                return None
            position = None
        except RpcError as error:
            position = None
            if now() + _RETRY_SECONDS >= end:
                return str(error)
            time.sleep(_RETRY_SECONDS)


def _follow_changes(
    client: RpcClient, position: _Position, end: float, evidence: Evidence, now: Callable[[], float]
) -> bool:
    """Whether the end has come; else the table must be fetched again."""
    epoch, revision = position
    while now() < end:
        answer = client.call("changes", epoch, revision, min(max(end - now(), 0.0), _POLL_SECONDS))
        if answer.get("resync"):
            return False
        for change in answer["changes"]:
            connection = change["connection"]
            decoded = None if connection is None else decode_connection(connection)
            evidence.add(decode_token(change["token"]), decoded)
        revision = answer["revision"]
        if not answer["changes"]:
            time.sleep(_PAUSE_SECONDS)
    return True


def _take_table(client: RpcClient, evidence: Evidence) -> _Position:
    first = part = client.call("snapshot")
    while True:
        for connection in map(decode_connection, part["connections"]):
            evidence.add(connection.token, connection)
        if part["next"] is None:
            return first["epoch"], first["revision"]
        part = client.call("snapshot", part["next"])
