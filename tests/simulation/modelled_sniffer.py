"""The sniffer's tracker and published table, given what a sniffer on the modelled proxy captures and reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Final

from modelled_proxy import PORT, ModelConnection, ModelProxy, ModelSocket
from segments import (
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
    tcprst,
)
from timeline import Timeline, VirtualClock

from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.kernel_events import KernelEvent, KernelEventKind
from mptcp_sniffer.kernel_list import KernelList, ListedSubflow
from mptcp_sniffer.kernel_reader import _GATHER_SECONDS, _REPEAT_SECONDS
from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.segment import Flag, PackedEndpoint, Segment
from mptcp_sniffer.tracker import Bounds, TableChange, Tracker
from mptcp_throttle.model import FourTuple, Token

LIST_SECONDS: Final = 1.0
"""sniffer.kernel_list_interval."""

_HISTORY: Final = 16
"""Ended connections that are kept for readers: so few that one that is slow must resynchronise."""

_BOUNDS: Final = Bounds(4096, 1024)
_EVENT_SECONDS: Final = 0.005
_FRAME_SECONDS: Final = 0.002
_ORPHAN_SECONDS: Final = 80.0
_SYN, _SYN_ACK, _ACK, _FIN, _RST = Flag.SYN, Flag.SYN | Flag.ACK, Flag.ACK, Flag.FIN | Flag.ACK, Flag.RST

ENDS_OF_SUBFLOW: Final = ("fin", "fin of the proxy", "rst", "rst of the proxy", "remove address")
"""How one subflow may end."""


@dataclass
class Wire:
    """How what passes the interface, and what the kernel tells, reaches the sniffer.

    `lost`, `late` and `twice` are probabilities of each frame and each event.
    """

    lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0


@dataclass(frozen=True)
class Frame:
    """A segment of a socket's connection, and whether the proxy's host has sent it."""

    ends: FourTuple
    by_proxy: bool
    flags: int
    sequence: int
    acknowledgment: int
    body: bytes = b""

    def segment(self) -> Segment:
        """As it is captured."""
        options = bytes([30, len(self.body) + 2]) + self.body if self.body else b""
        client, proxy = packed(self.ends)
        source, destination = (proxy, client) if self.by_proxy else (client, proxy)
        return Segment(source, destination, self.sequence, self.acknowledgment, self.flags, options, 0)


@lru_cache(4096)
def packed(ends: FourTuple) -> Ends:
    """The ends as the tracker has them."""
    return Ends(
        PackedEndpoint(ends.client.address.packed, ends.client.port),
        PackedEndpoint(ends.proxy.address.packed, ends.proxy.port),
    )


def handshake(socket: ModelSocket, key: bytes | None, *, joins: bool) -> list[Frame]:
    """Its three segments; of a socket without a key, those of plain TCP."""
    if key is None:
        bodies: tuple[bytes, ...] = (b"", b"", b"")
    elif joins:
        assert socket.token is not None
        syn = join_syn(socket.token, backup=socket.backup, address_id=socket.address_id)
        bodies = syn, join_synack(key), join_ack(key)
    else:
        bodies = capable_syn(), capable_synack(key), capable_ack(key)
    return [
        Frame(socket.ends, False, _SYN, socket.sequence, 0, bodies[0]),
        Frame(socket.ends, True, _SYN_ACK, 900, socket.sequence + 1, bodies[1]),
        Frame(socket.ends, False, _ACK, socket.sequence + 1, 901, bodies[2]),
    ]


def ending(socket: ModelSocket, how: str, key: bytes) -> list[Frame]:
    """What passes the wire when a subflow, or with `fast close` its connection, ends so."""
    from_client = Frame(socket.ends, False, _ACK, socket.sequence + 1, 901)
    from_proxy = Frame(socket.ends, True, _ACK, 901, socket.sequence + 1)
    match how:
        case "fin":
            return [_with(from_client, _FIN), _with(from_proxy, _FIN)]
        case "fin of the proxy":
            return [_with(from_proxy, _FIN), _with(from_client, _FIN)]
        case "rst":
            return [_with(from_client, _RST)]
        case "rst of the proxy":
            return [_with(from_proxy, _RST)]
        case "remove address":
            return [_with(from_client, body=remove_addr(socket.address_id))]
        case "fast close":
            return [_with(from_client, body=fastclose(key))]
    return []


def forged(socket: ModelSocket, random: Random, key: bytes) -> Frame:
    """A segment in the name of its client, from elsewhere, that the kernel ignores."""
    flags, body = random.choice(
        [
            (_FIN, b""),
            (_RST, tcprst(3)),
            (_ACK, prio(backup=True)),
            (_ACK, prio(backup=False)),
            (_ACK, remove_addr(*range(8))),
            (_ACK, fail()),
            (_ACK, fastclose(key)),
        ]
    )
    return Frame(socket.ends, False, flags, 12345, 54321, body)


def _with(frame: Frame, flags: int | None = None, body: bytes = b"") -> Frame:
    flags = frame.flags if flags is None else flags
    return Frame(frame.ends, frame.by_proxy, flags, frame.sequence, frame.acknowledgment, body)


class ModelSniffer:
    """A sniffer that may stop, crash, and lose its capture. `published` is called after each change of its table.

    `reads_fail`: the kernel list cannot be read. `wire` is how frames and events arrive.
    """

    def __init__(self, proxy: ModelProxy, clock: VirtualClock, timeline: Timeline, random: Random) -> None:
        self._proxy = proxy
        self._clock = clock
        self._timeline = timeline
        self._random = random
        self.wire = Wire()
        self.reads_fail = False
        self.published: Callable[[], None] = lambda: None
        self.instance = 0
        self.is_running = False
        self.start()

    def start(self) -> None:
        """A new instance, which knows from the kernel list what is there."""
        self.instance += 1
        self.is_running = self._is_capturing = True
        self.table = PublishedTable(_HISTORY, self._clock.monotonic)
        self._begin_tracking()
        self._read()

    def stop(self) -> None:
        """It is gone, however it has ended."""
        self.instance += 1
        self.is_running = False

    def lose_capture(self, seconds: float) -> None:
        """The only interface goes, and is captured again after so many seconds."""
        if self.is_running and self._is_capturing:
            self._is_capturing = False
            self._begin_tracking()
            self.table.reset()
            self.published()
            self._timeline.after(seconds, self._for_this_instance(self._capture_again))

    def _capture_again(self) -> None:
        self._is_capturing = True
        self.request_list()

    def _begin_tracking(self) -> None:
        self.tracker = Tracker([PORT], _BOUNDS)
        self.tracker.kernel_confirms = True
        self._gathered_at = self._periodic_until = 0.0

    def _for_this_instance(self, event: Callable[[], None]) -> Callable[[], None]:
        return partial(self._if_same, self.instance, event)

    def _if_same(self, instance: int, event: Callable[[], None]) -> None:
        if self.is_running and self.instance == instance:
            event()

    # What arrives

    def capture(self, frames: Sequence[Frame]) -> None:
        """These pass the interface now."""
        at = self._clock.now
        for number, frame in enumerate(frames):
            for delay in self._fates(_FRAME_SECONDS + number * 0.0001):
                self._timeline.after(delay, self._for_this_instance(partial(self._observe, frame, at)))
        self._look_often()

    def report(self, kind: KernelEventKind, socket: ModelSocket, *, backup: bool = False) -> None:
        """An event of the kernel; there is none of a subflow that closes with its connection."""
        if socket.token is None:
            return
        event = KernelEvent(kind, socket.token, packed(socket.ends), backup)
        for delay in self._fates(_EVENT_SECONDS):
            self._timeline.after(delay, self._for_this_instance(partial(self._receive, event)))

    def _fates(self, usual: float) -> list[float]:
        """After how many seconds what happens now arrives, each time that it does."""
        wire, random = self.wire, self._random
        if not (wire.lost or wire.late or wire.twice):
            return [usual]
        if random.random() < wire.lost:
            return []
        late = usual + (random.random() * 0.3 if random.random() < wire.late else 0.0)
        return [late, late + 0.05] if random.random() < wire.twice else [late]

    def _observe(self, frame: Frame, at: float) -> None:
        if self._is_capturing:
            self._take(self.tracker.observe(frame.segment(), at, frame.by_proxy))

    def _receive(self, event: KernelEvent) -> None:
        if self._is_capturing:
            self._take(self.tracker.apply_kernel_event(event, self._clock.now))

    # The kernel list

    def request_list(self) -> None:
        """Read it soon, and some times after that."""
        if self._clock.now >= self._gathered_at:
            self._gathered_at = self._clock.now + _GATHER_SECONDS
            for seconds in (0.0, *_REPEAT_SECONDS):
                self._timeline.at(self._gathered_at + seconds, self._for_this_instance(self._read))

    def _look_often(self) -> None:
        """Read it once an interval, as long as it may have something new."""
        until = self._clock.now + 3 * LIST_SECONDS
        if self._periodic_until < self._clock.now:
            self._timeline.after(LIST_SECONDS, self._for_this_instance(self._read_periodically))
        self._periodic_until = until
        self._timeline.after(_ORPHAN_SECONDS, self._for_this_instance(self._expire))

    def _read_periodically(self) -> None:
        self._read()
        if self._clock.now < self._periodic_until:
            self._timeline.after(LIST_SECONDS, self._for_this_instance(self._read_periodically))

    def note_silent_change(self) -> None:
        """A path has become stalled, or is alive again: only the list tells that."""
        if self.is_running:
            self._look_often()

    def _read(self) -> None:
        if not self._is_capturing:
            return
        if self.reads_fail:
            # Without the list the capture alone counts, and the list is read again after a while.
            self.tracker.kernel_confirms = False
            self._look_often()
            return
        self.tracker.kernel_confirms = True
        listed = {
            packed(socket.ends): _listed(connection, socket)
            for connection in self._proxy.connections.values()
            for socket in connection.subflows.values()
        }
        self._take(self.tracker.apply_kernel_list(KernelList(self._clock.now, listed)))
        self._expire()

    def _expire(self) -> None:
        self._take(self.tracker.expire(self._clock.now))

    def _take(self, changes: Sequence[TableChange]) -> None:
        if self.tracker.take_kernel_list_request():
            self.request_list()
        if changes:
            self.table.publish(changes)
            self.published()


def _listed(connection: ModelConnection, socket: ModelSocket) -> ListedSubflow:
    token: Token = connection.token
    return ListedSubflow(
        token, socket.address_id, socket.backup, socket.stalled, socket.closing, is_first=socket.address_id == 0
    )
