"""The proxy's host as truth: connections and their sockets, what these carry, and the kernel objects of the daemon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from bursts import TokenBuckets
from model_kernel import ModelKernel, throttled
from model_steering import ModelSteering
from model_uplinks import ModelUplinks
from segments import PROXY, PROXY6, token
from timeline import VirtualClock

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import Ailment, FourTuple, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals, SteeredTotals

if TYPE_CHECKING:
    from byte_mirror import Company, Place

PORT: Final = 8080
SEGMENT_BYTES: Final = 1400
"""Of payload, in each full segment."""

_UNSENT_BYTES: Final = 64 << 10
"""Of a socket in which data waits: more than it takes to count."""

_LONGEST_SECONDS: Final = 60.0
"""For which HTB keeps time (`mbuffer`)."""

_WIRE_PART: Final = 0.93
"""Of what HTB counts, which has headers: payload, at least."""

_IP: Final = {4: 20, 6: 40}
_TCP: Final = 20 + 12
_DSS_DATA, _DSS_ACK = 28, 12
_SYN_ACK, _SYN_ACK_MPTCP = 40, 14
_SYN_LONGER_THAN_ACK, _MPTCP_OF_SYN_AND_ACK = 8, 30


@dataclass
class Link:
    """What a client's path can carry, in bytes per second."""

    down: float
    up: float


