"""`mptcp-sniffer --read FILE`: what the sniffer would have published for a capture file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from scapy.error import Scapy_Exception
from scapy.utils import RawPcapNgReader, RawPcapReader

from mptcp_sniffer.history import History
from mptcp_sniffer.segment import Malformed, Segment, parse_cooked, parse_cooked_v2, parse_ethernet, parse_ip
from mptcp_sniffer.tracker import Bounds, Tracker
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import Trust
from mptcp_throttle.rpc import Json

# Link-layer header types, pcap-linktype(7).
_PARSERS: Final[dict[int, Callable[[bytes], Segment | None]]] = {
    1: parse_ethernet,
    12: parse_ip,
    14: parse_ip,
    101: parse_ip,
    113: parse_cooked,
    228: parse_ip,
    229: parse_ip,
    276: parse_cooked_v2,
}

_UNBOUNDED: Final = Bounds(connections=10**9, half_open=10**9)


def read_capture(path: Path, ports: Sequence[int], trust: Trust) -> dict[str, Json]:
    """The history of all connections to `ports` in a pcap or pcapng file, and the tracker's `counters`.

    Raises UserError if the file cannot be read or has a link type other than Ethernet, Linux cooked or raw IP.
    """
    history = History()
    tracker = Tracker(ports, _UNBOUNDED, trust, history.record)
    for segment, at in _segments(path, tracker):
        tracker.expire(at)
        tracker.observe(segment, at)
    return {**history.as_json(), "counters": dict(tracker.counters)}


def print_capture(path: Path, ports: Sequence[int], trust: Trust, *, as_json: bool) -> None:
    """Print `read_capture` as JSON, or one line per event. Raises UserError."""
    capture = read_capture(path, ports, trust)
    if as_json:
        print(json.dumps(capture, indent=2))
        return
    for event in capture["events"]:
        subflow = f" {event['client']}:{event['client_port']}" if "client" in event else ""
        print(f"{event['at']:.6f} {event['token']} {event['event']}{subflow} {event['detail']}".rstrip())


def _segments(path: Path, tracker: Tracker) -> Iterator[tuple[Segment, float]]:
    try:
        # Given a path, Scapy would not close a file that it cannot read.
        with path.open("rb") as file, RawPcapReader(file) as reader:
            for frame, metadata in reader:
                if isinstance(reader, RawPcapNgReader):
                    link_type = metadata.linktype
                    at = ((metadata.tshigh << 32) + metadata.tslow) / metadata.tsresol
                else:
                    link_type = reader.linktype
                    at = metadata.sec + metadata.usec / (1e9 if reader.nano else 1e6)
                parse = _PARSERS.get(link_type)
                if parse is None:
                    known = "Ethernet, Linux cooked v1 and v2, raw IP"
                    raise UserError(f"{path}: link type {link_type} is not supported; allowed: {known}", os.EX_DATAERR)
                try:
                    segment = parse(frame)
                except Malformed:
                    tracker.counters["malformed"] += 1
                    continue
                if segment is not None:
                    yield segment, at
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read: {reason}", os.EX_NOINPUT) from error
    except Scapy_Exception as error:
        raise UserError(f"{path}: is not a pcap or pcapng file: {error}", os.EX_DATAERR) from error
