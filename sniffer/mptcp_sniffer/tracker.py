"""The table: which connection does each subflow belong to, and is it alive?

Connections are known by token. A JOIN belongs to the connection whose token it names, never to "the last client".
A subflow is live from the moment its handshake counts (see `handshake`) until a FIN, an RST, a REMOVE_ADDR of one of
its addresses or an MP_FASTCLOSE. What segments cannot show, `reconcile` takes from the kernel.
The tracker is deterministic: segments with time stamps in, changed connections and events out, no clock and no I/O.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_sniffer.handshake import Ends, Handshakes, Joined, Opened, UnknownToken
from mptcp_sniffer.options import AddAddr, MpFail, MpFastclose, MpPrio, MpTcpRst, Option, RemoveAddr, decode
from mptcp_sniffer.segment import Flag, PackedEndpoint, Segment
from mptcp_throttle.model import Address, Connection, Endpoint, FourTuple, Subflow, Token, Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from mptcp_sniffer.authentication import Keys
    from mptcp_sniffer.kernel_list import KernelList, ListedSubflow

_ORPHAN_SECONDS: Final = 75.0
"""How long a connection without subflows may be joined again: net.mptcp.close_timeout (60 s), and some margin."""

_LINUX_VERSION: Final = 1
"""Upstream Linux speaks version 1 only, so that is what its sockets are."""

_SETTLING_SECONDS: Final = 0.5
"""How much older than the kernel's listing a segment must be for the listing to overrule it: the capture stamps a
segment before TCP has taken it, and the change it causes may need a worker."""


class Kind(StrEnum):
    """What can happen to a connection."""

    OPENED = "opened"
    JOINING = "joining"
    ESTABLISHED = "established"
    BACKUP_CHANGED = "backup-changed"
    ADDRESS_OFFERED = "address-offered"
    STALLED = "stalled"
    RECOVERED = "recovered"
    CLOSED = "closed"
    ENDED = "ended"


class Event(NamedTuple):
    """Something that happened to a connection, or to one subflow of it; `detail` says why or how."""

    at: float
    kind: Kind
    token: Token
    version: int
    subflow: Subflow | None
    detail: str


class TableChange(NamedTuple):
    """A connection as it is now; None when its last subflow has gone."""

    token: Token
    connection: Connection | None


class Bounds(NamedTuple):
    """How much is kept, whatever anybody sends: connections (and as many handshakes and orphans as `half_open`)."""

    connections: int
    half_open: int


@dataclass(slots=True)
class _Live:
    """A live subflow. `sequence`, the client's initial one, tells its incarnation from the next on the same ports;
    None where it is known from the kernel. `idle_since` is the time of its last segment that we saw."""

    ends: FourTuple
    address_id: int
    proxy_address_id: int
    backup_at_join: bool
    backup_by_client: bool
    backup_by_proxy: bool
    opened_at: float
    idle_since: float
    sequence: int | None
    stalled: bool = False

    @property
    def backup(self) -> bool:
        # Linux schedules by both sides' wishes (net/mptcp/protocol.c, mptcp_subflow_get_send).
        return self.backup_by_client or self.backup_by_proxy

    def subflow(self) -> Subflow:
        return Subflow(self.ends, self.address_id, self.backup, self.backup_at_join, self.opened_at, self.stalled)


@dataclass(slots=True)
class _Entry:
    token: Token
    version: int
    keys: Keys | None
    authenticated: bool
    subflows: dict[Ends, _Live] = field(default_factory=dict)
    orphaned_at: float = 0.0


class Tracker:
    """Follows the subflows of all connections to the proxy's `ports`, within `bounds`.

    Beyond `bounds.connections` a new connection is not tracked (and so never held to a rate), unless one that has not
    proved itself can make room. `counters` tell what happened, `on_event` is called for what happened to whom.
    """

    def __init__(
        self,
        ports: Collection[int],
        bounds: Bounds,
        trust: Trust = Trust.HANDSHAKE,
        on_event: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        self._ports = frozenset(ports)
        self._bounds = bounds
        self._on_event = on_event
        self.counters: Counter[str] = Counter()
        self._handshakes = Handshakes(bounds.half_open, trust, self._keys_of, self.counters)
        self._connections: dict[Token, _Entry] = {}
        self._tokens: dict[Ends, Token] = {}
        self._unproved: OrderedDict[Token, None] = OrderedDict()
        self._orphans: OrderedDict[Token, _Entry] = OrderedDict()
        self._closed: OrderedDict[Ends, float] = OrderedDict()
        self._in_doubt = False

    def sizes(self) -> dict[str, int]:
        """Entries in each table."""
        return {
            "connections": len(self._connections),
            "subflows": len(self._tokens),
            "half_open": len(self._handshakes),
            "orphans": len(self._orphans),
        }

    def take_doubt(self) -> bool:
        """Whether, since the last call, something happened that only the kernel can confirm."""
        in_doubt, self._in_doubt = self._in_doubt, False
        return in_doubt

    def observe(self, segment: Segment, at: float) -> list[TableChange]:
        """Take one segment, captured at `at` seconds since the epoch; return the connections it changed.

        Malformed options are counted under `malformed` and ignored.
        """
        return self._changes(self._observe(segment, at))

    def _observe(self, segment: Segment, at: float) -> Iterator[Token]:
        options, malformed = decode(segment.options, segment.flags)
        if malformed:
            self.counters["malformed"] += malformed
        by_client = segment.destination.port in self._ports
        if by_client:
            ends = Ends(segment.source, segment.destination)
        elif segment.source.port in self._ports:
            ends = Ends(segment.destination, segment.source)
        else:
            return
        if segment.flags & Flag.SYN and not segment.flags & (Flag.FIN | Flag.RST):
            if by_client and not segment.flags & Flag.ACK:
                self._handshakes.asked(ends, segment, options, at)
            elif not by_client and segment.flags & Flag.ACK:
                yield from self._answered(ends, segment, options, at)
            return
        if options:
            if by_client:
                yield from self._accept(self._handshakes.completed(ends, segment, options, at), at)
            yield from self._signalled(ends, options, at, by_client=by_client)
        if segment.flags & (Flag.FIN | Flag.RST):
            yield from self._ended(ends, segment, options, at)

    def _answered(self, ends: Ends, segment: Segment, options: tuple[Option, ...], at: float) -> Iterator[Token]:
        token = self._tokens.get(ends)
        if token is not None:
            known = self._connections[token].subflows[ends].sequence
            if known is not None and known != (segment.acknowledgment - 1) & 0xFFFF_FFFF:
                # The kernel answers a SYN on these ports anew: it has closed the subflow that we still hold.
                self.counters["port_reused"] += 1
                yield self._drop(ends, at, "ports used again")
        yield from self._accept(self._handshakes.answered(ends, segment, options), at)

    def _accept(self, handshake: Opened | Joined | None, at: float) -> Iterator[Token]:
        match handshake:
            case Opened():
                yield from self._open(handshake, at)
            case Joined(authenticated=True):
                yield from self._join(handshake, at)
            case Joined(token=token):
                entry = self._entry(token)
                if entry is not None:
                    self._in_doubt = self._in_doubt or entry.keys is None
                    self._report(Kind.JOINING, at, entry, _live(handshake, at))

    def _open(self, opened: Opened, at: float) -> Iterator[Token]:
        entry = self._connections.get(opened.token)
        if entry is not None and opened.ends in entry.subflows:
            # Seen at the SYN/ACK already, or listed by the kernel before; the third ACK adds the keys.
            entry.keys, entry.authenticated = opened.keys or entry.keys, entry.authenticated or opened.keys is not None
            if entry.authenticated:
                self._unproved.pop(opened.token, None)
            live = entry.subflows[opened.ends]
            if live.sequence is None:
                live.sequence, live.opened_at = opened.sequence, opened.at
                yield opened.token
            return
        if opened.ends in self._tokens:
            yield self._drop(opened.ends, at, "ports used again")
        if entry is not None:
            # The kernel gives a token out again only after its connection has ended.
            yield from self._drop_all(entry, at, "token used again")
        self._orphans.pop(opened.token, None)
        if len(self._connections) >= self._bounds.connections:
            if not self._unproved:
                self.counters["connections_not_tracked"] += 1
                return
            yield from self._drop_all(self._connections[next(iter(self._unproved))], at, "no room")
        entry = _Entry(opened.token, opened.version, opened.keys, authenticated=opened.keys is not None)
        self._connections[opened.token] = entry
        if not entry.authenticated:
            self._unproved[opened.token] = None
        self._report(Kind.OPENED, at, entry)
        self._add(entry, opened.ends, _live(opened, at), at)
        yield opened.token

    def _join(self, joined: Joined, at: float) -> Iterator[Token]:
        known = self._tokens.get(joined.ends)
        if known is not None:
            subflows = self._connections[known].subflows
            if known == joined.token and subflows[joined.ends].sequence in (None, joined.sequence):
                # The kernel has listed it before its frames were taken.
                subflows[joined.ends] = _live(joined, at)
                yield known
                return
            yield self._drop(joined.ends, at, "ports used again")
        entry = self._entry(joined.token)
        if entry is None:
            self.counters["unknown_token"] += 1
            return
        if not self._revive(entry, at):
            return
        self._add(entry, joined.ends, _live(joined, at), at)
        yield joined.token

    def _entry(self, token: Token) -> _Entry | None:
        return self._connections.get(token) or self._orphans.get(token)

    def _keys_of(self, token: Token) -> Keys | None:
        entry = self._entry(token)
        if entry is None:
            raise UnknownToken
        return entry.keys

    def _revive(self, entry: _Entry, at: float) -> bool:
        """Put a connection that was left without subflows back in the table; whether it is there now."""
        if entry.token in self._connections:
            return True
        if len(self._connections) >= self._bounds.connections:
            self.counters["connections_not_tracked"] += 1
            return False
        del self._orphans[entry.token]
        self._connections[entry.token] = entry
        self._report(Kind.OPENED, at, entry, detail="joined again")
        return True

    def _add(self, entry: _Entry, ends: Ends, live: _Live, at: float, detail: str = "") -> None:
        ends = Ends(ends.client, _shared(ends.proxy))
        entry.subflows[ends] = live
        self._tokens[ends] = entry.token
        self._closed.pop(ends, None)
        self.counters["subflows_opened"] += 1
        self._report(Kind.ESTABLISHED, at, entry, live, detail)

    def _signalled(self, ends: Ends, options: tuple[Option, ...], at: float, *, by_client: bool) -> Iterator[Token]:
        for option in options:
            token = self._tokens.get(ends)
            if token is None:
                return
            entry = self._connections[token]
            entry.subflows[ends].idle_since = at
            match option:
                case MpPrio():
                    yield from self._reprioritised(entry, ends, option, at, by_client=by_client)
                case RemoveAddr(address_ids):
                    for gone in _with_address(entry, address_ids, by_client=by_client):
                        self._in_doubt = True
                        yield self._drop(gone, at, f"{'client' if by_client else 'proxy'} removed the address")
                case MpFastclose(key):
                    yield from self._fastclosed(entry, key, at, by_client=by_client)
                case MpFail() if len(entry.subflows) == 1:
                    self._in_doubt = True
                    yield from self._drop_all(entry, at, "fell back to TCP after a checksum failure")
                case AddAddr(echo=False) as offer:
                    port = "" if offer.port is None else f" port {offer.port}"
                    offered = f"id {offer.address_id} {offer.address}{port} by {'client' if by_client else 'proxy'}"
                    self._report(Kind.ADDRESS_OFFERED, at, entry, entry.subflows[ends], offered)

    def _reprioritised(
        self, entry: _Entry, ends: Ends, option: MpPrio, at: float, *, by_client: bool
    ) -> Iterator[Token]:
        named = [ends]
        if option.address_id is not None:
            named = _with_address(entry, (option.address_id,), by_client=by_client)
        for one in named:
            live = entry.subflows[one]
            if (live.backup_by_client if by_client else live.backup_by_proxy) == option.backup:
                continue
            if by_client:
                live.backup_by_client = option.backup
            else:
                live.backup_by_proxy = option.backup
            self._in_doubt = True
            self._report(Kind.BACKUP_CHANGED, at, entry, live, f"by {'client' if by_client else 'proxy'}")
            yield entry.token

    def _fastclosed(self, entry: _Entry, key: bytes, at: float, *, by_client: bool) -> Iterator[Token]:
        expected = None if entry.keys is None else entry.keys.proxy if by_client else entry.keys.client
        if expected is not None and key != expected:
            self.counters["wrong_key"] += 1
            return
        self._in_doubt = self._in_doubt or expected is None
        yield from self._drop_all(entry, at, f"fast close by {'client' if by_client else 'proxy'}")
        self._orphans.pop(entry.token, None)

    def _ended(self, ends: Ends, segment: Segment, options: tuple[Option, ...], at: float) -> Iterator[Token]:
        reset = bool(segment.flags & Flag.RST)
        reasons = "".join(f", reason {option.reason}" for option in options if isinstance(option, MpTcpRst))
        if reset:
            self._handshakes.forget(ends)
        if ends in self._tokens:
            # Anybody can send a FIN or RST with our client's address; only TCP knows whether it was in the window.
            self._in_doubt = True
            yield self._drop(ends, at, f"RST{reasons}" if reset else "FIN")

    def _drop_all(self, entry: _Entry, at: float, detail: str) -> Iterator[Token]:
        for ends in tuple(entry.subflows):
            yield self._drop(ends, at, detail)

    def _drop(self, ends: Ends, at: float, detail: str) -> Token:
        token = self._tokens.pop(ends)
        entry = self._connections[token]
        live = entry.subflows.pop(ends)
        self._closed[ends] = at
        self._closed.move_to_end(ends)
        self.counters["subflows_closed"] += 1
        self._report(Kind.CLOSED, at, entry, live, detail)
        if not entry.subflows:
            del self._connections[token]
            self._unproved.pop(token, None)
            entry.orphaned_at = at
            self._orphans[token] = entry
            self._report(Kind.ENDED, at, entry)
            self.expire(at)
        return token

    def expire(self, now: float, idle_seconds: float | None = None) -> list[TableChange]:
        """Forget what has waited too long at `now`; with `idle_seconds`, also subflows silent for that long."""
        self._handshakes.expire(now)
        while self._closed and self._beyond(self._closed, next(iter(self._closed.values())), now - _SETTLING_SECONDS):
            self._closed.popitem(last=False)
        while self._orphans and self._beyond(
            self._orphans, next(iter(self._orphans.values())).orphaned_at, now - _ORPHAN_SECONDS
        ):
            self._orphans.popitem(last=False)
        if idle_seconds is None:
            return []
        idle = [
            ends
            for entry in self._connections.values()
            for ends, live in entry.subflows.items()
            if now - live.idle_since > idle_seconds
        ]
        return self._changes(self._drop(ends, now, f"silent for {idle_seconds:g} s") for ends in idle)

    def _beyond(self, entries: Collection[object], oldest: float, limit: float) -> bool:
        return len(entries) > self._bounds.half_open or oldest < limit

    def reconcile(self, view: KernelList) -> list[TableChange]:
        """Take the kernel's listing of its live subflows for the truth, except where our segments are newer."""
        return self._changes(self._reconcile(view))

    def _reconcile(self, view: KernelList) -> Iterator[Token]:
        settled = view.at - _SETTLING_SECONDS
        for ends, token in tuple(self._tokens.items()):
            listed = view.subflows.get(ends)
            live = self._connections[token].subflows[ends]
            if listed is None and live.idle_since < settled:
                self.counters["closed_by_kernel"] += 1
                yield self._drop(ends, view.at, "not in the kernel")
            elif listed is not None and listed.token != token:
                yield self._drop(ends, view.at, "the kernel knows it by another token")
        for ends, listed in view.subflows.items():
            if ends in self._tokens:
                yield from self._correct(ends, listed, settled, view.at)
            elif self._closed.get(ends, 0.0) < settled:
                yield from self._learn(ends, listed.token, listed.address_id, listed.backup, view.at)

    def _correct(self, ends: Ends, listed: ListedSubflow, settled: float, at: float) -> Iterator[Token]:
        entry = self._connections[self._tokens[ends]]
        live = entry.subflows[ends]
        if live.stalled != listed.stalled:
            live.stalled = listed.stalled
            self._report(Kind.STALLED if listed.stalled else Kind.RECOVERED, at, entry, live, "in the kernel")
            yield entry.token
        if live.backup != listed.backup and live.idle_since < settled:
            live.backup_by_client, live.backup_by_proxy = listed.backup, False
            self._report(Kind.BACKUP_CHANGED, at, entry, live, "in the kernel")
            yield entry.token

    def _learn(self, ends: Ends, token: Token, address_id: int, backup: bool, at: float) -> Iterator[Token]:
        entry = self._entry(token)
        if entry is None:
            if len(self._connections) >= self._bounds.connections:
                self.counters["connections_not_tracked"] += 1
                return
            entry = self._connections[token] = _Entry(token, _LINUX_VERSION, None, authenticated=True)
            self._report(Kind.OPENED, at, entry, detail="in the kernel")
        elif not self._revive(entry, at):
            return
        joined = self._handshakes.take(ends)
        if joined is None:
            live = _Live(_unpack(ends), address_id, 0, backup, backup, False, at, at, None)
        else:
            live = _live(joined, at)
        self.counters["learned_from_kernel"] += 1
        self._add(entry, ends, live, at, "in the kernel")
        yield token

    def _changes(self, tokens: Iterable[Token]) -> list[TableChange]:
        return [self._change(token) for token in dict.fromkeys(tokens)]

    def _change(self, token: Token) -> TableChange:
        entry = self._connections.get(token)
        if entry is None:
            return TableChange(token, None)
        subflows = tuple(live.subflow() for live in entry.subflows.values())
        return TableChange(token, Connection(token, entry.version, subflows))

    def _report(self, kind: Kind, at: float, entry: _Entry, live: _Live | None = None, detail: str = "") -> None:
        subflow = None if live is None else live.subflow()
        self._on_event(Event(at, kind, entry.token, entry.version, subflow, detail))