@dataclass(eq=False)
class ModelSocket:
    """A socket of the proxy, and the IP bytes that have passed its wire.

    `version` is that of IP, `place` where a configuration has its client. `closing`: the proxy has closed it, and it
    still sends. `wanted` and `offered` are the rates (bytes/s) at which its client would receive and send.
    """

    ends: FourTuple
    cookie: int
    token: Token | None
    link: Link
    since: float
    address_id: int = 0
    sequence: int = 0
    backup: bool = False
    stalled: bool = False
    closing: bool = False
    ailment: Ailment | None = None
    wanted: float = 0.0
    offered: float = 0.0
    sent: int = 0
    received: int = 0
    segments_out: int = 0
    segments_in: int = 2
    data_out: int = 0
    data_in: int = 0
    ip_sent: int = 0
    ip_received: int = 0
    carried_until: float = 0.0
    part_sent: float = 0.0
    part_received: float = 0.0
    place: tuple[Company, Place | None] | None = None
    version: int = 4

    def __post_init__(self) -> None:
        self.version = self.ends.client.address.version
        self.carried_until = self.since
        ip, is_mptcp = _IP[self.version], self.token is not None
        # The SYN/ACK; the SYN and the ACK that follows.
        self.ip_sent = ip + _SYN_ACK + is_mptcp * _SYN_ACK_MPTCP
        self.ip_received = 2 * (ip + _TCP) + _SYN_LONGER_THAN_ACK + is_mptcp * _MPTCP_OF_SYN_AND_ACK

    def send(self, payload: int) -> int:
        """The proxy sends so many bytes of payload, and the client acknowledges them; the IP bytes sent."""
        if not payload:
            return 0
        data, acks = -(-payload // SEGMENT_BYTES), 1 + payload // (2 * SEGMENT_BYTES)
        self.sent, self.data_out = self.sent + payload, self.data_out + data
        self.segments_out, self.segments_in = self.segments_out + data, self.segments_in + acks
        ip, is_mptcp = _IP[self.version] + _TCP, self.token is not None
        on_wire = payload + data * (ip + is_mptcp * _DSS_DATA)
        self.ip_sent += on_wire
        self.ip_received += acks * (ip + is_mptcp * _DSS_ACK)
        return on_wire

    def receive(self, payload: int) -> None:
        """The client sends so many bytes of payload, and the proxy acknowledges them."""
        if not payload:
            return
        data, acks = -(-payload // SEGMENT_BYTES), 1 + payload // (2 * SEGMENT_BYTES)
        self.received, self.data_in = self.received + payload, self.data_in + data
        self.segments_in, self.segments_out = self.segments_in + data, self.segments_out + acks
        ip, is_mptcp = _IP[self.version] + _TCP, self.token is not None
        self.ip_received += payload + data * (ip + is_mptcp * _DSS_DATA)
        self.ip_sent += acks * (ip + is_mptcp * _DSS_ACK)

    @property
    def unsent(self) -> int:
        """The bytes that wait in it, if its path is too slow for what its client would receive."""
        is_slow = self.stalled or self.link.down < self.wanted
        return _UNSENT_BYTES if is_slow and not self.backup else 0

    def state(self, pace: int | None) -> SocketState:
        """As inet_diag lists it, with this pace."""
        return SocketState(0, pace, self.totals, 0.04, self.cookie, self.token is not None, self.unsent)

    @property
    def totals(self) -> SocketTotals:
        """As the kernel counts."""
        return SocketTotals(
            self.sent, 0, self.received, self.segments_out, self.segments_in, self.data_out, self.data_in
        )


class Flow(NamedTuple):
    """What a socket sends, through the class with this number (0: none), and receives, in bytes per second."""

    socket: ModelSocket
    minor: int
    down: float
    up: float


@dataclass
class ModelConnection:
    """A connection of the kernel, with its subflows by the client's port."""

    key: bytes
    token: Token
    subflows: dict[FourTuple, ModelSocket] = field(default_factory=dict)


class RefusingKernel(ModelKernel):
    """The model of unit tests, which also ends by itself what ends with its socket, and counts the bytes of classes."""

    def __init__(self) -> None:
        super().__init__(KernelState(pacing=PacingState({})))
        self.classifier = "nft"
        self.refuses_reading = False
        self.bytes_by_class: dict[int, int] = {}
        self._seen: KernelState | None = None
        self._throttled: dict[FourTuple, Rate] = {}
        self._minors: dict[FourTuple, int] = {}

    @property
    def throttled(self) -> dict[FourTuple, Rate]:
        self._look()
        return self._throttled

    @property
    def minors(self) -> dict[FourTuple, int]:
        """The class to which each socket's packets are led."""
        self._look()
        return self._minors

    @property
    def classes(self) -> Mapping[int, Rate | None]:
        """The rate of each class."""
        return {} if self.state.qdisc.htb is None else self.state.qdisc.htb.classes

    def _look(self) -> None:
        """A state never changes: what follows from it is computed once."""
        if self._seen is not self.state:
            self._seen, self._throttled, self._minors = self.state, throttled(self.state), self.adopt()

    def _fail_read(self) -> None:
        if self.refuses_reading:
            raise KernelError("read", 105)
        super()._fail_read()

    def adopt(self) -> dict[FourTuple, int]:
        """The assignments that an earlier instance has left."""
        return {ends: minor for of in self.state.assignments.values() for ends, minor in of.assignments.items()}


class ModelProxy:
    """The sockets of the proxy, and the kernel as the daemon sees it.

    `changed` is called after each change of the connections, `flowed` with the bytes that sockets have sent through
    classes with a burst.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._cookies = itertools.count(1)
        self._ports = itertools.count(10_000)
        self.kernel = RefusingKernel()
        self.uplinks = ModelUplinks()
        self.steering = ModelSteering()
        self.connections: dict[Token, ModelConnection] = {}
        self.sockets: dict[FourTuple, ModelSocket] = {}
        self.reads_fail = False
        self._carried_at = -math.inf
        self.is_heard = False
        """Whether there is a daemon that the kernel program can tell of a closed socket."""
        self.changed: Callable[[], None] = lambda: None
        self.ended: Callable[[ModelSocket], None] = lambda _: None
        self.flowed: Callable[[Mapping[FourTuple, int], float], None] = lambda *_: None
        self._tokens = TokenBuckets()

    # Clients

    def ends(self, address: str) -> FourTuple:
        """Those of a new socket of a client."""
        port = 10_000 + next(self._ports) % 50_000
        proxy = PROXY6 if ":" in address else PROXY
        return FourTuple.of(ip_address(address).packed, port, ip_address(proxy).packed, PORT)

    def open(self, address: str, link: Link, key: bytes | None, sequence: int) -> ModelSocket:
        """A client opens a connection; without a key it is one without MPTCP."""
        ends = self.ends(address)
        made = None if key is None else token(key)
        socket = ModelSocket(ends, next(self._cookies), made, link, self._clock.now, sequence=sequence)
        if key is not None and made is not None:
            self.connections[made] = ModelConnection(key, made, {ends: socket})
        self.sockets[ends] = socket
        self.changed()
        return socket

    def join(
        self, connection: ModelConnection, address: str, link: Link, sequence: int, *, backup: bool
    ) -> ModelSocket:
        """A client joins a connection."""
        ends, cookie = self.ends(address), next(self._cookies)
        socket = ModelSocket(
            ends, cookie, connection.token, link, self._clock.now, len(connection.subflows) + 1, sequence
        )
        socket.backup = backup
        connection.subflows[ends] = self.sockets[ends] = socket
        self.changed()
        return socket

    def end(self, socket: ModelSocket) -> None:
        """A socket closes. The kernel program tells what it has carried, if there is a daemon that hears it."""
        self.carry()
        self.set_ailment(socket, None)
        del self.sockets[socket.ends]
        if socket.token is not None:
            connection = self.connections[socket.token]
            del connection.subflows[socket.ends]
            if not connection.subflows:
                del self.connections[socket.token]
        if self.is_heard:
            self.kernel.closed.append(ClosedSubflow(socket.token, socket.ends, socket.cookie, socket.totals))
        self.ended(socket)
        self.changed()

    def set_ailment(self, socket: ModelSocket, ailment: Ailment | None) -> None:
        """The kernel program sees that a path is sick, or healthy again."""
        socket.ailment = ailment
        if ailment is None:
            self.kernel.sick.pop(socket.ends, None)
        else:
            self.kernel.sick[socket.ends] = ailment

    def lose_power(self) -> None:
        """All sockets and kernel objects go without a word."""
        self.connections.clear()
        self.sockets.clear()
        self.kernel.state = KernelState(pacing=PacingState({}))
        self.kernel.bytes_by_class.clear()
        self.kernel.closed.clear()
        self.kernel.sick.clear()
        self.uplinks.release()
        self.steering.caps.clear()
        self.changed()

    def forget_calls(self) -> None:
        """The models note each call for tests of other kinds."""
        for calls in (self.kernel.applied, self.kernel.tried, self.uplinks.calls, self.uplinks.tried):
            calls.clear()

    # What flows

    def carry(self) -> None:
        """Let all sockets carry what they do until now. Called before anything changes."""
        if not self.sockets or self._carried_at == self._clock.now:
            return
        passed, self._carried_at = self._clock.now - self._carried_at, self._clock.now
        flowed: dict[FourTuple, int] = {}
        flows = list(self._flows())
        parts = self._take_tokens(flows, passed)
        for socket, minor, down, up in flows:
            seconds, socket.carried_until = self._clock.now - socket.carried_until, self._clock.now
            socket.part_sent += down * parts.get(minor, 1.0) * seconds
            socket.part_received += up * seconds
            sent, received = int(socket.part_sent), int(socket.part_received)
            socket.part_sent, socket.part_received = socket.part_sent - sent, socket.part_received - received
            on_wire = socket.send(sent)
            socket.receive(received)
            if minor in parts:
                flowed[socket.ends] = on_wire
            if minor:
                counted = self.kernel.bytes_by_class
                counted[minor] = counted.get(minor, 0) + on_wire
        if flowed:
            self.flowed(flowed, passed)

    def _take_tokens(self, flows: Iterable[Flow], seconds: float) -> Mapping[int, float]:
        """Let classes with a burst carry what they may: which part of it each does."""
        classes = self.kernel.classes
        if not any(rate is not None and rate.burst for rate in classes.values()):
            return {}
        wanted: dict[int, float] = {}
        for socket, minor, down, _ in flows:
            added = down * (self._clock.now - socket.carried_until) / _WIRE_PART
            wanted[minor] = wanted.get(minor, 0.0) + added
        return self._tokens.take(classes, wanted, min(seconds, _LONGEST_SECONDS))

    def _flows(self) -> Iterator[Flow]:
        """What all sockets carry now."""
        throttled, uplinks, minors = self.kernel.throttled, self.uplinks.throttled, self.kernel.minors
        if not (minors or uplinks):
            yield from (Flow(socket, 0, *self._demand(socket)) for socket in self.sockets.values())
            return
        active: dict[int, int] = {}
        for ends, minor in minors.items():
            present = self.sockets.get(ends)
            if present is not None and present.wanted:
                active[minor] = active.get(minor, 0) + 1
        for ends, socket in self.sockets.items():
            down, up = self._demand(socket)
            minor, uplink = minors.get(ends, 0), uplinks.get(ends)
            rate = throttled.get(ends) if minor else None
            if rate is not None and not rate.burst:
                # HTB counts headers, too.
                down = min(down, _WIRE_PART * rate.bits_per_second / 8 / max(active.get(minor, 1), 1))
            if uplink is not None:
                up = min(up, uplink.rate.bits_per_second / 8)
            yield Flow(socket, minor, down, up)

    def _demand(self, socket: ModelSocket) -> tuple[float, float]:
        """At which it would receive and send without throttling."""
        if socket.stalled or (socket.backup and self._has_regular(socket)):
            return 0.0, 0.0
        return min(socket.wanted, socket.link.down), min(socket.offered, socket.link.up)

    def _has_regular(self, socket: ModelSocket) -> bool:
        if socket.token is None:
            return False
        others = self.connections[socket.token].subflows.values()
        return any(not other.backup and not other.stalled for other in others)

    # What the daemon reads

    def read(self, *, on_all_ports: bool = False) -> dict[FourTuple, SocketState]:  # noqa: ARG002
        """The sockets as inet_diag lists them."""
        if self.reads_fail:
            raise KernelError("inet_diag", 105)
        self.carry()
        paces: Mapping[FourTuple, int] = self.kernel.state.pacing.paces or {}
        return {
            ends: SocketState(
                0, paces.get(ends), socket.totals, 0.04, socket.cookie, socket.token is not None, socket.unsent
            )
            for ends, socket in self.sockets.items()
            if not socket.closing
        }

    def class_bytes(self) -> dict[int, int]:
        """What each class has counted."""
        return dict(self.kernel.bytes_by_class)

    def acknowledged(self) -> dict[FourTuple, int]:
        """What the program for uplinks has seen acknowledged."""
        return {ends: self.sockets[ends].received for ends in self.uplinks.throttled if ends in self.sockets}

    def steered(self) -> dict[FourTuple, SteeredTotals]:
        """Nothing is counted by steering."""
        return {}
