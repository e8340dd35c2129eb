"""The sums of access networks and clients, brought up to date at each observation, and their history."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from mptcp_throttle.model import FourTuple
from mptcp_throttle.proxies import ONE_PROXY, Proxies
from mptcp_throttled.accounting.history import FLUSH_SECONDS, Account, History, Kind
from mptcp_throttled.accounting.meter import LiveSubflow, Meter
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.locator import Locators
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SteeredTotals, Traffic

_MAX_CLOSED: Final = 100_000

RTT_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds, in seconds, of the ranges in which RTTs are counted; one range more is above them."""


class NetworkAccounts(NamedTuple):
    """What an access network has carried, and how many of its RTT samples were in each range."""

    traffic: Traffic = Traffic()
    rtts: tuple[int, ...] = (0,) * (len(RTT_BOUNDS) + 1)


class Accounts:
    """What networks have carried since the daemon's start, in `networks`; clients are in the history only.

    `note_closed` and `networks` are for any thread, all else for one.
    """

    def __init__(self, history: History, clock: Clock, proxies: Proxies = ONE_PROXY) -> None:
        self._history = history
        self._proxies = proxies
        self._clock = clock
        self._meter: Meter | None = None
        self._closed: deque[ClosedSubflow] = deque(maxlen=_MAX_CLOSED)
        self._locators = Locators((), proxies)
        self._located: object = ()
        self._connections: object = None
        self._accepted_by: dict[FourTuple, int] = {}
        self._latest: dict[FourTuple, int] = {}
        self._flush_at = 0.0
        self.networks: Mapping[str, NetworkAccounts] = {}

    def note_closed(self, closed: Iterable[ClosedSubflow]) -> None:
        """These have closed; the next look counts them."""
        self._closed.extend(closed)

    def look(
        self, sockets: Mapping[FourTuple, SocketState], snapshot: Snapshot, steered: Mapping[FourTuple, SteeredTotals]
    ) -> None:
        """Count what subflows have carried since the last look; `sockets` and `steered` were read before."""
        meter = self._meter = self._meter or self._begin(sockets)
        live = dict(_live(meter, sockets, snapshot, steered))
        carried = meter.look(self._clock.monotonic(), live, self._take_closed())
        if self._located is not snapshot.networks:
            self._locators, self._located = Locators(snapshot.networks, self._proxies), snapshot.networks
        self._note_other_ports(snapshot)
        sums, rtts = self._sums(carried)
        networks = dict(self.networks)
        for name, counts in rtts.items():
            before = networks.get(name, NetworkAccounts())
            traffic = before.traffic.plus(sums[Account(Kind.NETWORK, name)])
            networks[name] = NetworkAccounts(traffic, tuple(map(sum, zip(before.rtts, counts, strict=True))))
        self.networks = networks
        self._history.add(self._clock.time(), sums.items())
        if self._clock.monotonic() >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Write the history."""
        now = self._clock.monotonic()
        if self._meter is not None:
            self._history.flush(self._clock.time(), now, self._meter.counted)
        self._flush_at = now + FLUSH_SECONDS

    def close(self) -> None:
        """Write the history for the last time."""
        self.flush()
        self._history.close()

    def _begin(self, sockets: Mapping[FourTuple, SocketState]) -> Meter:
        counted = self._history.counted()
        if counted is None:
            return Meter({}, {socket.cookie: socket.totals for socket in sockets.values()})
        return Meter(counted, {})

    def _take_closed(self) -> Iterator[ClosedSubflow]:
        while self._closed:
            yield self._closed.popleft()

    def _note_other_ports(self, snapshot: Snapshot) -> None:
        """Know the proxy of subflows on other ports than that of their connection, until the look after their end."""
        if not self._proxies.are_named or snapshot.connections is self._connections:
            return
        self._connections = snapshot.connections
        live = {
            subflow.ends: connection.port
            for connection in snapshot.connections.values()
            for subflow in connection.subflows
            if subflow.ends.proxy.port != connection.port
        }
        self._accepted_by, self._latest = {**self._latest, **live}, live

    def _sums(
        self, carried: Iterable[tuple[FourTuple, Traffic]]
    ) -> tuple[dict[Account, Traffic], dict[str, list[int]]]:
        """By network and by client, without the addresses that are in no access network; and RTTs by network."""
        sums: dict[Account, Traffic] = {}
        rtts: dict[str, list[int]] = {}
        for ends, traffic in carried:
            address = ends.client.address
            locate = self._locators.of(self._accepted_by.get(ends, ends.proxy.port))
            network = locate(address)
            if network is None:
                continue
            client = Account(Kind.CLIENT, str(locate.prefix(address)))
            for account in (Account(Kind.NETWORK, network.name), client):
                before = sums.get(account)
                sums[account] = traffic if before is None else before.plus(traffic)
            counts = rtts.setdefault(network.name, [0] * (len(RTT_BOUNDS) + 1))
            if traffic.rtt_samples:
                counts[bisect_left(RTT_BOUNDS, traffic.rtt_seconds)] += 1
        return sums, rtts


def _live(
    meter: Meter,
    sockets: Mapping[FourTuple, SocketState],
    snapshot: Snapshot,
    steered: Mapping[FourTuple, SteeredTotals],
) -> Iterator[tuple[FourTuple, LiveSubflow]]:
    """The subflows among the sockets: plain TCP is not ours."""
    unknown = {ends for ends, socket in sockets.items() if not meter.knows(socket.cookie)}
    if unknown:
        unknown -= {decision.subflow.ends for decision in snapshot.all_decisions()}
    for ends, socket in sockets.items():
        if ends not in unknown:
            totals = socket.totals._replace(steered=steered[ends]) if ends in steered else socket.totals
            yield ends, LiveSubflow(socket.cookie, totals, socket.rtt, ends in snapshot.throttled)
