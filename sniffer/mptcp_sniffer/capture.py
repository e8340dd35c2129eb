"""Captures on all interfaces of the proxy, each for as long as its interface exists and is up.

Frames come from Scapy's packet socket, with a large buffer, without promiscuous mode, and with the drop counter.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple, Self

from scapy.arch.linux import L2ListenSocket, get_last_packet_timestamp
from scapy.error import Scapy_Exception, log_runtime

from mptcp_sniffer.packet_filter import SNAP_BYTES, signalling_filter
from mptcp_sniffer.segment import Segment, parse_ethernet, parse_ip
from mptcp_sniffer.stop import Stop
from mptcp_throttle.errors import UserError
from mptcp_throttle.linux.cbpf import attach_filter
from mptcp_throttle.linux.link_header import LinkHeader, link_header_of
from mptcp_throttle.ports import Ports
from mptcp_throttle.service import lacks_capability

# include/uapi/linux/if_packet.h, if_ether.h and asm-generic/socket.h; the socket module names none of these.
_SOL_PACKET: Final = 263
_ETH_P_ALL: Final = 3
_PACKET_STATISTICS: Final = 6
_SO_RCVBUFFORCE: Final = 33
_TPACKET_STATS: Final = Struct("II")

# 5000 frames are some 350 connections of two subflows. Between two counts the rate may change.
_FAST_PER_SECOND: Final = 5000
_COUNT_SECONDS: Final = 0.05
_MOST_FRAMES: Final = 1000
_GATHER_SECONDS: Final = 0.004
# Between checks for renamed interfaces: a packet socket stays with its interface when that is renamed.
_NAMES_SECONDS: Final = 1.0

_log = logging.getLogger("mptcp-sniffer")
# Scapy warns that it cannot guess the link type from the protocol; the interface tells it.
log_runtime.setLevel(logging.ERROR)

_PARSERS: Final = {LinkHeader.ETHERNET: parse_ethernet, LinkHeader.RAW_IP: parse_ip}


class CapturedFrame(NamedTuple):
    """A frame, when the kernel received it (monotonic seconds), and whether this host has sent it."""

    data: bytes
    at: float
    outgoing: bool


class InterfaceAbsent(UserError):
    """The interface does not exist, or it is down."""


class CaptureLost(Exception):
    """The interface went down, or was removed, while it was captured."""


class _ListenSocket(L2ListenSocket):  # type: ignore[misc]
    """Scapy's packet socket, whose `recv_raw` does not tell the direction of a frame (packet(7), PACKET_OUTGOING)."""

    def receive(self) -> tuple[bytes, float, bool]:
        """The next frame, its time stamp in seconds since the epoch, and whether it is outgoing. Raises OSError."""
        data, address, stamp = self._recv_raw(self.ins, SNAP_BYTES)
        if stamp is None:
            stamp = get_last_packet_timestamp(self.ins)
        return data, stamp, address[2] == socket.PACKET_OUTGOING


class Capture:
    """Captures on `interface` what `signalling_filter` passes for `ports`; needs CAP_NET_RAW.

    `parse` makes a segment of a captured frame, according to the link type of the interface. Raises UserError if the
    capture cannot be opened, InterfaceAbsent if only because the interface is absent or down.
    """

    def __init__(self, interface: str, ports: Ports, buffer_bytes: int) -> None:
        try:
            # With protocol 0 a packet socket receives nothing (packet(7)), so no frame precedes the filter.
            self._socket = _ListenSocket(iface=interface, type=0, promisc=False, nofilter=True)
            with ExitStack() as on_failure:
                on_failure.callback(self._socket.close)
                self._set_buffer(buffer_bytes)
                self._socket.ins.setblocking(False)
                self.parse = self._start(interface, ports)
                on_failure.pop_all()
        except PermissionError as error:
            raise lacks_capability("CAP_NET_RAW") from error
        except (OSError, Scapy_Exception, ValueError) as error:
            kind = InterfaceAbsent if _is_absent(interface, error) else UserError
            raise kind(f"{interface}: cannot be captured: {error}", os.EX_UNAVAILABLE) from error
        self._interface = interface
        self._dropped = 0
        self._latest = time.monotonic()
        self._count, self._counted_since = 0, self._latest
        self.is_fast = False
        """Whether thousands of frames arrive per second."""

    def _start(self, interface: str, ports: Ports) -> Callable[[bytes], Segment | None]:
        """Attach the filter for the link type and begin to receive; returns the parser for the link type."""
        hardware_type = self._socket.ins.getsockname()[3]
        link = link_header_of(hardware_type)
        if link is None:
            raise UserError(f"{interface}: link type {hardware_type} is not supported", os.EX_UNAVAILABLE)
        attach_filter(self._socket.ins, signalling_filter(ports, link=link))
        self._socket.ins.bind((interface, _ETH_P_ALL))
        self._index = socket.if_nametoindex(interface)
        # bind() succeeds on an interface that is down; only SO_ERROR tells.
        pending = self._socket.ins.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if pending:
            raise OSError(pending, os.strerror(pending))
        return _PARSERS[link]

    def _set_buffer(self, buffer_bytes: int) -> None:
        try:
            self._socket.ins.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        except PermissionError:
            self._socket.ins.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        # The kernel doubles the value that is set, for its own overhead (socket(7)).
        granted = self._socket.ins.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        if granted < buffer_bytes:
            _log.warning(
                "capture buffer is %d bytes instead of %d: raise net.core.rmem_max, or grant CAP_NET_ADMIN",
                granted,
                buffer_bytes,
            )

    def has_its_name(self) -> bool:
        """Whether the interface that is captured still has the name by which it was opened."""
        try:
            return socket.if_nametoindex(self._interface) == self._index
        except OSError:
            return False

    def fileno(self) -> int:
        """The descriptor of the packet socket, to wait for frames."""
        return int(self._socket.ins.fileno())

    def frames(self) -> list[CapturedFrame]:
        """The frames that have arrived, up to a thousand. Raises CaptureLost."""
        frames = list(islice(iter(self._next_frame, None), _MOST_FRAMES))
        self._count += len(frames)
        seconds = time.monotonic() - self._counted_since
        if seconds > _COUNT_SECONDS:
            self.is_fast = self._count > _FAST_PER_SECOND * seconds
            self._count, self._counted_since = 0, time.monotonic()
        return frames

    def _next_frame(self) -> CapturedFrame | None:
        try:
            data, stamp, outgoing = self._socket.receive()
        except BlockingIOError:
            return None
        except OSError as error:
            raise CaptureLost(error.strerror) from error
        now = time.monotonic()
        # The kernel's stamp is of the wall clock, which may have been set since then: frames come in order.
        at = now - (time.time() - stamp)
        self._latest = min(max(at, self._latest), now)
        return CapturedFrame(data, self._latest, outgoing)

    def dropped(self) -> int:
        """Frames the kernel dropped since the capture began because the buffer was full."""
        with suppress(OSError):  # another thread may have closed the capture
            statistics = self._socket.ins.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _TPACKET_STATS.size)
            # Each reading resets the kernel's counters.
            self._dropped += _TPACKET_STATS.unpack(statistics)[1]
        return self._dropped

    def close(self) -> None:
        """End the capture."""
        self._socket.close()


