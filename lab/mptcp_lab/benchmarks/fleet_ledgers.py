"""Proxies of a fleet without clients: the product's ledger and exchange of each, all in one process, and a real server.

The clock is simulated: figures of the server are per simulated second, however long the ledgers take for it. So nothing
here shows how an overloaded server behaves.

Each client uses one proxy; some use a second one at the same time, equally. The same number is active at each proxy at
any time: each second 1 of 500 begins, as many end, and 1 of 2500 reaches the stage of its budget. All are counted every
5 s, as the daemon does with 10 000 clients. Those within 10 s of the stage are counted in each tick, as programs in the
kernel would.
"""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from mptcp_lab.benchmarks.server_meter import ServerMeter, used_memory
from mptcp_lab.percentiles import spread
from mptcp_lab.valkey_server import ValkeyServer
from mptcp_throttle.model import AccessNetwork, Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.periods import Period, period_at
from mptcp_throttle.units import Rate
from mptcp_throttle.valkey.server import Credentials, ServerUrl
from mptcp_throttled.accounting.ledger import Carried, Ledger
from mptcp_throttled.accounting.ledger_rows import StoredAccount, StoredPeriod
from mptcp_throttled.fleet.keys import field_of, name_of
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals_server import connect
from mptcp_throttled.fleet.totals_thread import TICK_SECONDS, Identity, TotalsThread
from mptcp_throttled.vocabulary.budgets import AccountKey, BudgetChange, LevelReached, Subject, Use
from mptcp_throttled.vocabulary.fleet import FAR_SECONDS, OwnTotal, Scope, UsedElsewhere

SETTLE_SECONDS: Final = 64.0
SECRET: Final = b"of this benchmark"

_FIRST: Final = int(IPv4Address("10.0.0.0"))
_AMOUNT: Final = 10**10
_RATE: Final = 20_000
"""The rate of each client at each proxy, in bytes/s."""
_BEGINS: Final = 1 / 500
_CROSSINGS: Final = 1 / 2500
_STAGE: Final = Stage(1.0, {RateKind.CAP: Rate(256_000)})
_BUDGET: Final = Budget(_AMOUNT, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, None, (_STAGE,))
NETWORK: Final = AccessNetwork("lte", (IPv4Network("10.0.0.0/8"),), 1, {}, Per.CLIENT, budgets=(_BUDGET,))
KEY: Final = AccountKey(NETWORK.name, _BUDGET.key)
_LOOK_SECONDS: Final = 5.0
_LOOK_TICKS: Final = round(_LOOK_SECONDS / TICK_SECONDS)
_CROSSING_SECONDS: Final = 10.0
_NEAR_SECONDS: Final = 8.0
_BATCH: Final = 5000
_KEPT_SECONDS: Final = 32 * 86400


@dataclass(frozen=True, slots=True)
class Load:
    """The load: the server has totals of `clients`, and `active` of them carry at each of an even number of `proxies`.

    One of `together` carries at two of them.
    """

    clients: int
    proxies: int
    active: int
    together: int

    @property
    def of_each(self) -> int:
        """The clients of a proxy, which have numbers; those that are active have the first ones."""
        return self.clients // self.proxies

    def window(self, now: float) -> range:
        """The clients of a proxy that carry anything, by their numbers."""
        first = int(_BEGINS * self.active * now)
        return range(first, min(first + self.active, self.of_each))

    def is_shared(self, number: int) -> bool:
        """Whether a client carries at two proxies."""
        return number % self.together == 0

    def address(self, proxy: int, number: int) -> IPv4Address:
        """The address of a client of a proxy."""
        return IPv4Address(_FIRST + (proxy - proxy % 2 * self.is_shared(number)) * self.of_each + number)

    def number(self, subject: Subject) -> int:
        """The number of a client."""
        return (int(subject or 0) - _FIRST) % self.of_each

    def crossing(self, number: int) -> float:
        """When a client reaches its stage; infinity for one that begins later."""
        return (self.active - number) / (_CROSSINGS * self.active) if number < self.active else math.inf

    def near(self, now: float) -> range:
        """The clients that reach their stage within ten seconds, or have reached it in the last ten."""
        first, last = (
            self.active - int(_CROSSINGS * self.active * max(at, 0.0))
            for at in (now + _CROSSING_SECONDS, now - _CROSSING_SECONDS)
        )
        return range(max(first, self.window(now).start), last)


