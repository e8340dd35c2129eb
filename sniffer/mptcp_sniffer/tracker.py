"""The table of connections and their live subflows, from segments, the kernel list and kernel events.

A connection is identified by its token; a JOIN belongs to the connection whose token it names. A subflow is live from
the end of its handshake (see `handshake`) to a FIN, an RST, a REMOVE_ADDR of an address of it or an MP_FASTCLOSE.
An attacker who knows the ports can forge these in the name of the client. So where the kernel list can be read, a
segment that ends a subflow or changes its priority counts only if the proxy sent it; otherwise the kernel decides.
A subflow that the proxy has opened, from a port outside `ports`, is known from the kernel only.
The tracker is deterministic: segments with time stamps in, changed connections and events out, no clock and no I/O.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from mptcp_sniffer.events import Event, EventKind
from mptcp_sniffer.handshake import Ends, Handshakes, Joined, Opened, UnknownToken
from mptcp_sniffer.kernel_events import KernelEventKind
from mptcp_sniffer.options import (
    AddAddr,
    MpFail,
    MpFastclose,
    MpPrio,
    MpTcpRst,
    Option,
    RemoveAddr,
    decode,
    without_appended_priority,
)
from mptcp_sniffer.segment import Flag, PackedEndpoint, Segment
from mptcp_sniffer.table_entries import Entry, LiveSubflow, unpack
from mptcp_sniffer.unlisted import Unlisted
from mptcp_throttle.model import Connection, Token, Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from mptcp_sniffer.handshake import Keys, Start
    from mptcp_sniffer.kernel_events import KernelEvent
    from mptcp_sniffer.kernel_list import KernelList, ListedSubflow

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_ORPHAN_SECONDS: Final = 75.0
"""How long a connection without subflows can be joined again: net.mptcp.close_timeout (60 s), with some margin."""

_LINUX_VERSION: Final = 1
"""The MPTCP version of sockets in the kernel list: upstream Linux supports only this."""

_CLOSED_SECONDS: Final = 0.5
"""How long a subflow that has been closed may still be in the kernel list: the capture time stamp is taken before TCP
processes the segment, and some changes are made by a worker later."""

_ESTABLISHED_SECONDS: Final = 0.1
"""How long a new subflow may be missing there: the list has it when TCP has processed its third ACK."""


class TableChange(NamedTuple):
    """A connection as it is now; None if its last subflow has ended."""

    token: Token
    connection: Connection | None


class Bounds(NamedTuple):
    """The most entries: `connections`, and `half_open` handshakes, orphans, closing and closed subflows each."""

    connections: int
    half_open: int


class Tracker:
    """Follows the subflows of all connections to the proxy's `ports`, within `bounds`.

    Beyond `bounds.connections` a new connection replaces an unauthenticated connection; if there is none, it is not
    tracked, and so never throttled. `counters` count segments and changes by kind; `on_event`, if not None, is called
    for each event. `kernel_confirms`: the kernel list can be read. `expects_other_ports`: the list must have the
    subflows on all ports, since the proxy has opened some itself, or may have.

    `steered`: the daemon may tell the kernel that a subflow is a backup (daemon.steering). Then the kernel is believed
    to have heard it from the client only if the client was seen to ask for it. `unlisted` finds connections that are
    captured, but end elsewhere than in this kernel.
    """

    def __init__(
        self,
        ports: Collection[int],
        bounds: Bounds,
        trust: Trust = Trust.HANDSHAKE,
        on_event: Callable[[Event], None] | None = None,
        *,
        steered: bool = False,
    ) -> None:
        self._steered = steered
        self._ports = frozenset(ports)
        self._bounds = bounds
        self.on_event = on_event
        self.counters: Counter[str] = Counter()
        # Bound methods would be a cycle of references: the tables of a tracker that is replaced would stay until a full
        # collection, which is rare (`prefer_latency`).
        own = weakref.proxy(self)
        self._handshakes = Handshakes(
            bounds.half_open,
            trust,
            self.counters,
            keys_of=lambda token: own._keys_of(token),
            start_of=lambda ends: own._start_of(ends),
            on_failed=lambda *failed: own._report_failed_join(*failed),
        )
        self._connections: dict[Token, Entry] = {}
        self._by_ends: dict[Ends, Entry] = {}
        self._unauthenticated: OrderedDict[Token, None] = OrderedDict()
        self._orphans: OrderedDict[Token, Entry] = OrderedDict()
        self._closing: OrderedDict[Ends, None] = OrderedDict()
        self._closed: OrderedDict[Ends, float] = OrderedDict()
        # Tokens of subflows that this host has opened on connections that are not tracked, or not yet.
        self._opened_by_proxy: OrderedDict[Token, float] = OrderedDict()
        self._opened_by_proxy_at = -math.inf
        self._wants_kernel_list = False
        self._joining: set[Token] = set()
        self.unlisted = Unlisted(bounds.half_open)
        self.kernel_confirms = False
        self.expects_other_ports = True

    def sizes(self) -> dict[str, int]:
        """Entries in each table."""
        return {
            "connections": len(self._connections),
            "subflows": len(self._by_ends),
            "half_open": len(self._handshakes),
            "orphans": len(self._orphans),
        }

    def take_kernel_list_request(self) -> bool:
        """Whether the kernel list has been wanted since the last call, to confirm what was seen."""
        is_wanted, self._wants_kernel_list = self._wants_kernel_list, False
        return is_wanted

    def take_joining(self) -> set[Token]:
        """The connections to which the proxy has answered a JOIN since the last call."""
        joining, self._joining = self._joining, set()
        return joining

    def observe(self, segment: Segment, at: float, by_proxy: bool | None = None) -> list[TableChange]:
        """The connections that a segment changes, captured at `at`, in seconds of any clock that is never set.

        `by_proxy`: whether the proxy's host has sent it; None if unknown. A segment that contradicts this is counted as
        `wrong_direction`, malformed options as `malformed`; both are ignored.
        """
        return self.observe_all([(segment, at, by_proxy)])

    def observe_all(self, segments: Iterable[tuple[Segment, float, bool | None]]) -> list[TableChange]:
        """As `observe` for each of the segments, in order; each changed connection once, as it is after the last."""
        return self._changes(token for segment in segments for token in self._observe(*segment))

    def _observe(self, segment: Segment, at: float, by_proxy: bool | None) -> Iterator[Token]:
        if by_proxy is None:
            by_proxy = self._seems_by_proxy(segment)
        by_client = not by_proxy
        # The MP_PRIO that throttles an uplink does not make the subflow a backup.
        raw = without_appended_priority(segment.options) if by_proxy else segment.options
        options, malformed = decode(raw, segment.flags)
        if malformed:
            self.counters["malformed"] += malformed
        ends = Ends(segment.source, segment.destination) if by_client else Ends(segment.destination, segment.source)
        if ends.proxy.port not in self._ports:
            if ends.client.port in self._ports:
                self.counters["wrong_direction"] += 1
            return
        if segment.flags & (Flag.SYN | Flag.FIN | Flag.RST):
            self._explain(ends)
        if segment.flags & Flag.SYN and not segment.flags & (Flag.FIN | Flag.RST):
            if by_client and not segment.flags & Flag.ACK:
                handshake = self._handshakes.on_syn(ends, segment, options, at)
                if handshake is not None:
                    yield from self._accept(handshake, at)
            elif not by_client and segment.flags & Flag.ACK:
                yield from self._on_syn_ack(ends, segment, options, at)
            return
        if options:
            if by_client:
                yield from self._accept(self._handshakes.on_third_ack(ends, segment, options, at), at)
            yield from self._apply_options(ends, options, at, by_client=by_client)
        if segment.flags & (Flag.FIN | Flag.RST):
            yield from self._on_fin_or_rst(ends, segment, options, at, by_client=by_client)

    def _explain(self, ends: Ends) -> None:
        """A segment says why the kernel list may lack this subflow: it has ended, or its third ACK was refused."""
        entry = self._by_ends.get(ends)
        if entry is not None:
            entry.subflows[ends].explained = True
        self.unlisted.remove(ends)

    def _seems_by_proxy(self, segment: Segment) -> bool:
        """Whether the proxy seems to have sent a segment.

        Its ports tell; if both are the proxy's, its flags do, or what is known of its four-tuple.
        """
        is_from_proxy_port = segment.source.port in self._ports
        if not is_from_proxy_port or segment.destination.port not in self._ports:
            return is_from_proxy_port
        if segment.flags & Flag.SYN:
            return bool(segment.flags & Flag.ACK)
        by_client, by_proxy = Ends(segment.source, segment.destination), Ends(segment.destination, segment.source)
        for known in (self._by_ends, self._handshakes):
            if by_client in known or by_proxy in known:
                return by_client not in known
        return False

    def _on_syn_ack(self, ends: Ends, segment: Segment, options: tuple[Option, ...], at: float) -> Iterator[Token]:
        entry = self._by_ends.get(ends)
        if entry is not None:
            known = entry.subflows[ends].start
            if known is not None and not known.is_followed_by(segment.acknowledgment):
                # A SYN/ACK for another SYN on these ports: the kernel has closed the subflow that is in our table.
                self.counters["port_reused"] += 1
                yield self._close(ends, at, "ports reused")
        yield from self._accept(self._handshakes.on_syn_ack(ends, segment, options, at), at)

    def _accept(self, handshake: Opened | Joined | None, at: float) -> Iterator[Token]:
        match handshake:
            case Opened():
                yield from self._open(handshake, at)
            case Joined(authenticated=True):
                yield from self._join(handshake, at)
            case Joined(token=token):
                entry = self._entry(token)
                if entry is not None:
                    self._joining.add(token)
                    self._wants_kernel_list = self._wants_kernel_list or entry.keys is None
                    self._report(EventKind.JOINING, at, entry, LiveSubflow.of(handshake, at))

    def _open(self, opened: Opened, at: float) -> Iterator[Token]:
        entry = self._connections.get(opened.token)
        if entry is not None and opened.ends in entry.subflows:
            # Known from the SYN/ACK or from the kernel list; the third ACK adds the keys.
            if opened.keys is not None:
                entry.keys = opened.keys
                self._unauthenticated.pop(opened.token, None)
            live = entry.subflows[opened.ends]
            if live.start is None:
                live.start, live.opened_at = opened.start, opened.at
                yield opened.token
            return
        if opened.ends in self._by_ends:
            yield self._close(opened.ends, at, "ports reused")
        if entry is not None:
            # The kernel reuses a token only after its connection has ended.
            yield from self._close_all(entry, at, "token reused")
        self._orphans.pop(opened.token, None)
        if len(self._connections) >= self._bounds.connections:
            if not self._unauthenticated:
                self.counters["connections_not_tracked"] += 1
                return
            yield from self._close_all(self._connections[next(iter(self._unauthenticated))], at, "table full")
        entry = Entry(opened.token, opened.version, opened.ends.proxy.port, opened.keys)
        self._connections[opened.token] = entry
        if opened.keys is None:
            self._unauthenticated[opened.token] = None
        self._report(EventKind.OPENED, at, entry)
        self._expect_other_ports(opened.token)
        self._add(entry, opened.ends, LiveSubflow.of(opened, at), at)
        yield opened.token

    def _join(self, joined: Joined, at: float) -> Iterator[Token]:
        known = self._by_ends.get(joined.ends)
        if known is not None:
            listed, live = known.subflows[joined.ends], LiveSubflow.of(joined, at)
            if known.token == joined.token and listed.start in (None, joined.start):
                # It was in the kernel list before its frames were captured.
                live.closed_by_kernel, live.explained = listed.closed_by_kernel, listed.explained
                known.subflows[joined.ends] = live
                yield known.token
                return
            yield self._close(joined.ends, at, "ports reused")
        entry = self._entry(joined.token)
        if entry is None:
            self.counters["unknown_token"] += 1
            return
        if not self._reopen(entry, at):
            return
        self._add(entry, joined.ends, LiveSubflow.of(joined, at), at)
        yield joined.token

    def _entry(self, token: Token) -> Entry | None:
        return self._connections.get(token) or self._orphans.get(token)

    def _keys_of(self, token: Token) -> Keys | None:
        entry = self._entry(token)
        if entry is None:
            raise UnknownToken
        return entry.keys

    def _start_of(self, ends: Ends) -> Start | None:
        entry = self._by_ends.get(ends)
        return None if entry is None else entry.subflows[ends].start

    def _reopen(self, entry: Entry, at: float) -> bool:
        """Put an orphan back into the table; false if the table is full."""
        if entry.token in self._connections:
            return True
        if len(self._connections) >= self._bounds.connections:
            self.counters["connections_not_tracked"] += 1
            return False
        del self._orphans[entry.token]
        self._connections[entry.token] = entry
        self._report(EventKind.OPENED, at, entry, detail="joined again")
        return True

    def _add(self, entry: Entry, ends: Ends, live: LiveSubflow, at: float, detail: str = "") -> None:
        ends = Ends(ends.client, _interned(ends.proxy))
        entry.subflows[ends] = live
        self._by_ends[ends] = entry
        self._closed.pop(ends, None)
        self.counters["subflows_opened"] += 1
        self._report(EventKind.ESTABLISHED, at, entry, live, detail)

    def _apply_options(self, ends: Ends, options: tuple[Option, ...], at: float, *, by_client: bool) -> Iterator[Token]:
        for option in options:
            entry = self._by_ends.get(ends)
            if entry is None:
                return
            entry.subflows[ends].idle_since = at
            if by_client and isinstance(option, MpPrio):
                entry.subflows[ends].backup_claimed |= option.backup
                entry.subflows[ends].backup_withdrawn = not option.backup
            if by_client and isinstance(option, MpPrio | RemoveAddr | MpFail) and self._leave_to_kernel():
                continue
            match option:
                case MpPrio():
                    yield from self._change_backup(entry, ends, option, at, by_client=by_client)
                case RemoveAddr(address_ids):
                    for gone in entry.with_address(address_ids, by_client=by_client):
                        self._wants_kernel_list = True
                        yield self._close(gone, at, f"{'client' if by_client else 'proxy'} removed the address")
                case MpFastclose(key):
                    yield from self._fast_close(entry, key, at, by_client=by_client)
                case MpFail() if len(entry.subflows) == 1:
                    self._wants_kernel_list = True
                    yield from self._close_all(entry, at, "fell back to TCP after a checksum failure")
                case AddAddr(echo=False) as offer:
                    port = "" if offer.port is None else f" port {offer.port}"
                    offered = f"id {offer.address_id} {offer.address}{port} by {'client' if by_client else 'proxy'}"
                    self._report(EventKind.ADDRESS_OFFERED, at, entry, entry.subflows[ends], offered)

    def _change_backup(
        self, entry: Entry, ends: Ends, option: MpPrio, at: float, *, by_client: bool
    ) -> Iterator[Token]:
        affected = [ends]
        if option.address_id is not None:
            if entry.version != 0:
                # A form of version 0 only; Linux ignores it too (net/mptcp/options.c, TCPOLEN_MPTCP_PRIO).
                self.counters["malformed"] += 1
                return
            affected = entry.with_address((option.address_id,), by_client=by_client)
        for subflow in affected:
            yield from self._set_backup(entry, subflow, option.backup, at, by_client=by_client)

    def _set_backup(self, entry: Entry, ends: Ends, backup: bool, at: float, *, by_client: bool) -> Iterator[Token]:
        live = entry.subflows[ends]
        if (live.backup_by_client if by_client else live.backup_by_proxy) == backup:
            return
        if by_client:
            live.backup_by_client = backup
        else:
            live.backup_by_proxy = backup
        self._wants_kernel_list = True
        self._report(EventKind.BACKUP_CHANGED, at, entry, live, f"by {'client' if by_client else 'proxy'}")
        yield entry.token

    def _fast_close(self, entry: Entry, key: bytes, at: float, *, by_client: bool) -> Iterator[Token]:
        expected = None if entry.keys is None else entry.keys.proxy if by_client else entry.keys.client
        if expected is not None and key != expected:
            self.counters["wrong_key"] += 1
            return
        if by_client and self._leave_to_kernel():
            # The client knows the key, and can send it in a segment that the kernel drops.
            return
        self._wants_kernel_list = self._wants_kernel_list or expected is None
        yield from self._close_all(entry, at, f"fast close by {'client' if by_client else 'proxy'}")
        self._orphans.pop(entry.token, None)

    def _leave_to_kernel(self) -> bool:
        """Leave what a client's segment says to the kernel list, if that can be read, and ask for it; whether so.

        Any host can send such a segment in the name of the client.
        """
        self._wants_kernel_list = self._wants_kernel_list or self.kernel_confirms
        return self.kernel_confirms

    def _on_fin_or_rst(
        self, ends: Ends, segment: Segment, options: tuple[Option, ...], at: float, *, by_client: bool
    ) -> Iterator[Token]:
        if by_client and self._leave_to_kernel():
            return
        reset = bool(segment.flags & Flag.RST)
        reasons = "".join(f", reason {option.reason}" for option in options if isinstance(option, MpTcpRst))
        if reset:
            self._handshakes.forget(ends, at, f"RST{reasons}")
        if ends in self._by_ends:
            # It may be forged: only the kernel knows whether its sequence number was in the window.
            self._wants_kernel_list = True
            yield self._close(ends, at, f"RST{reasons}" if reset else "FIN")

    def _close_all(self, entry: Entry, at: float, detail: str) -> Iterator[Token]:
        for ends in tuple(entry.subflows):
            yield self._close(ends, at, detail)

    def _close(self, ends: Ends, at: float, detail: str) -> Token:
        entry = self._by_ends.pop(ends)
        token, live = entry.token, entry.subflows.pop(ends)
        self._closing.pop(ends, None)
        self._closed[ends] = at
        self._closed.move_to_end(ends)
        self.counters["subflows_closed"] += 1
        self._report(EventKind.CLOSED, at, entry, live, detail)
        if not entry.subflows:
            del self._connections[token]
            self._unauthenticated.pop(token, None)
            entry.orphaned_at = at
            self._orphans[token] = entry
            self._report(EventKind.ENDED, at, entry)
            self.expire(at)
        return token

    def expire(self, now: float, idle_seconds: float | None = None) -> list[TableChange]:
        """Forget handshakes and orphans too old at `now`; close subflows that have been idle for `idle_seconds`."""
        self._handshakes.expire(now)
        self._forget_oldest(self._closed, lambda closed_at: closed_at < now - _CLOSED_SECONDS)
        self._forget_oldest(self._orphans, lambda orphan: orphan.orphaned_at < now - _ORPHAN_SECONDS)
        self._forget_oldest(self._opened_by_proxy, lambda opened_at: opened_at < now - _ORPHAN_SECONDS)
        if idle_seconds is None:
            return []
        idle = [
            ends
            for entry in self._connections.values()
            for ends, live in entry.subflows.items()
            if now - live.idle_since > idle_seconds
        ]
        return self._changes(self._close(ends, now, f"idle for {idle_seconds:g} s") for ends in idle)

    def _forget_oldest(self, entries: OrderedDict[_Key, _Value], is_too_old: Callable[[_Value], bool]) -> None:
        while entries and ((full := len(entries) > self._bounds.half_open) or is_too_old(next(iter(entries.values())))):
            self.counters["handshakes_forgotten"] += full
            entries.popitem(last=False)

    def apply_kernel_event(self, event: KernelEvent, at: float) -> list[TableChange]:
        """The connections that an event changes, received at `at`."""
        return self._changes(self._apply_kernel_event(event, at))

    def _apply_kernel_event(self, event: KernelEvent, at: float) -> Iterator[Token]:
        entry = self._by_ends.get(event.ends)
        if event.kind is KernelEventKind.ESTABLISHED:
            if event.ends.proxy.port not in self._ports:
                self._opened_by_proxy[event.token] = at
                self._opened_by_proxy.move_to_end(event.token)
                self._expect_other_ports(event.token)
        elif entry is None or entry.token != event.token:
            return
        elif event.kind is KernelEventKind.CLOSED:
            self.counters["closed_by_event"] += 1
            if not self.kernel_confirms:
                yield self._close(event.ends, at, "closed by the kernel")
                return
            self._wants_kernel_list = True
            yield from self._note_closing(entry, event.ends, at)
        else:
            backup = self._confirm_backup(entry.subflows[event.ends], kernel_says=event.backup)
            yield from self._set_backup(entry, event.ends, backup, at, by_client=True)

    def _confirm_backup(self, live: LiveSubflow, *, kernel_says: bool) -> bool:
        """Whether the client wants the subflow as a backup, now that the kernel says how it treats the subflow."""
        # Any host can forge the segment that withdraws it.
        if not kernel_says and live.backup_withdrawn:
            live.backup_claimed = live.backup_withdrawn = False
        return kernel_says and (live.backup_claimed or not self._steered)

    def _expect_other_ports(self, token: Token) -> None:
        """Ask for a kernel list of all ports if the proxy has opened a subflow of this connection and it is tracked."""
        if token in self._opened_by_proxy and self._entry(token) is not None:
            self._opened_by_proxy_at = max(self._opened_by_proxy.pop(token), self._opened_by_proxy_at)
            self.expects_other_ports = self._wants_kernel_list = True

    def _note_closing(self, entry: Entry, ends: Ends, at: float) -> Iterator[Token]:
        """The kernel has closed a subflow, but its queued data is still subject to its rate."""
        live = entry.subflows[ends]
        live.closed_by_kernel = at
        self._closing[ends] = None
        self._report(EventKind.STALLED, at, entry, live, "closed by the kernel")
        yield entry.token
        if len(self._closing) > self._bounds.half_open:
            yield self._close(next(iter(self._closing)), at, "too many closed by the kernel")

    def apply_kernel_list(self, kernel_list: KernelList) -> list[TableChange]:
        """Correct the table by the kernel list, except where captured segments are newer."""
        return self._changes(self._apply_kernel_list(kernel_list))

    def _apply_kernel_list(self, kernel_list: KernelList) -> Iterator[Token]:
        for ends, entry in tuple(self._by_ends.items()):
            listed = kernel_list.subflows.get(ends)
            if listed is None and self._is_settled(entry.subflows[ends], kernel_list.at):
                self._note_unlisted(entry, ends, kernel_list.at)
                self.counters["closed_by_kernel"] += 1
                yield self._close(ends, kernel_list.at, "not in the kernel list")
            elif listed is not None and listed.token != entry.token:
                yield self._close(ends, kernel_list.at, "another token in the kernel list")
        opened_by_host = []
        for ends, listed in kernel_list.subflows.items():
            if ends.proxy.port not in self._ports:
                opened_by_host.append((ends, listed))
            else:
                yield from self._apply_listed(ends, listed, kernel_list.at)
        # An event that arrived after the list was requested may be of a subflow that the list lacks.
        if kernel_list.on_all_ports and self._opened_by_proxy_at < kernel_list.at:
            self.expects_other_ports = False
        for ends, listed in opened_by_host:
            # The rest belong to connections that this host has opened, or to another service.
            if self._entry(listed.token) is not None:
                self.expects_other_ports = True
                yield from self._apply_listed(ends, listed, kernel_list.at)
        self.unlisted.judge(kernel_list.at, self._known_since(kernel_list))

    def _note_unlisted(self, entry: Entry, ends: Ends, at: float) -> None:
        live = entry.subflows[ends]
        if entry.keys is not None and not live.explained and live.closed_by_kernel is None:
            self.unlisted.add(ends, live.established_at, at)

    def _known_since(self, kernel_list: KernelList) -> Iterator[tuple[PackedEndpoint, float]]:
        for ends in kernel_list.subflows:
            entry = self._by_ends.get(ends)
            if entry is not None:
                yield ends.proxy, entry.subflows[ends].established_at

    def _apply_listed(self, ends: Ends, listed: ListedSubflow, at: float) -> Iterator[Token]:
        entry = self._by_ends.get(ends)
        if entry is not None:
            yield from self._update_listed(entry, ends, listed, at)
        elif not listed.closing and self._closed.get(ends, 0.0) < at - _CLOSED_SECONDS:
            yield from self._add_listed(ends, listed, at)

    def _is_settled(self, live: LiveSubflow, at: float) -> bool:
        """Whether the subflow is old enough that a kernel list read at `at` must have it."""
        return live.established_at < at - _ESTABLISHED_SECONDS

    def _update_listed(self, entry: Entry, ends: Ends, listed: ListedSubflow, at: float) -> Iterator[Token]:
        live = entry.subflows[ends]
        live.explained = True
        if listed.closing and live.closed_by_kernel is None:
            yield from self._note_closing(entry, ends, at)
        elif not listed.closing and live.closed_by_kernel is not None and live.closed_by_kernel < at:
            # The event was of an earlier subflow on these ports.
            live.closed_by_kernel = None
            del self._closing[ends]
            yield entry.token
        if live.stalled != listed.stalled:
            live.stalled = listed.stalled
            kind = EventKind.STALLED if listed.stalled else EventKind.RECOVERED
            self._report(kind, at, entry, live, "in the kernel list")
            yield entry.token
        if self._is_settled(live, at) and self._apply_listed_backup(live, listed):
            self._report(EventKind.BACKUP_CHANGED, at, entry, live, "in the kernel list")
            yield entry.token

    def _apply_listed_backup(self, live: LiveSubflow, listed: ListedSubflow) -> bool:
        """Use what the kernel list says about the subflow's priority; whether the priority changes."""
        backup = listed.backup_by_proxy or self._confirm_backup(live, kernel_says=listed.backup)
        if live.backup == backup:
            return False
        live.backup_by_client, live.backup_by_proxy = backup, False
        return True

    def _add_listed(self, ends: Ends, listed: ListedSubflow, at: float) -> Iterator[Token]:
        token = listed.token
        entry = self._entry(token)
        if entry is None:
            if len(self._connections) >= self._bounds.connections:
                self.counters["connections_not_tracked"] += 1
                return
            entry = self._connections[token] = Entry(token, _LINUX_VERSION, ends.proxy.port, None)
            self._report(EventKind.OPENED, at, entry, detail="in the kernel list")
            self._expect_other_ports(token)
        elif not self._reopen(entry, at):
            return
        if listed.is_first:
            entry.port = ends.proxy.port
        joined = self._handshakes.accepted_by_kernel(ends, token)
        if joined is None:
            live = LiveSubflow(unpack(ends), at, at, at, None, listed.address_id, backup_at_join=listed.backup)
            live.backup_claimed = listed.backup  # what came before is not known
        else:
            live = LiveSubflow.of(joined, at)
        self._apply_listed_backup(live, listed)
        live.stalled, live.explained = listed.stalled, True
        self.counters["learned_from_kernel"] += 1
        self._add(entry, ends, live, at, "in the kernel list")
        yield token

    def _changes(self, tokens: Iterable[Token]) -> list[TableChange]:
        return [self._change(token) for token in dict.fromkeys(tokens)]

    def _change(self, token: Token) -> TableChange:
        entry = self._connections.get(token)
        return TableChange(token, None if entry is None else entry.connection())

    def _report_failed_join(self, joined: Joined, at: float, detail: str) -> None:
        if self.on_event is not None and self._start_of(joined.ends) != joined.start:
            subflow = LiveSubflow.of(joined, at).subflow()
            self.on_event(Event(at, EventKind.FAILED, joined.token, None, subflow, detail))

    def _report(
        self, kind: EventKind, at: float, entry: Entry, live: LiveSubflow | None = None, detail: str = ""
    ) -> None:
        if self.on_event is not None:
            subflow = None if live is None else live.subflow()
            self.on_event(Event(at, kind, entry.token, entry.version, subflow, detail))


@lru_cache
def _interned(proxy: PackedEndpoint) -> PackedEndpoint:
    """The same object for equal proxy ends: the proxy has few sockets."""
    return proxy