def _is_absent(interface: str, error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENETDOWN:
        return True
    try:
        socket.if_nametoindex(interface)
    except OSError:
        return True
    return False


class InterfaceLost(NamedTuple):
    """An interface went down or was removed; until it is captured again, its traffic is unknown."""

    name: str
    why: str


class Seen(NamedTuple):
    """Frames of all interfaces in the order of their time stamps, and the interfaces that were lost meanwhile."""

    frames: list[tuple[Capture, CapturedFrame]]
    lost: list[InterfaceLost]


class Captures:
    """Captures on `interfaces` by `start`, which opens one capture and raises UserError; `stop` ends waits for frames.

    For a single thread, except `captured`, `missing` and `dropped`, which any thread may use.
    """

    def __init__(self, interfaces: tuple[str, ...], start: Callable[[str], Capture], stop: Stop) -> None:
        self._interfaces = interfaces
        self._start = start
        self._open: dict[str, Capture] = {}
        self._readable = select.poll()
        self._stop = stop
        self._readable.register(stop, select.POLLIN)
        self._dropped_before = 0
        self._names_due = 0.0

    @property
    def captured(self) -> tuple[str, ...]:
        """The interfaces that are captured now."""
        captures = self._open
        return tuple(name for name in self._interfaces if name in captures)

    @property
    def missing(self) -> tuple[str, ...]:
        """The interfaces that are not captured now."""
        captures = self._open
        return tuple(name for name in self._interfaces if name not in captures)

    def dropped(self) -> int:
        """Frames that the kernel dropped because a buffer was full."""
        return self._dropped_before + sum(capture.dropped() for capture in self._open.values())

    def open_missing(self) -> tuple[list[str], dict[str, UserError]]:
        """Capture on the missing interfaces. Returns those opened, and by name why the rest cannot be captured."""
        opened, refusals = [], {}
        for name in self.missing:
            try:
                capture = self._start(name)
            except UserError as error:
                refusals[name] = error
                continue
            self._open = {**self._open, name: capture}
            self._readable.register(capture, select.POLLIN)
            opened.append(name)
        return opened, refusals

    def frames(self, seconds: float, gather: float = 0.0) -> Seen:
        """The frames that have arrived, up to a thousand per interface. Closes the captures that are lost.

        Sleeps for `gather` seconds, in which frames gather, then waits up to `seconds` for the first one: to be woken
        for a frame takes longer than to process it. While thousands arrive per second, it sleeps for 4 ms instead.
        """
        if any(capture.is_fast for capture in self._open.values()):
            time.sleep(_GATHER_SECONDS)
        else:
            self._stop.wait(gather)
            self._readable.poll(seconds * 1000)
        now = time.monotonic()
        are_names_due = now >= self._names_due
        if are_names_due:
            self._names_due = now + _NAMES_SECONDS
        seen = Seen([], [])
        for name, capture in self._open.items():
            try:
                seen.frames.extend((capture, frame) for frame in capture.frames())
            except CaptureLost as error:
                seen.lost.append(InterfaceLost(name, str(error)))
                continue
            if are_names_due and not capture.has_its_name():
                seen.lost.append(InterfaceLost(name, "renamed or removed"))
        for lost in seen.lost:
            self._close(lost.name)
        if len(self._interfaces) > 1:
            seen.frames.sort(key=lambda pair: pair[1].at)
        return seen

    def _close(self, name: str) -> None:
        capture = self._open[name]
        self._open = {open_name: kept for open_name, kept in self._open.items() if open_name != name}
        self._dropped_before += capture.dropped()
        self._readable.unregister(capture)
        capture.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.captured:
            self._close(name)
