"""Properties of `Tracker` for any sequence of segments, kernel lists and pauses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from struct import Struct

from segments import (
    CLIENT_KEY,
    KEY,
    Client,
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

from mptcp_sniffer.events import Event, EventKind
from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.kernel_list import KernelList, ListedSubflow
from mptcp_sniffer.segment import Flag, PackedEndpoint, Segment
from mptcp_sniffer.tracker import Bounds, TableChange, Tracker
from mptcp_throttle.model import Connection, Token, Trust

BOUNDS = Bounds(connections=2, half_open=2)
KEYS = (KEY, b"otherkey", b"thirdkey")
FORGED_KEY = b"forgery!"

# Few clients, so that they collide: two addresses, two ports, two initial sequence numbers.
CLIENTS = [
    Client(address, port, seq) for address, port, seq in product(("10.1.0.2", "fd00:2::2"), (1, 2), (100, 2**32 - 1))
]
PROXY_SEQUENCE = 900

# The bodies of options; the first stands for no option.
BODIES: list[bytes] = [
    b"",
    *(capable_syn(version) for version in (0, 1)),
    *(capable_synack(key, version) for key in KEYS for version in (0, 1)),
    *(capable_ack(key, version) for key in KEYS for version in (0, 1)),
    capable_ack(client_key=FORGED_KEY),
    *(join_syn(token(key, version), backup=version == 0) for key in KEYS for version in (0, 1)),
    join_syn(token(FORGED_KEY)),
    *(join_synack(key, version, address_id=version) for key in KEYS for version in (0, 1)),
    *(join_ack(key, version) for key in KEYS for version in (0, 1)),
    join_ack(client_key=FORGED_KEY),
    *(prio(backup=backup, address_id=address_id) for backup in (False, True) for address_id in (None, 0, 2)),
    remove_addr(0),
    remove_addr(1, 2),
    *(fastclose(key) for key in (CLIENT_KEY, *KEYS)),
    fail(),
    bytes([0x30, 2, 10, 1, 0, 2]) + bytes(8),  # ADD_ADDR
    bytes([0x70, 0]),  # malformed
]

# The client of a subflow that becomes live in the connection with this token must have sent one of these.
PROOFS = {
    token(key, version): [
        capable_ack(key, version),
        capable_ack(key, version, FORGED_KEY),  # a client can open a connection with any key
        join_ack(key, version),
    ]
    for key in KEYS
    for version in (0, 1)
}

_STEP = Struct("6B")


def check(data: bytes) -> None:
    """Run the program `data`: the trust in the first byte, then steps of six bytes (see `_steps`)."""
    trust = list(Trust)[data[0] % len(Trust)] if data else Trust.HANDSHAKE
    events: list[Event] = []
    tracker = Tracker([8080], BOUNDS, trust, events.append)
    table: dict[Token, Connection] = {}
    sent: defaultdict[frozenset[PackedEndpoint], bytes] = defaultdict(bytes)
    for segment, changes in _steps(tracker, data[1:]):
        for change in changes:
            if change.connection is None:
                table.pop(change.token, None)
            else:
                table[change.token] = change.connection
        _must_be_consistent(tracker, table)
        if segment is not None and trust is Trust.HANDSHAKE:
            between = frozenset((segment.source, segment.destination))
            sent[between] += segment.options
            _must_be_proved(events, sent[between])
        events.clear()


def _steps(tracker: Tracker, program: bytes) -> Iterator[tuple[Segment | None, list[TableChange]]]:
    """The lower half of `what`: a segment, a kernel list, or a pause; the upper half: the time since the last step."""
    now = 1000.0
    for what, who, a, b, c, d in _STEP.iter_unpack(program[: len(program) // _STEP.size * _STEP.size]):
        now += (what >> 4) / 16
        match what & 0x0F:
            case 0:
                now += who
                yield None, tracker.expire(now, idle_seconds=a or None)
            case 1:
                yield None, tracker.apply_kernel_list(KernelList(now - a / 64, dict(_listed(who, b, c, d))))
            case _:
                segment = _segment(CLIENTS[who % len(CLIENTS)], who >> 4, a, (b, c, d))
                yield segment, tracker.observe(segment, now)


def _segment(client: Client, oddities: int, flags: int, bodies: tuple[int, ...]) -> Segment:
    """A segment of the client or to it, with right or wrong sequence numbers.

    One that is too large by one is right if the SYN has a byte of data, which the other side has accepted.
    """
    by_proxy, wrong_sequence, wrong_acknowledgment, payload = (oddities >> bit & 1 for bit in range(4))
    options = b"".join(_option(BODIES[body % len(BODIES)]) for body in bodies)
    ours, theirs = PROXY_SEQUENCE, client.seq
    if not by_proxy:
        ours, theirs = theirs, ours
    sequence = (ours + (not flags & Flag.SYN) + wrong_sequence) % 2**32
    acknowledgment = (theirs + 1 + wrong_acknowledgment) % 2**32
    ends = client.ends
    source, destination = (ends.proxy, ends.client) if by_proxy else (ends.client, ends.proxy)
    return Segment(source, destination, sequence, acknowledgment, flags, options, payload)


def _option(body: bytes) -> bytes:
    return bytes([30, len(body) + 2]) + body if body else b""


def _listed(who: int, tokens: int, versions: int, backups: int) -> Iterator[tuple[Ends, ListedSubflow]]:
    """The listed subflows: one or two bits of each byte for each four-tuple."""
    for bit, client in enumerate(CLIENTS[::2]):
        if who >> bit & 1:
            key, version = KEYS[(tokens >> 2 * bit) % len(KEYS)], versions >> bit & 1
            yield client.ends, ListedSubflow(token(key, version), bit, bool(backups >> bit & 1))


def _must_be_consistent(tracker: Tracker, table: dict[Token, Connection]) -> None:
    sizes = tracker.sizes()
    subflows = [subflow.ends for connection in table.values() for subflow in connection.subflows]
    assert all(connection.subflows for connection in table.values()), "a connection without subflows"
    assert len(set(subflows)) == len(subflows), "a subflow of two connections"
    assert sizes["connections"] == len(table) <= BOUNDS.connections
    assert sizes["subflows"] == len(subflows)
    assert max(sizes["half_open"], sizes["orphans"]) <= BOUNDS.half_open
    # The changes must give the same table as the tracker's own, which is not public.
    known = {change.token: change.connection for change in tracker._changes(tracker._connections)}
    assert known == table


def _must_be_proved(events: list[Event], options: bytes) -> None:
    for event in events:
        if event.kind is EventKind.ESTABLISHED:
            assert any(proof in options for proof in PROOFS[event.token]), event