class Watched:
    """What is measured of all ledgers from the time `begin` on.

    `ages` are those of bytes, in seconds, when another proxy knew of them, by how far their client is from its stage;
    `late` is by client how long after it had reached the stage each proxy knew it.
    """

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.ages: dict[str, list[float]] = {"near": [], "middle": [], "far": []}
        self.late: dict[IPv4Address, list[float]] = {}

    def figures(self) -> dict[str, float]:
        """The spread of each kind of figure."""
        measured = {f"age of bytes elsewhere, {name}, s": values for name, values in self.ages.items()}
        measured["beyond the budget, s of the rate"] = [max(each) for each in self.late.values()]
        spreads = [spread(values).named(name) for name, values in measured.items() if values]
        return {name: value for each in spreads for name, value in each.items()}


class _Proxy:
    """A proxy's ledger, as the thread of totals sees it, and the thread; `used` is its processor time in seconds."""

    def __init__(self, number: int, load: Load, url: ServerUrl, period: Period, watched: Watched) -> None:
        self.used = 0.0
        self._now = 0.0
        self._number, self._load, self._watched = number, load, watched
        self._wall = time.time()
        uses = {
            each: max(int(_AMOUNT / (1 + load.is_shared(each)) - _RATE * load.crossing(each)), 0)
            for each in range(load.active)
        }
        stored: dict[Subject, Use] = {load.address(number, each): Use(used) for each, used in uses.items()}
        self._ledger = Ledger({KEY: StoredAccount(StoredPeriod(period), stored)}, lambda: True, is_shared=True)
        self._ledger.configure((NETWORK,), None, self._wall)
        self._counted = dict.fromkeys(range(load.active), 0.0)
        self._shared = {each: used for each, used in uses.items() if load.is_shared(each)}
        self._unknown: dict[int, deque[tuple[float, int]]] = {}
        self.others: Sequence[_Proxy] = ()
        identity = Identity(field_of(f"proxy-{number}", "00000000"), SECRET)
        self._thread = TotalsThread(
            f"proxy-{number}",
            1e9,
            self,
            lambda: identity,
            lambda own, attempt: connect(url, Credentials(), own, attempt),
            Refusals(),
            lambda _: None,
        )

    def tick(self, tick: int, now: float) -> None:
        """Count what is due, and exchange."""
        self._now = now
        near = self._load.near(now)
        self._count(near, TICK_SECONDS)
        if (tick + self._number) % _LOOK_TICKS == 0:
            self._count((number for number in self._load.window(now) if number not in near), _LOOK_SECONDS)
        began = time.thread_time()
        self._thread.step(now)
        self.used += time.thread_time() - began

    def _count(self, numbers: Iterable[int], seconds: float) -> None:
        self._note(self._ledger.count(self._carried(numbers), self._wall + self._now, seconds))

    def _carried(self, numbers: Iterable[int]) -> Iterator[Carried]:
        for number in numbers:
            amount = int(_RATE * self._now) - int(_RATE * self._counted.get(number, self._now - _LOOK_SECONDS))
            self._counted[number] = self._now
            if number in self._shared:
                self._shared[number] += amount
                if self._now >= self._watched.begin:
                    self._unknown.setdefault(number, deque()).append((self._now, self._shared[number]))
            yield Carried(NETWORK.name, self._load.address(self._number, number), amount, 0, is_mptcp=True)

    def own_totals(self, scope: Scope) -> list[OwnTotal]:
        """As the thread's `Ledger`."""
        return [total for portion in self._ledger.own_totals(scope) for total in portion]

    def note_elsewhere(self, used: Sequence[UsedElsewhere]) -> None:
        """As the thread's `Ledger`."""
        self._note(self._ledger.note_elsewhere(used, self._wall + self._now)[0])
        (other,) = self.others
        for each in used:
            other.known(self._load.number(each.subject), each.elsewhere.used, self._now)

    def known(self, number: int, total: int, now: float) -> None:
        """Another proxy knows from `now` on that a client has used `total` bytes here."""
        unknown = self._unknown.get(number, deque())
        while unknown and unknown[0][1] <= total:
            at, _ = unknown.popleft()
            left = self._load.crossing(number) - at
            kind = "far" if not 0 < left < FAR_SECONDS else "near" if left < _NEAR_SECONDS else "middle"
            self._watched.ages[kind].append(now - at)

    def _note(self, told: Iterable[BudgetChange]) -> None:
        for each in told:
            if isinstance(each, LevelReached) and each.stages and isinstance(each.subject, IPv4Address):
                reached = self._load.crossing(self._load.number(each.subject))
                if reached >= self._watched.begin:
                    self._watched.late.setdefault(each.subject, []).append(self._now - reached)