def _live(handshake: Opened | Joined, at: float) -> _Live:
    ends = _unpack(handshake.ends)
    if isinstance(handshake, Opened):
        return _Live(ends, 0, 0, False, False, False, handshake.at, at, handshake.sequence)
    return _Live(
        ends,
        handshake.address_id,
        handshake.proxy_address_id,
        handshake.backup,
        handshake.backup,
        handshake.proxy_backup,
        handshake.at,
        at,
        handshake.sequence,
    )


def _with_address(entry: _Entry, address_ids: Collection[int], *, by_client: bool) -> list[Ends]:
    return [
        ends
        for ends, live in entry.subflows.items()
        if (live.address_id if by_client else live.proxy_address_id) in address_ids
    ]


def _unpack(ends: Ends) -> FourTuple:
    return FourTuple(Endpoint(_address(ends.client.address), ends.client.port), _proxy(*ends.proxy))


# A client has many subflows, and all of them end at a few sockets of the proxy: equal values are one object.
@lru_cache(65536)
def _address(packed: bytes) -> Address:
    return ip_address(packed)


@lru_cache
def _shared(proxy: PackedEndpoint) -> PackedEndpoint:
    return proxy


@lru_cache
def _proxy(address: bytes, port: int) -> Endpoint:
    return Endpoint(ip_address(address), port)
