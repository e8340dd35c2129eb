"""What access networks and clients carry: sums, their history and budgets, updated at each observation."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mptcp_throttle.model import AccessNetwork, Address, FourTuple
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import ONE_PROXY, Proxies
from mptcp_throttled.accounting.budget_account import BudgetTotals, BudgetUse
from mptcp_throttled.accounting.history import FLUSH_SECONDS, History
from mptcp_throttled.accounting.history_rows import Account, Kind
from mptcp_throttled.accounting.ledger import Carried, Ledger
from mptcp_throttled.accounting.meter import LiveSubflow, Meter, Metered
from mptcp_throttled.accounting.sharing import PORTION
from mptcp_throttled.vocabulary.allowances import StageAhead
from mptcp_throttled.vocabulary.budgets import BudgetChange, Spent
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.fleet import OwnTotal, Scope, UsedElsewhere
from mptcp_throttled.vocabulary.locator import Locators
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SteeredTotals, Traffic

_log = logging.getLogger("mptcp-throttled")

_MAX_CLOSED: Final = 100_000
_TURN_SECONDS: Final = 0.0005
"""The pause between portions: without it this thread would take the lock again before a waiting one wakes up."""

SETTLE_SECONDS: Final = 60.0
"""How long to wait for a database that cannot be read, until what sockets had carried at first is ignored."""

RTT_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds, in seconds, of the ranges in which RTTs are counted. One more range is above the last."""


class NetworkAccounts(NamedTuple):
    """What an access network has carried, and how many of its RTT samples were in each range."""

    traffic: Traffic = Traffic()
    rtts: tuple[int, ...] = (0,) * (len(RTT_BOUNDS) + 1)