def measure(load: Load, server: ValkeyServer, seconds: float) -> dict[str, float]:
    """The figures of `seconds` on the simulated clock."""
    url, wall = ServerUrl.parse(server.url), time.time()
    period = period_at(_BUDGET.every, _BUDGET.starts, wall, None)
    watched = Watched(SETTLE_SECONDS)
    ticks = round((SETTLE_SECONDS + seconds) / TICK_SECONDS)
    _fill(load, url, period, load.window(ticks * TICK_SECONDS).stop)
    proxies = [_Proxy(number, load, url, period, watched) for number in range(load.proxies)]
    for first, second in zip(proxies[::2], proxies[1::2], strict=True):
        first.others, second.others = (second,), (first,)
    gc.freeze()
    for tick in range(ticks):
        if tick * TICK_SECONDS == SETTLE_SECONDS:
            meter, began, used = ServerMeter(server), time.monotonic(), sum(proxy.used for proxy in proxies)
        for proxy in proxies:
            proxy.tick(tick, tick * TICK_SECONDS)
    taken = time.monotonic() - began
    of_proxy = (sum(proxy.used for proxy in proxies) - used) / load.proxies / seconds
    share = {"a proxy, % of a core": 100 * of_proxy}
    return {**share, **meter.figures(seconds), **watched.figures(), "seconds for a simulated one": taken / seconds}


def _fill(load: Load, url: ServerUrl, period: Period, first: int) -> None:
    """Publish the totals of the clients from number `first` on, which carry nothing."""
    for number in range(load.proxies):
        exchange = connect(url, Credentials(), field_of(f"proxy-{number}", "00000000"), 0)
        for begin in range(first, load.of_each, _BATCH):
            subjects = (load.address(number, each) for each in range(begin, min(begin + _BATCH, load.of_each)))
            names = [name_of(OwnTotal(KEY, subject, period, 0, 0.0), SECRET) for subject in subjects]
            totals = [(name, 10**9 + place) for place, name in enumerate(names)]
            exchange.publish(totals, dict.fromkeys(names, _KEPT_SECONDS))
        exchange.close()


def bytes_per_client(server: ValkeyServer, fields: Sequence[int], clients: int = 20_000) -> dict[str, float]:
    """The growth of the server's memory, in bytes per client, by the number of proxies that the client has used."""
    url = ServerUrl.parse(server.url)
    period = period_at(_BUDGET.every, _BUDGET.starts, time.time(), None)
    grown: dict[str, float] = {}
    for number in fields:
        server.cli("FLUSHALL")
        before = used_memory(server)
        subjects = (IPv4Address(_FIRST + each) for each in range(clients))
        names = [name_of(OwnTotal(KEY, subject, period, 0, 0.0), SECRET) for subject in subjects]
        for proxy in range(number):
            exchange = connect(url, Credentials(), field_of(f"proxy-{proxy}", "00000000"), 0)
            totals = [(name, 10**9 + 10**5 * place) for place, name in enumerate(names)]
            exchange.publish(totals, dict.fromkeys(names, _KEPT_SECONDS))
            exchange.close()
        grown[f"server: bytes for a client of {number} proxies"] = (used_memory(server) - before) / clients
    server.cli("FLUSHALL")
    return grown
