"""A proxy's kernel as truth, and what a sniffer on it captures of its clients and of attackers who forge segments.

Captured segments are lost, late and out of order; the kernel list is read when the sniffer would read it, and the
kernel's events arrive, if they are received at all.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from ipaddress import ip_address
from typing import Final, NamedTuple

from policy_oracle import decision_table
from segments import (
    PROXY,
    capable_ack,
    capable_syn,
    capable_synack,
    fail,
    fastclose,
    join_ack,
    join_syn,
    join_synack,
    prio,
    remove_addr,
    token,
)

from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.kernel_events import KernelEvent, KernelEventKind
from mptcp_sniffer.kernel_list import KernelList, ListedSubflow
from mptcp_sniffer.kernel_reader import _GATHER_SECONDS, _REPEAT_SECONDS
from mptcp_sniffer.segment import Flag, PackedEndpoint, Segment
from mptcp_sniffer.tracker import Bounds, TableChange, Tracker
from mptcp_throttle.model import AccessNetwork, FourTuple, RateKind, Token

LIST_SECONDS: Final = 1.0
"""sniffer.kernel_list_interval."""

LATEST_FRAME: Final = 0.2
"""The longest from the capture of a segment until the tracker has it."""

SLOWEST_LIST: Final = 0.1
"""The longest that reading the kernel list takes."""

REOPEN_SECONDS: Final = 1.0
"""From the loss of the capture to the next attempt."""

_NEW_SECONDS: Final = 0.1
"""A subflow that is younger need not be in the kernel list yet (`tracker`)."""

_MARGIN: Final = 0.001

SOON: Final = _GATHER_SECONDS + _MARGIN
"""From the capture of an end to the kernel list that confirms it."""

LATE: Final = LIST_SECONDS + _NEW_SECONDS + LATEST_FRAME + SLOWEST_LIST + _MARGIN
"""From an end that was not captured to the kernel list without it (I2: within a second)."""

REGAINED: Final = LATE + 0.5
"""What the tracker has closed is not taken from a kernel list of the next half second."""

KEYS: Final = (b"proxys-1", b"proxys-2", b"proxys-3", b"proxys-4")
WRONG_KEY: Final = b"guesswrk"

_PROXY: Final = PackedEndpoint(ip_address(PROXY).packed, 8080)
_SYN, _SYN_ACK, _ACK, _FIN, _RST = Flag.SYN, Flag.SYN | Flag.ACK, Flag.ACK, Flag.FIN | Flag.ACK, Flag.RST

Key = tuple[Token, FourTuple]
"""A subflow of a connection."""


class State(NamedTuple):
    """What decides whether a subflow is capped, and its siblings."""

    preference: int
    backup: bool
    stalled: bool


def _may_be_capped(key: Key, states: Mapping[Key, Sequence[State | None]]) -> bool:
    """Whether one state of each subflow, None if it is not there, lets this subflow be capped."""
    own = [state for state in states.get(key, ()) if state is not None]
    siblings = [had for known, had in states.items() if known[0] == key[0] and known != key]
    preferred = [s for had in siblings for s in had if s and not s.stalled and own and s[0] < own[0][0]]
    if any(not state.backup for state in own) and any(not state.backup for state in preferred):
        return True
    only_backups = all(any(s is None or s.stalled or s.backup for s in had) for had in siblings)
    # A subflow that has ended is stalled for the tracker until the next list.
    is_unused = any(s is None or s.backup or s.stalled for s in states.get(key, ()))
    return only_backups and is_unused and any(state.backup for state in preferred)


def _mixed(states: Sequence[State | None]) -> list[State | None]:
    """What the tracker may believe of a subflow: it knows a new priority at once, a stall from the next list on."""
    known = [state for state in states if state is not None]
    backups, stalls = {state.backup for state in known}, {state.stalled for state in known}
    mixed = [State(known[0].preference, *both) for both in itertools.product(backups, stalls)]
    return [*mixed, *([None] if None in states else [])]


@cache
def endpoint(address: str, port: int) -> PackedEndpoint:
    """The end of a client."""
    return PackedEndpoint(ip_address(address).packed, port)


@cache
def _four_tuple(client: PackedEndpoint) -> FourTuple:
    return FourTuple.of(*client, *_PROXY)


@dataclass
class Subflow:
    """A subflow of the kernel; its socket can send."""

    client: PackedEndpoint
    address_id: int
    sequence: int
    since: float
    by_client: bool
    by_proxy: bool = False
    stalled: bool = False
    closing: bool = False

    @property
    def backup(self) -> bool:
        return self.by_client or self.by_proxy


@dataclass
class Connection:
    """A connection of the kernel."""

    key: bytes
    subflows: dict[PackedEndpoint, Subflow] = field(default_factory=dict)

    @property
    def token(self) -> Token:
        return token(self.key)


@dataclass(frozen=True)
class Frame:
    """A segment, and whether the proxy's host sends it."""

    client: PackedEndpoint
    by_proxy: bool
    flags: int
    sequence: int
    acknowledgment: int
    body: bytes = b""
    seems_by_proxy: bool | None = None

    def segment(self) -> Segment:
        options = bytes([30, len(self.body) + 2]) + self.body if self.body else b""
        ends = (self.client, _PROXY)
        seems_by_proxy = self.by_proxy if self.seems_by_proxy is None else self.seems_by_proxy
        source, destination = ends[::-1] if seems_by_proxy else ends
        return Segment(source, destination, self.sequence, self.acknowledgment, self.flags, options, 0)


