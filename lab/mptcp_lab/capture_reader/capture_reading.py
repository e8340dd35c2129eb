"""Reads a capture file through the sniffer's tracker, and prints what the tracker reports."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mptcp_lab.capture_reader.capture_file import Damaged, read_frames
from mptcp_lab.capture_reader.capture_record import CaptureRecord
from mptcp_lab.capture_reader.encapsulation import Undecoded, find_segment
from mptcp_lab.capture_reader.stored import open_capture
from mptcp_sniffer.options import mptcp_options
from mptcp_sniffer.segment import Flag, Malformed, Segment
from mptcp_sniffer.tracker import Bounds, Tracker
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import Trust
from mptcp_throttle.rpc import Json

_UNBOUNDED: Final = Bounds(connections=10**9, half_open=10**9)
_MAX_NAMED: Final = 5


@dataclass
class _Reading:
    """How far a file was read. `undecoded` counts frames by what is in the way; `damage` is where reading ended.

    `mptcp` counts frames with MPTCP by proxy port, also of those ports that are not in `ports`.
    """

    ports: Collection[int]
    frames: int = 0
    mptcp: Counter[int] = field(default_factory=Counter)
    connections: int = 0
    undecoded: Counter[str] = field(default_factory=Counter)
    without_time: int = 0
    damage: str | None = None

    def add(self, segment: Segment) -> None:
        if _has_mptcp(segment.options):
            self.mptcp[self._proxy_port(segment)] += 1

    def _proxy_port(self, segment: Segment) -> int:
        """The proxy's port: by the SYN flag; else the port that is known, or the lower one."""
        if segment.flags & Flag.SYN:
            return segment.source.port if segment.flags & Flag.ACK else segment.destination.port
        ends = sorted((segment.source.port, segment.destination.port))
        return next((port for port in ends if port in self.ports or port in self.mptcp), ends[0])

    def as_json(self) -> dict[str, Json]:
        return {
            "frames": self.frames,
            "undecoded": dict(self.undecoded.most_common()),
            "without_time": self.without_time,
            "damage": self.damage,
        }

    def __str__(self) -> str:
        """What was not read, on a single line; empty if everything was read."""
        parts = []
        unnamed = Counter({f"on port {port}": n for port, n in self.mptcp.items() if port not in self.ports})
        if unnamed:
            named = _most_common(unnamed, "on others")
            parts.append(f"{unnamed.total()} frames with MPTCP on ports that --ports does not name ({named})")
        on_ports = self.mptcp.total() - unnamed.total()
        if on_ports and not self.connections:
            parts.append(f"{on_ports} frames with MPTCP, but no handshake that opens a connection")
        if self.undecoded:
            named = _most_common(self.undecoded, "others")
            parts.append(f"{self.undecoded.total()} of {self.frames} frames not decoded ({named})")
        if self.without_time:
            parts.append(f"{self.without_time} frames without a time")
        if self.damage is not None:
            parts.append(f"{self.damage}, after {self.frames} frames" if self.frames else self.damage)
        return "; ".join(parts)


def read_capture(path: Path, ports: Collection[int], trust: Trust) -> dict[str, Json]:
    """All connections to `ports` in a capture file, with their events, the tracker's `counters`, and the `file`.

    `path` is that of a pcap or pcapng file, compressed or not, or `-` for standard input.
    `file` has the number of `frames`, and of the `undecoded` ones by reason. Frames `without_time` count as
    simultaneous with the frame before. `damage` is what ended the reading, or None. Raises UserError if nothing could
    be read.
    """
    return _read(path, ports, trust)[0]


def print_capture(path: Path, ports: Collection[int], trust: Trust, *, as_json: bool) -> None:
    """Print `read_capture` as JSON, or one line per event; to stderr, what was not read. Raises UserError."""
    capture, reading = _read(path, ports, trust)
    if as_json:
        print(json.dumps(capture, indent=2))
    else:
        for event in capture["events"]:
            subflow = f" {event['client']}:{event['client_port']}" if "client" in event else ""
            print(f"{event['at']:.6f} {event['token']} {event['event']}{subflow} {event['detail']}".rstrip())
    if reading.damage is not None:
        raise UserError(f"{path}: {reading}", os.EX_DATAERR)
    if str(reading):
        print(f"{path}: {reading}", file=sys.stderr)


def _read(path: Path, ports: Collection[int], trust: Trust) -> tuple[dict[str, Json], _Reading]:
    record, reading = CaptureRecord(), _Reading(ports)
    tracker = Tracker(ports, _UNBOUNDED, trust, record.add)
    try:
        for segment, at in _segments(path, reading):
            tracker.expire(at)
            if segment is not None:
                tracker.observe(segment, at)
                reading.add(segment)
    except Damaged as error:
        reading.damage = str(error)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", os.EX_NOINPUT) from error
    if reading.undecoded.total() == reading.frames and str(reading):
        raise UserError(f"{path}: {reading}", os.EX_DATAERR)
    history = record.as_json()
    reading.connections = len(history["connections"])
    return {**history, "counters": dict(tracker.counters), "file": reading.as_json()}, reading


def _most_common(counter: Counter[str], remainder: str) -> str:
    most_common = counter.most_common(_MAX_NAMED)
    named = [f"{count} {what}" for what, count in most_common]
    rest = counter.total() - sum(count for _, count in most_common)
    if rest:
        named.append(f"{rest} {remainder}")
    return ", ".join(named)


def _has_mptcp(options: bytes) -> bool:
    try:
        return next(mptcp_options(options), None) is not None
    except Malformed:
        return False


def _segments(path: Path, reading: _Reading) -> Iterator[tuple[Segment | None, float]]:
    """The TCP segment of each frame, if it has one, and the time. Raises Damaged and OSError."""
    latest = 0.0
    with open_capture(path) as file:
        for link_type, data, at in read_frames(file):
            reading.frames += 1
            if at is None:
                reading.without_time += 1
            else:
                latest = at
            segment = None
            try:
                segment = find_segment(link_type, data)
            except (Malformed, Undecoded) as error:
                reading.undecoded[str(error)] += 1
            yield segment, latest