class Accounts:
    """Counts what networks and clients carry. For any thread.

    `networks` has the sums of networks since the daemon's start; those of clients are in the history only. What counts
    in budgets, also TCP without MPTCP, is counted in the `ledger`. `tell` is given what the operator is to be told of
    budgets, and is called, perhaps with nothing, when a stage is reached or left. `budgets_changed` is called after an
    operator or another proxy has changed what is left of budgets. `closing` is that of the `Meter`.
    """

    def __init__(
        self,
        history: History,
        ledger: Ledger,
        clock: Clock,
        proxies: Proxies = ONE_PROXY,
        tell: Callable[[Sequence[BudgetChange]], None] = lambda _: None,
        closing: Callable[[], Collection[int] | None] = lambda: (),
    ) -> None:
        self._lock = threading.RLock()
        self._history = history
        self._ledger = ledger
        self._tell = tell
        self._closing = closing
        self._proxies = proxies
        self._ports = proxies.together.ports
        self._clock = clock
        self._meter: Meter | None = None
        self._closed: deque[ClosedSubflow] = deque(maxlen=_MAX_CLOSED)
        self._locators = Locators((), proxies)
        self._located: object = ()
        self._connections: object = None
        self._accepted_by: dict[FourTuple, int] = {}
        self._latest: dict[FourTuple, int] = {}
        self._flush_at = 0.0
        self._observed_at = clock.monotonic()
        self._with_tcp = history.counted_tcp
        self._renewals = history.renewals
        self._problem: str | None = None
        self._unsettled: Mapping[FourTuple, SocketState] | None = None
        self._settle_until = 0.0
        self.networks: Mapping[str, NetworkAccounts] = {}
        self.budgets_changed: Callable[[], None] = lambda: None

    def note_closed(self, closed: Iterable[ClosedSubflow]) -> None:
        """These subflows have closed; the next observation counts what they have carried."""
        self._closed.extend(closed)

    def observe(
        self, sockets: Mapping[FourTuple, SocketState], snapshot: Snapshot, steered: Mapping[FourTuple, SteeredTotals]
    ) -> None:
        """Count what subflows have carried since the last observation; `sockets` and `steered` were read before."""
        with self._lock:
            self._observe(sockets, snapshot, steered)

    def _observe(
        self, sockets: Mapping[FourTuple, SocketState], snapshot: Snapshot, steered: Mapping[FourTuple, SteeredTotals]
    ) -> None:
        meter = self._meter = self._meter or self._begin(sockets)
        self._settle(meter)
        if self._located is not snapshot.networks:
            self._locators, self._located = Locators(snapshot.networks, self._proxies), snapshot.networks
        spent = self._ledger.spent
        self._read_budgets()
        zone = snapshot.facts.wall_clock.zone
        told: list[BudgetChange] = [*self._ledger.configure(snapshot.networks, zone, self._clock.time())]
        with_tcp = self._ledger.has_budgets
        if with_tcp and not self._with_tcp:
            meter.ignore({socket.cookie: socket.totals for socket in sockets.values() if not socket.is_mptcp})
        self._with_tcp = with_tcp
        live = dict(_live(meter, sockets, snapshot, steered, self._ports, with_tcp=with_tcp))
        carried = meter.count(self._clock.monotonic(), live, () if self._unsettled is not None else self._take_closed())
        self._note_other_ports(snapshot)
        located = self._located_clients(carried)
        self._add_to_history([(network, client, each.traffic) for network, client, each in located if each.is_mptcp])
        told += self._count_budgets(located)
        self._note_problem()
        if told or self._ledger.spent is not spent:
            self._tell(told)
        if self._clock.monotonic() >= self._flush_at:
            self.flush()

    def _add_to_history(self, carried: Iterable[tuple[AccessNetwork, Address, Traffic]]) -> None:
        sums, rtts = _sums(carried)
        networks = dict(self.networks)
        for name, counts in rtts.items():
            before = networks.get(name, NetworkAccounts())
            traffic = before.traffic.plus(sums[Account(Kind.NETWORK, name)])
            networks[name] = NetworkAccounts(traffic, tuple(map(sum, zip(before.rtts, counts, strict=True))))
        self.networks = networks
        self._history.add(self._clock.time(), sums.items())

    def _read_budgets(self) -> None:
        """Read the budgets that an earlier instance has written, if that was not possible before."""
        if self._ledger.is_unread and (stored := self._history.budgets()) is not None:
            self._ledger.adopt(stored, self._clock.time())

    def _count_budgets(self, located: Iterable[tuple[AccessNetwork, Address, Metered]]) -> list[BudgetChange]:
        carried = (
            Carried(network.name, client, each.traffic.ip_sent, each.traffic.ip_received, each.is_mptcp)
            for network, client, each in located
            if network.budgets or network.devices.by_first
        )
        now = self._clock.monotonic()
        seconds, self._observed_at = now - self._observed_at, now
        return self._ledger.count(carried, self._clock.time(), seconds)

    def _note_problem(self) -> None:
        before, self._problem = self._problem, self._ledger.problem
        if self._problem is not None and before is None:
            _log.warning("budgets: %s", self._problem)
        elif self._problem is None and before is not None:
            _log.info("budgets: the periods that were due have begun")

    @property
    def seconds_to_next_stage(self) -> float | None:
        """In how many seconds a stage of a budget is reached at the present rates; None: there are no budgets."""
        return self._ledger.seconds_to_next_stage if self._ledger.has_budgets else None

    def change_budgets(self, change: Callable[[Ledger, float], Sequence[BudgetChange]]) -> bool:
        """Call `change` with the ledger and the time in seconds since the epoch; whether its changes are written."""
        with self._lock:
            self._tell(change(self._ledger, self._clock.time()))
            is_written = self.flush()
        self.budgets_changed()
        return is_written

    def own_totals(self, scope: Scope) -> list[OwnTotal]:
        """The totals of budgets that other proxies are to know. Those that have changed are told once.

        If there are many, other threads can use the accounts in between.
        """
        totals: list[OwnTotal] = []
        portions = self._ledger.own_totals(scope)
        while True:
            with self._lock:
                portion = next(portions, None)
            if portion is None:
                return totals
            totals += portion
            if len(portion) == PORTION:
                time.sleep(_TURN_SECONDS)

    def note_elsewhere(self, used: Sequence[UsedElsewhere]) -> None:
        """Take what was `used` of budgets at other proxies."""
        with self._lock:
            spent = self._ledger.spent
            told, is_near = self._ledger.note_elsewhere(used, self._clock.time())
            is_changed = bool(told) or self._ledger.spent is not spent
            if is_changed:
                self._tell(told)
        if is_changed or is_near:
            self.budgets_changed()

    def stages_ahead(self, applied: Spent) -> list[StageAhead]:
        """The stages that subjects are near to, without those that are `applied` already."""
        with self._lock:
            return self._ledger.stages_ahead(applied, self._clock.time())

    def budget_uses(self) -> list[BudgetUse]:
        """All budgets as they are now."""
        with self._lock:
            return self._ledger.uses(self._clock.time())

    def budget_uses_of(self, network: str, client: Address) -> list[BudgetUse]:
        """The budgets that count what a client carries on a network, by its first address there, as they are now."""
        with self._lock:
            return self._ledger.uses_of(network, client, self._clock.time())

    @property
    def budget_problem(self) -> str | None:
        """Why no period of a budget begins although one is due; None: none is due."""
        return self._ledger.problem

    def budget_totals(self) -> list[BudgetTotals]:
        """All budgets as a whole."""
        with self._lock:
            return self._ledger.totals()

    def flush(self) -> bool:
        """Write the history and the budgets; whether all is written."""
        with self._lock:
            now = self._clock.monotonic()
            self._flush_at = now + FLUSH_SECONDS
            # What could not be read is not overwritten.
            if self._meter is None or self._unsettled is not None:
                return False
            if self._renewals != self._history.renewals:
                self._renewals = self._history.renewals
                self._ledger.write_all_again()
            changes = None if self._ledger.is_unread else self._ledger.changes()
            at = self._clock.time()
            is_written = self._history.flush(at, now, self._meter.counted, changes, with_tcp=self._with_tcp)
            if is_written and changes is not None:
                self._ledger.written()
            return is_written and changes is not None

    def close(self) -> None:
        """Write the history and the budgets for the last time, and close the database."""
        self.flush()
        self._history.close()

    def _begin(self, sockets: Mapping[FourTuple, SocketState]) -> Meter:
        counted = self._history.counted()
        if counted is not None and not counted.is_first:
            return Meter(counted.sockets, {}, self._closing)
        if counted is None:
            self._unsettled, self._settle_until = dict(sockets), self._clock.monotonic() + SETTLE_SECONDS
        return Meter({}, {socket.cookie: socket.totals for socket in sockets.values()}, self._closing)

    def _settle(self, meter: Meter) -> None:
        """Continue from what an earlier instance has counted, if that could not be read at first."""
        if self._unsettled is None:
            return
        counted = self._history.counted()
        if counted is None and self._clock.monotonic() < self._settle_until:
            return
        if counted is not None and not counted.is_first:
            with_tcp = self._history.counted_tcp
            first = {each.cookie: each.totals for each in self._unsettled.values() if each.is_mptcp or with_tcp}
            meter.settle(counted.sockets, first)
        self._unsettled = None

    def _take_closed(self) -> Iterator[ClosedSubflow]:
        while self._closed:
            yield self._closed.popleft()

    def _note_other_ports(self, snapshot: Snapshot) -> None:
        """Remember by which port of a proxy the connection of a subflow on another port was accepted.

        It is remembered until the observation after the subflow's end, which counts its last bytes.
        """
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

    def _located_clients(self, carried: Iterable[Metered]) -> list[tuple[AccessNetwork, Address, Metered]]:
        """What was carried, with access network and client; what addresses in no access network carried is left out."""
        located = []
        for each in carried:
            address = each.ends.client.address
            locate = self._locators.of(self._accepted_by.get(each.ends, each.ends.proxy.port))
            network = locate(address)
            if network is not None:
                located.append((network, locate.client(address), each))
        return located