Fate = float | None
"""The delay until what has happened is known; None if it is lost."""

Fates = Sequence[Fate]
"""Of captured segments, in order, and again from the first: the delay until the tracker has it, None if it is lost."""


class HostileWire:
    """The kernel, the sniffer's tracker and the daemon's decisions, on one clock."""

    def __init__(self, networks: Sequence[AccessNetwork], half_open: int, list_takes: float, event: Fate) -> None:
        self._preferences = {subnet: n.preference for n in networks for subnet in n.subnets}
        self._bounds = Bounds(100, half_open)
        self._serial = itertools.count(1)
        self._sequences = itertools.count(1000, 1000)
        self._pending: list[tuple[float, int, Callable[[], None]]] = []
        self._frames_until = -math.inf
        self._soon: dict[Key, float] = {}
        self._since: dict[Key, float] = {}
        self._steady: set[Key] = set()
        self._unknown: set[Key] = set()
        self._past: list[tuple[float, dict[Key, State]]] = []
        self._used: dict[bytes, float] = {}
        self._reported: dict[PackedEndpoint, float] = {}
        self.now = self._captured_from = 1000.0
        self._list_takes = list_takes
        self._event = event
        self.connections: dict[Token, Connection] = {}
        self.last_ended: PackedEndpoint | None = None
        self.decisions = decision_table(networks)
        self._begin_tracking()
        self._list_due = [self.now]
        self._gathered_at = self.now

    def _begin_tracking(self) -> None:
        self.tracker = Tracker([_PROXY.port], self._bounds)
        self.tracker.kernel_confirms = True
        self._capturing = True
        # What is closing already is not taken over: it is about to end.
        self._unknown = {key_of(connection, subflow) for connection, subflow in self.live() if subflow.closing}

    # The kernel

    def live(self) -> list[tuple[Connection, Subflow]]:
        """All subflows."""
        return [(c, subflow) for c in self.connections.values() for subflow in c.subflows.values()]

    def is_free(self, client: PackedEndpoint) -> bool:
        """Whether a client's end has no subflow."""
        return all(client not in connection.subflows for connection in self.connections.values())

    def _preference(self, subflow: Subflow) -> int:
        address = ip_address(subflow.client.address)
        return next(preference for subnet, preference in self._preferences.items() if address in subnet)

    def _state(self) -> dict[Key, State]:
        return {key_of(c, s): State(self._preference(s), s.backup, s.stalled or s.closing) for c, s in self.live()}

    def justified(self) -> set[Key]:
        """The subflows that the kernel's own state lets be capped: beside them a preferred path is in use."""
        state = self._state()
        return {key for key in state if _may_be_capped(key, {known: [had] for known, had in state.items()})}

    def _may_still_be_capped(self, key: Key) -> bool:
        """Whether what the kernel had of each subflow of late, attributes each at its own time, lets it be capped."""
        present = self._state()
        states = [state for until, state in self._past if until >= self.now - LATE] + [present]
        of_late = {known: _mixed([state.get(known) for state in states]) for known in set[Key]().union(*states)}
        if key in present:
            of_late[key] = [state for state in of_late[key] if state is not None]
        return _may_be_capped(key, of_late)

    @contextmanager
    def _changing(self, fates: Fates = (None,), *, frames: int = 1) -> Iterator[None]:
        """Around a change of the kernel of which the next `frames` segments tell."""
        before, justified = self._state(), self.justified()
        told = [fates[number % len(fates)] for number in range(frames)] or [None]
        delays = [delay for delay in told if delay is not None]
        is_sure = self._capturing and len(delays) == len(told) and self._is_settled()
        yield
        after = self._state()
        self._past = [*((until, state) for until, state in self._past if until >= self.now - LATE), (self.now, before)]
        for of in {key[0] for key in before.keys() | after.keys() if before.get(key) != after.get(key)}:
            self._soon = {key: until for key, until in self._soon.items() if key[0] != of}
            self._since.update({key: max(self.now, self._captured_from) for key in after if key[0] == of})
            self._steady = {key for key in self._steady if key[0] != of}
        if is_sure:
            until = self.now + max(delays) + SOON + 2 * self._list_takes
            self._soon.update(dict.fromkeys(justified - self.justified(), until))

    def _is_settled(self) -> bool:
        """Whether the sniffer can know all that the kernel has."""
        return self._frames_until <= self.now and all(until < self.now - LATE for until, _ in self._past)

    # What the sniffer captures

    def _schedule(self, after: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._pending, (self.now + after, next(self._serial), event))

    def capture(self, frames: Sequence[Frame], fates: Fates) -> None:
        """Segments pass the interface now."""
        at = self.now
        for number, frame in enumerate(frames):
            delay = fates[number % len(fates)]
            if delay is not None:
                self._frames_until = max(self._frames_until, at + delay)
                self._schedule(delay, partial(self._observe, frame, at))
        self.advance(0.0)

    def _observe(self, frame: Frame, at: float) -> None:
        if self._capturing:
            self._take(self.tracker.observe(frame.segment(), at, frame.by_proxy))
            if self.tracker.take_kernel_list_request():
                self._request_list()

    def _request_list(self) -> None:
        if self.now >= self._gathered_at:
            self._gathered_at = self.now + _GATHER_SECONDS
            self._list_due = [self._gathered_at, *(self._gathered_at + seconds for seconds in _REPEAT_SECONDS)]

    def _report(self, connection: Connection, clients: Sequence[PackedEndpoint], kind: KernelEventKind) -> None:
        """The kernel's events of subflows of a connection, unless it has ended, or they are not received."""
        if self._event is None or not connection.subflows:
            return
        for client in clients:
            backup = kind is KernelEventKind.PRIORITY and connection.subflows[client].by_client
            event = KernelEvent(kind, connection.token, Ends(client, _PROXY), backup)
            self._schedule(self._event, partial(self._receive, event))
            self._reported[client] = self.now + self._event

    def _receive(self, event: KernelEvent) -> None:
        if self._capturing:
            self._take(self.tracker.apply_kernel_event(event, self.now))
            if self.tracker.take_kernel_list_request():
                self._request_list()

    def _read_list(self) -> None:
        listed = {
            Ends(subflow.client, _PROXY): ListedSubflow(
                c.token, subflow.address_id, subflow.backup, subflow.stalled, subflow.closing
            )
            for c, subflow in self.live()
        }
        kernel_list = KernelList(self.now, listed)
        self._list_due = [due for due in self._list_due if due > self.now] or [self.now + LIST_SECONDS]
        self._list_due[0] = max(self._list_due[0], self.now + self._list_takes)

        def deliver() -> None:
            if self._capturing:
                self._take(self.tracker.apply_kernel_list(kernel_list))
                self._take(self.tracker.expire(self.now))

        self._schedule(self._list_takes, deliver)

    def _take(self, changes: Sequence[TableChange]) -> None:
        self.decisions.update({change.token: change.connection for change in changes})

    def advance(self, seconds: float) -> None:
        """Let time pass, and what is under way arrive."""
        until = self.now + seconds
        while True:
            at = min(self._pending[0][0] if self._pending else math.inf, self._list_due[0])
            if at > until:
                break
            self.now = max(self.now, at)
            self.check()
            if self._pending and self._pending[0][0] <= at:
                heapq.heappop(self._pending)[2]()
            else:
                self._read_list()
            self.check()
        self.now = until
        self.check()

    def lose_capture(self) -> None:
        """The interface goes; a second later it is there again."""
        if not self._capturing:
            return
        self._capturing = False
        self.decisions.replace({})
        self._steady.clear()
        self._captured_from = self.now + REOPEN_SECONDS
        self._since = dict.fromkeys(self._state(), self._captured_from)
        self._schedule(REOPEN_SECONDS, self._begin_tracking)

    # What must hold

    def capped(self) -> set[Key]:
        """The subflows that the daemon has decided to cap."""
        return {
            (decision.token, decision.subflow.ends)
            for decisions in self.decisions.decisions.values()
            for decision in decisions
            if decision.downlink.share is not None and decision.downlink.share.kind is RateKind.CAP
        }

    def check(self) -> None:
        """Every capped subflow is justified by the kernel's state, or was a moment ago; no subflow escapes its cap."""
        capped, justified = self.capped(), self.justified()
        for key in capped - justified:
            assert self._may_still_be_capped(key), f"capped without a path: {key}"
            assert self.now <= self._soon.get(key, math.inf) + _MARGIN, f"capped for too long: {key}"
        for key in justified - capped:
            assert key not in self._steady, f"talked out of its cap: {key}"
            assert key in self._unknown or self.now <= self._since[key] + REGAINED, f"escaped: {key}"
        # No late honest segment can change these now.
        self._steady |= {key for key in capped & justified if self.now > self._since[key] + LATE}

    # Honest events

    def _handshake(self, client: PackedEndpoint, sequence: int, bodies: Sequence[bytes]) -> list[Frame]:
        syn, answer, ack = bodies
        return [
            Frame(client, False, _SYN, sequence, 0, syn),
            Frame(client, True, _SYN_ACK, 900, sequence + 1, answer),
            Frame(client, False, _ACK, sequence + 1, 901, ack),
        ]

    def open(self, client: PackedEndpoint, fates: Fates) -> None:
        """A client opens a connection, if the kernel has a key that it has not used of late."""
        key = next((k for k in KEYS if token(k) not in self.connections and self._used.get(k, 0.0) < self.now), None)
        if key is None:
            return
        connection, sequence = Connection(key), next(self._sequences)
        with self._changing():
            self.connections[connection.token] = connection
            connection.subflows[client] = Subflow(client, 0, sequence, self.now, by_client=False)
        self.capture(self._handshake(client, sequence, (capable_syn(), capable_synack(key), capable_ack(key))), fates)

    def _join_frames(self, connection: Connection, subflow: Subflow, *, key: bytes | None = None) -> list[Frame]:
        syn = join_syn(connection.token, backup=subflow.by_client, address_id=subflow.address_id)
        bodies = (syn, join_synack(connection.key), join_ack(key or connection.key))
        return self._handshake(subflow.client, subflow.sequence, bodies)

    def join(
        self, connection: Connection, client: PackedEndpoint, fates: Fates, *, backup: bool, accepted: bool
    ) -> None:
        """A client joins; the proxy may refuse that after the third ACK."""
        subflow = Subflow(client, client.port, next(self._sequences), self.now, by_client=backup)
        frames = self._join_frames(connection, subflow)
        # Until the next list, an event of an earlier subflow on these ports may seem to be of this subflow.
        subflow.closing = self._reported.get(client, 0.0) >= self.now
        with self._changing():
            connection.subflows[client] = subflow
        with self._changing():
            subflow.closing = False
        if not accepted:
            # Until the RST, or the next list, the proof counts.
            with self._changing():
                del connection.subflows[client]
            frames.append(Frame(client, True, _RST, 901, 0))
        self.capture(frames, fates)

    def _end(self, connection: Connection, clients: Sequence[PackedEndpoint]) -> None:
        for client in clients:
            del connection.subflows[client]
        if not connection.subflows:
            del self.connections[connection.token]
            self._used[connection.key] = self.now + REGAINED
        self.last_ended = clients[0]

    def end(self, connection: Connection, subflow: Subflow, how: str, fates: Fates) -> None:
        """A subflow ends, and its siblings if `how` says so."""
        client, sequence = subflow.client, subflow.sequence
        from_client = Frame(client, False, _ACK, sequence + 1, 901)
        from_proxy = Frame(client, True, _ACK, 901, sequence + 1)
        gone, frames = [client], []
        match how:
            case "fin":
                frames = [_with(from_client, _FIN), _with(from_proxy, _FIN)]
            case "fin of the proxy":
                frames = [_with(from_proxy, _FIN)]
            case "rst":
                frames = [_with(from_client, _RST)]
            case "rst of the proxy":
                frames = [_with(from_proxy, _RST)]
            case "remove address":
                removed = subflow.address_id
                gone = [c for c, known in connection.subflows.items() if known.address_id == removed]
                frames = [_with(from_client, body=remove_addr(removed))]
            case "fast close":
                gone = list(connection.subflows)
                frames = [_with(from_client, body=fastclose(connection.key))]
            case "fall back" if len(connection.subflows) == 1:
                frames = [_with(from_proxy, body=fail())]
        with self._changing(fates, frames=len(frames)):
            self._end(connection, gone)
        self._report(connection, gone, KernelEventKind.CLOSED)
        self.capture(frames, fates)

    def close_with_queue(self, connection: Connection, subflow: Subflow, seconds: float, fates: Fates) -> None:
        """The proxy closes a subflow, and sends what is queued for so long, and its FIN in the end."""
        key = key_of(connection, subflow)
        is_steady = key in self._steady
        tracked = self.decisions.connections.get(connection.token)
        if tracked is None or key[1] not in {known.ends for known in tracked.subflows}:
            self._unknown.add(key)
        with self._changing():
            subflow.closing = True
        if is_steady and key in self.justified():
            # Its own end is no reason to free it.
            self._steady.add(key)
        self._report(connection, [subflow.client], KernelEventKind.CLOSED)

        def drained() -> None:
            if connection.subflows.get(subflow.client) is subflow:
                self.end(connection, subflow, "fin of the proxy", fates)

        self._schedule(seconds, drained)

    def close_half(self, subflow: Subflow, fates: Fates) -> None:
        """The client closes its side; the proxy goes on sending."""
        self.capture([Frame(subflow.client, False, _FIN, subflow.sequence + 1, 901)], fates)

    def change_priority(
        self, connection: Connection, subflow: Subflow, fates: Fates, *, backup: bool, by_proxy: bool
    ) -> None:
        """MP_PRIO of either side."""
        by_client, of_proxy = (subflow.by_client, backup) if by_proxy else (backup, subflow.by_proxy)
        if subflow.by_proxy or by_proxy:
            # The list does not say which side asked for it: until the next list the tracker may know of this side only.
            with self._changing():
                subflow.by_client, subflow.by_proxy = not by_proxy and backup, by_proxy and backup
        with self._changing(fates):
            subflow.by_client, subflow.by_proxy = by_client, of_proxy
        if not by_proxy:
            self._report(connection, [subflow.client], KernelEventKind.PRIORITY)
        ours, theirs = (901, subflow.sequence + 1) if by_proxy else (subflow.sequence + 1, 901)
        self.capture([Frame(subflow.client, by_proxy, _ACK, ours, theirs, prio(backup=backup))], fates)

    def stall(self, subflow: Subflow, *, stalled: bool) -> None:
        """The path of a subflow dies in silence, or comes back."""
        with self._changing():
            subflow.stalled = stalled

    def retransmit(self, connection: Connection, subflow: Subflow, fates: Fates) -> None:
        """The handshake of a subflow that joined, once more."""
        if subflow.address_id:
            self.capture(self._join_frames(connection, subflow), fates)

    # Hostile events

    def forge(self, client: PackedEndpoint, flags: int, body: bytes, fates: Fates, *, as_proxy: bool) -> None:
        """A segment in the name of a client or of the proxy, from elsewhere, that the kernel ignores."""
        self.capture([Frame(client, False, flags, 12345, 54321, body, seems_by_proxy=as_proxy)], fates)

    def forge_handshake(self, client: PackedEndpoint, bodies: Sequence[bytes], fates: Fates) -> None:
        """All three segments of a handshake from elsewhere."""
        frames = self._handshake(client, next(self._sequences), bodies)
        forged = [Frame(f.client, False, f.flags, f.sequence, f.acknowledgment, f.body, f.by_proxy) for f in frames]
        self.capture(forged, fates)

    def guess(self, connection: Connection, client: PackedEndpoint, fates: Fates) -> None:
        """A JOIN to a real token, with a wrong HMAC: the proxy answers, and refuses it in the end."""
        subflow = Subflow(client, 9, next(self._sequences), self.now, by_client=False)
        frames = self._join_frames(connection, subflow, key=WRONG_KEY)
        self.capture([*frames, Frame(client, True, _RST, 901, 0)], fates)


def key_of(connection: Connection, subflow: Subflow) -> Key:
    """What identifies a subflow to the daemon."""
    return connection.token, _four_tuple(subflow.client)


def _with(frame: Frame, flags: int | None = None, body: bytes = b"") -> Frame:
    flags = frame.flags if flags is None else flags
    return Frame(frame.client, frame.by_proxy, flags, frame.sequence, frame.acknowledgment, body)
