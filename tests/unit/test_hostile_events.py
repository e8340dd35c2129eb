"""Honest and hostile events in any order: whoever is capped has a live preferred path of the kernel's, and the reverse.

`MODEL_SECONDS=600 .venv/bin/pytest tests/unit/test_hostile_events.py` goes on for 10 minutes with random examples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from examples import ETHERNET, WIFI, network
from hostile_wire import (
    KEYS,
    LATE,
    LATEST_FRAME,
    REGAINED,
    SLOWEST_LIST,
    WRONG_KEY,
    Connection,
    Fate,
    Fates,
    HostileWire,
    Subflow,
    endpoint,
    key_of,
)
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
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
    token,
)

from mptcp_sniffer.segment import Flag, PackedEndpoint

SECONDS: Final = float(os.environ.get("MODEL_SECONDS", "0"))

LTE: Final = network("lte", 4, 3, cap="500kbit", limit="2mbit")
CLIENTS: Final = [
    endpoint(address, port)
    for address, port in (
        ("10.1.0.2", 1),
        ("10.1.0.2", 2),
        ("10.1.0.3", 3),
        ("10.2.0.2", 4),
        ("10.2.0.2", 5),
        ("10.2.0.3", 6),
        ("10.4.0.2", 7),
    )
]
OVER_ETHERNET, OVER_WIFI = CLIENTS[0], CLIENTS[3]

CLIENT: Final = st.sampled_from(CLIENTS)
WHICH: Final = st.integers(0, 7)
FATES: Final = st.sampled_from([(0.0,), (None,)]) | st.lists(
    st.sampled_from([0.0, 0.001, 0.03, LATEST_FRAME, None]), min_size=1, max_size=4
)
ENDS: Final = st.sampled_from(
    ["fin", "fin of the proxy", "rst", "rst of the proxy", "remove address", "fast close", "fall back", "silent"]
)
PAUSE: Final = st.sampled_from([0.001, 0.015, 0.12, 0.7, 2.0, 5.0, 80.0])
ADD_ADDR: Final = bytes([0x30, 9, 10, 2, 0, 9]) + bytes(8)

FORGED: Final[dict[str, Callable[[bytes], tuple[int, bytes]]]] = {
    "FIN": lambda _: (Flag.FIN | Flag.ACK, b""),
    "RST": lambda _: (Flag.RST, tcprst(3)),
    "MP_PRIO, backup": lambda _: (Flag.ACK, prio(backup=True)),
    "MP_PRIO": lambda _: (Flag.ACK, prio(backup=False)),
    "REMOVE_ADDR": lambda _: (Flag.ACK, remove_addr(*range(8))),
    "MP_FAIL": lambda _: (Flag.ACK, fail()),
    "ADD_ADDR": lambda _: (Flag.ACK, ADD_ADDR),
    "MP_FASTCLOSE": lambda key: (Flag.ACK, fastclose(key)),
    "MP_CAPABLE of a SYN": lambda _: (Flag.SYN, capable_syn()),
    "MP_JOIN of a SYN": lambda key: (Flag.SYN, join_syn(token(key))),
    "MP_CAPABLE of a SYN/ACK": lambda key: (Flag.SYN | Flag.ACK, capable_synack(key)),
    "MP_CAPABLE": lambda key: (Flag.ACK, capable_ack(key)),
    "MP_JOIN": lambda key: (Flag.ACK, join_ack(key)),
}
"""What the kernel ignores; clients know the keys of their connections."""

FORGERY: Final = st.sampled_from(sorted(FORGED))
TIMES: Final = st.sampled_from([1, 30])
QUIET: Final = st.sampled_from([0.0, LATE + 0.1])

HANDSHAKES: Final[dict[str, Callable[[bytes], tuple[bytes, ...]]]] = {
    "MP_CAPABLE": lambda key: (capable_syn(), capable_synack(key), capable_ack(key)),
    "MP_JOIN": lambda key: (join_syn(token(key)), join_synack(key), join_ack(key)),
}


class HostileEvents(RuleBasedStateMachine):
    @initialize(
        half_open=st.sampled_from([2, 100]),
        list_takes=st.sampled_from([0.0, SLOWEST_LIST]),
        event=st.sampled_from([0.015, None]),
        backup=st.booleans(),
    )
    def begin(self, half_open: int, list_takes: float, event: Fate, backup: bool) -> None:
        self.wire = HostileWire((WIFI, ETHERNET, LTE), half_open, list_takes, event)
        self.wire.advance(0.5)
        self.connect(backup=backup)

    def teardown(self) -> None:
        if hasattr(self, "wire"):
            self.wire.advance(REGAINED + 1.0)

    def connect(self, *, backup: bool = False) -> None:
        self.wire.open(OVER_ETHERNET, [0.0])
        for connection in self.wire.connections.values():
            self.wire.join(connection, OVER_WIFI, [0.0], backup=backup, accepted=True)
        self.wire.advance(0.5)

    def chosen(self, which: int) -> tuple[Connection, Subflow]:
        """A subflow of the kernel's."""
        while not (live := self.wire.live()):
            self.connect()
        return live[which % len(live)]

    @rule(seconds=PAUSE)
    def wait(self, seconds: float) -> None:
        self.wire.advance(seconds)

    @rule()
    def lose_capture(self) -> None:
        self.wire.lose_capture()

    @rule(client=CLIENT, fates=FATES)
    def open(self, client: PackedEndpoint, fates: Fates) -> None:
        if self.wire.is_free(client):
            self.wire.open(client, fates)

    @rule(which=WHICH, client=CLIENT, fates=FATES, backup=st.booleans(), accepted=st.sampled_from([True, True, False]))
    def join(self, which: int, client: PackedEndpoint, fates: Fates, backup: bool, accepted: bool) -> None:
        connection, _ = self.chosen(which)
        if self.wire.is_free(client):
            self.wire.join(connection, client, fates, backup=backup, accepted=accepted)

    @rule(which=WHICH, fates=FATES, how=ENDS)
    def end(self, which: int, fates: Fates, how: str) -> None:
        self.wire.end(*self.chosen(which), how, fates)

    @rule(which=WHICH, fates=FATES, backup=st.booleans(), by_proxy=st.sampled_from([False, False, True]))
    def change_priority(self, which: int, fates: Fates, backup: bool, by_proxy: bool) -> None:
        self.wire.change_priority(*self.chosen(which), fates, backup=backup, by_proxy=by_proxy)

    @rule(which=WHICH, seconds=PAUSE, fates=FATES, quiet=QUIET)
    def close_with_queue(self, which: int, seconds: float, fates: Fates, quiet: float) -> None:
        """A capped subflow, if there is one."""
        self.wire.advance(quiet)
        live = self.wire.live()
        capped = [(c, subflow) for c, subflow in live if key_of(c, subflow) in self.wire.capped()]
        chosen = capped[which % len(capped)] if capped else self.chosen(which)
        self.wire.close_with_queue(*chosen, seconds, fates)

    @rule(which=WHICH, stalled=st.booleans())
    def stall(self, which: int, stalled: bool) -> None:
        self.wire.stall(self.chosen(which)[1], stalled=stalled)

    @rule(which=WHICH, forged=FORGERY, fates=FATES, times=TIMES, quiet=QUIET)
    def forge(self, which: int, forged: str, fates: Fates, times: int, quiet: float) -> None:
        """In the name of a client, on its live subflow."""
        self.wire.advance(quiet)
        connection, subflow = self.chosen(which)
        self.send(subflow.client, FORGED[forged](connection.key), fates, times)

    @rule(
        client=st.none() | CLIENT,
        forged=FORGERY,
        key=st.sampled_from([KEYS[0], WRONG_KEY]),
        fates=FATES,
        as_proxy=st.booleans(),
        times=TIMES,
        quiet=QUIET,
    )
    def forge_elsewhere(
        self,
        client: PackedEndpoint | None,
        forged: str,
        key: bytes,
        fates: Fates,
        as_proxy: bool,
        times: int,
        quiet: float,
    ) -> None:
        """On what may be no subflow, or has been one until a moment ago."""
        self.wire.advance(quiet)
        self.send(client or self.wire.last_ended or CLIENTS[0], FORGED[forged](key), fates, times, as_proxy=as_proxy)

    def send(
        self, client: PackedEndpoint, segment: tuple[int, bytes], fates: Fates, times: int, *, as_proxy: bool = False
    ) -> None:
        for _ in range(times):
            self.wire.forge(client, *segment, fates, as_proxy=as_proxy)
            self.wire.advance(0.1 if times > 1 else 0.0)

    @rule(
        which=WHICH,
        client=CLIENT,
        what=st.sampled_from(["half-close", "retransmission", "guess", *sorted(HANDSHAKES)]),
        fates=FATES,
    )
    def try_in_vain(self, which: int, client: PackedEndpoint, what: str, fates: Fates) -> None:
        connection, subflow = self.chosen(which)
        if what == "half-close":
            self.wire.close_half(subflow, fates)
        elif what == "retransmission":
            self.wire.retransmit(connection, subflow, fates)
        elif what in HANDSHAKES:
            self.wire.forge_handshake(client, HANDSHAKES[what](connection.key), fates)
        elif self.wire.is_free(client):
            self.wire.guess(connection, client, fates)


def test_hostile_events_cap_no_subflow_wrongly_and_let_none_escape() -> None:
    shared = settings(
        deadline=None,
        stateful_step_count=30,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    run_state_machine_as_test(HostileEvents, settings=settings(shared, max_examples=100, derandomize=True))
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        run_state_machine_as_test(HostileEvents, settings=settings(shared, max_examples=500, database=None))