def _sums(
    carried: Iterable[tuple[AccessNetwork, Address, Traffic]],
) -> tuple[dict[Account, Traffic], dict[str, list[int]]]:
    """The sums by network and by client, and the numbers of RTT samples in each range by network."""
    sums: dict[Account, Traffic] = {}
    rtts: dict[str, list[int]] = {}
    for network, client, traffic in carried:
        for account in (Account(Kind.NETWORK, network.name), *_accounts_of(network, client)):
            before = sums.get(account)
            sums[account] = traffic if before is None else before.plus(traffic)
        counts = rtts.setdefault(network.name, [0] * (len(RTT_BOUNDS) + 1))
        if traffic.rtt_samples:
            counts[bisect_left(RTT_BOUNDS, traffic.rtt_seconds)] += 1
    return sums, rtts


def _accounts_of(network: AccessNetwork, client: Address) -> tuple[Account, ...]:
    """The accounts of a client in the history: those of its device, in all networks and in this one, or that of its
    first address."""
    device = network.devices.by_first.get(client)
    if device is None:
        return (Account(Kind.CLIENT, str(client)),)
    return Account(Kind.CLIENT, device.name), Account.of_path(network.name, device.name)


def _live(
    meter: Meter,
    sockets: Mapping[FourTuple, SocketState],
    snapshot: Snapshot,
    steered: Mapping[FourTuple, SteeredTotals],
    ports: Ports,
    *,
    with_tcp: bool,
) -> Iterator[tuple[FourTuple, LiveSubflow]]:
    """The sockets of subflows, and `with_tcp` also those of TCP without MPTCP on these ports of the proxy."""
    unknown = {ends for ends, socket in sockets.items() if socket.is_mptcp and not meter.knows(socket.cookie)}
    if unknown:
        unknown -= {decision.subflow.ends for decision in snapshot.all_decisions()}
    for ends, socket in sockets.items():
        if not socket.is_mptcp:
            # The proxy may have opened subflows on any port, for which all sockets were listed.
            if with_tcp and ends.proxy.port in ports:
                yield ends, LiveSubflow(socket.cookie, socket.totals, socket.rtt, throttled=False, is_mptcp=False)
        elif ends not in unknown:
            totals = socket.totals._replace(steered=steered[ends]) if ends in steered else socket.totals
            yield ends, LiveSubflow(socket.cookie, totals, socket.rtt, ends in snapshot.throttled)
