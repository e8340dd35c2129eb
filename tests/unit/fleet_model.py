"""A fleet under virtual time: proxies whose clocks, links and hosts fail, and a server that loses data.

`Fleet` checks after each change of a rate in any kernel that the sum of all is within the rate.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from mptcp_throttled.fleet.lease_set import LeaseSet
from mptcp_throttled.fleet.leases import Statement, floor
from mptcp_throttled.fleet.members import (
    APPLY_SECONDS,
    FORGET_SECONDS,
    HEARD_SECONDS,
    LEASE_SECONDS,
    PARTS,
    ROUND_SECONDS,
    Members,
    Phase,
    Record,
    Round,
)

WHOLE: Final = 10_000_000
KEYS: Final = ("one", "two")
LONGEST_DELAY: Final = LEASE_SECONDS
_STEP: Final = 0.25
_RESTART_SECONDS: Final = 2.0

Operation = Callable[["Server"], object]


@dataclass
class Server:
    """Hashes, as one server keeps them: the names of proxies, and by proxy what each states."""

    names: set[str] = field(default_factory=set)
    records: dict[str, Record] = field(default_factory=dict)
    told: dict[str, dict[str, Record]] = field(default_factory=dict)
    about: dict[str, frozenset[str]] = field(default_factory=dict)
    statements: dict[str, dict[str, Statement]] = field(default_factory=lambda: {key: {} for key in KEYS})
    written: dict[str, float] = field(default_factory=dict)

    def copy(self) -> Server:
        statements = {key: dict(hashed) for key, hashed in self.statements.items()}
        return Server(
            set(self.names), dict(self.records), dict(self.told), dict(self.about), statements, dict(self.written)
        )

    def state(self, name: str, stated: Stated, now: float) -> None:
        assert stated.record is not None
        self.names.add(name)
        self.records[name], self.told[name], self.about[name] = stated.record, dict(stated.told), stated.about
        self.written[name] = now

    def stated(self, name: str, now: float) -> Stated:
        """What a proxy has stated, unless that has expired."""
        if now - self.written.get(name, now) >= FORGET_SECONDS:
            self.records.pop(name, None)
            for statements in self.statements.values():
                statements.pop(name, None)
        return Stated(name, self.records.get(name), self.told.get(name, {}), self.about.get(name, frozenset()))


class Stated(NamedTuple):
    """What a proxy says in its hash beside statements; `about` are the rates of which there is one."""

    name: str
    record: Record | None
    told: Mapping[str, Record]
    about: frozenset[str]


def records_of(stated: Sequence[Stated]) -> dict[str, Record]:
    """What is known of records from these hashes."""
    made = {name: Record(0, 0, record.part) for each in stated for name, record in each.told.items() if each.record}
    return made | {each.name: each.record for each in stated if each.record is not None}


@dataclass
class Link:
    """A connection: what is sent arrives in order, within `LONGEST_DELAY` or never."""

    proxy: Proxy
    waiting: deque[tuple[list[Operation], Callable[[list[object]], None]]] = field(default_factory=deque)
    arrives: float = 0.0
    returns: float = 0.0
    read: dict[str, dict[str, Statement]] = field(default_factory=dict)
    """By key what all proxies stated when this one read it last."""
    is_dead: bool = False
    is_open: bool = True
    """At the proxy: it still reads."""
    done: list[object] = field(default_factory=list)


class Given(NamedTuple):
    """What a kernel gives for a key: of the floors, and of the pool, of which each key has `each`."""

    base: int = 0
    beside: int = 0
    each: int = 0


@dataclass
class Proxy:
    """A proxy: its clock, what it knows, and the rates in its kernel."""

    name: str
    members: Members
    leases: LeaseSet[str]
    offset: float
    speed: float
    wanted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    kernel: dict[str, Given] = field(default_factory=lambda: dict.fromkeys(KEYS, Given()))
    applying: dict[str, deque[Given]] = field(default_factory=lambda: {key: deque() for key in KEYS})
    applied_at: float = 0.0
    link: Link | None = None
    waits: bool = False
    slowest: float = 0.02
    is_partitioned: bool = False
    is_up: bool = True
    answered_at: float = 0.0
    began: float = 0.0

    def held(self, key: str) -> int:
        """What its kernel gives, in bits/s."""
        return self.kernel[key].base + self.kernel[key].beside

    def given(self, key: str) -> list[Given]:
        """What its kernel may give, of which a part may just be applied."""
        return [self.kernel[key], *self.applying[key]]


class Fleet:
    """Proxies, and their server; `advance` lets time pass."""

    def __init__(self, size: int, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        self.now = 0.0
        self.server = Server()
        self.stalled_until = 0.0
        self.proxies: dict[str, Proxy] = {}
        self.largest = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._kept: deque[tuple[float, Server]] = deque()
        self._links: list[Link] = []
        for number in range(size):
            self.join(f"proxy-{number}")
        self.at(0.0, self._keep)

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), do))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = end

    def total(self, key: str) -> int:
        """What all proxies hold, but compromised ones."""
        return sum(proxy.held(key) for proxy in self.proxies.values())

    # What happens to proxies.

    def join(self, name: str, part: int = 0, known: Mapping[str, Record] | None = None) -> Proxy:
        offset, speed = self.random.uniform(0, 1e6), self.random.uniform(0.995, 1.005)
        clock = offset + speed * self.now
        members = Members(name, clock, part, known)
        return self._begin(Proxy(name, members, LeaseSet(WHOLE, {}, members.standing(clock), clock), offset, speed))

    def _begin(self, proxy: Proxy) -> Proxy:
        before = self.proxies.get(proxy.name)
        self.proxies[proxy.name] = proxy
        proxy.began = self._clock(proxy)
        if before is not None:
            proxy.wanted, proxy.kernel, proxy.applied_at = before.wanted, before.kernel, before.applied_at
            proxy.slowest = before.slowest
            proxy.is_partitioned, proxy.answered_at = before.is_partitioned, before.answered_at
        self.at(self.now, lambda: self._tick(proxy))
        self.at(self.now, lambda: self._exchange(proxy))
        return proxy

    def crash(self, proxy: Proxy, *, host: bool) -> None:
        """The daemon ends; with its `host`, the rates in the kernel end, too. It starts again."""
        proxy.is_up = False
        if proxy.link is not None:
            proxy.link.is_open = False
        if host:
            proxy.kernel = dict.fromkeys(KEYS, Given())
        self.at(self.now + self.random.uniform(0, _RESTART_SECONDS), lambda: self._restart(proxy))

    def _restart(self, proxy: Proxy) -> None:
        if self.proxies.get(proxy.name) is proxy:
            self.join(proxy.name, proxy.members.part, proxy.members.known)

    def hand_over(self, proxy: Proxy) -> None:
        """The daemon ends, and the next instance goes on from what it has kept."""
        proxy.is_up = False
        if proxy.link is not None:
            proxy.link.is_open = False
        self.at(self.now + self.random.uniform(0, _RESTART_SECONDS), lambda: self._go_on(proxy))

    def _go_on(self, proxy: Proxy) -> None:
        if self.proxies.get(proxy.name) is proxy:
            kept, clock = proxy.members, self._clock(proxy)
            members = Members(proxy.name, clock, kept.part, kept.known, kept.contact, kept.last_sent)
            leases = LeaseSet(WHOLE, proxy.leases.amounts, members.standing(clock), clock)
            self._begin(Proxy(proxy.name, members, leases, proxy.offset, proxy.speed))

    def remove(self, name: str) -> None:
        """A proxy is gone for good."""
        self.proxies.pop(name).is_up = False

    def compromise(self, name: str, *, talks: bool = True) -> None:
        """A compromised proxy that has joined as `name` writes what it likes from now on; unless it `talks`, once."""
        part, most = self.random.choice((0, 1000, PARTS // 2, PARTS)), (0, WHOLE // 3, WHOLE, 10**15)
        session = self.random.getrandbits(64)
        record = Record(session, self.random.randint(1, 10**9), part)
        told = {"told-by-compromised": Record(0, 0, part)} if self.random.random() < 0.5 else {}
        self.server.state(name, Stated(name, record, told, frozenset(KEYS)), self.now)
        for key in KEYS:
            claim, wanted = self.random.choice(most), self.random.choice(most)
            stated = Statement(self.random.choice((session, session, 1)), claim, wanted)
            self.server.statements[key][name] = stated
        if talks:
            self.at(self.now + self.random.uniform(0, 1.5 * ROUND_SECONDS), lambda: self.compromise(name))

    # What happens to the server.

    def wipe(self, *, restarted: bool) -> None:
        self.server = Server()
        if restarted:
            self._break_links()

    def fail_over(self) -> None:
        """A replica goes on without what was written last."""
        at = self.now - self.random.uniform(0, 1.0)
        kept = [server for when, server in self._kept if when <= at]
        self.server = kept[-1].copy() if kept else Server()
        self._break_links()

    def stall(self, seconds: float) -> None:
        self.stalled_until = max(self.stalled_until, self.now + seconds)

    def _break_links(self) -> None:
        for link in self._links:
            link.is_dead = True
            if link.is_open:
                self.at(self.now + self.random.uniform(0, 0.1), lambda link=link: self._lose(link))  # type: ignore[misc]

    def _keep(self) -> None:
        self._kept.append((self.now, self.server.copy()))
        while self._kept[0][0] < self.now - 2.0:
            self._kept.popleft()
        self._links = [link for link in self._links if link.is_open or not link.is_dead]
        self.at(self.now + 0.2, self._keep)

    # A proxy at work.

    def _clock(self, proxy: Proxy) -> float:
        return proxy.offset + proxy.speed * self.now

    def _tick(self, proxy: Proxy) -> None:
        if not proxy.is_up:
            return
        self._follow(proxy)
        self.at(self.now + _STEP, lambda: self._tick(proxy))

    def _follow(self, proxy: Proxy) -> None:
        clock = self._clock(proxy)
        had_session = proxy.members.session is not None
        proxy.members.follow(clock)
        if had_session and proxy.members.session is None and proxy.link is not None:
            self._lose(proxy.link)
        standing = proxy.members.standing(clock)
        # Who joins, and knows of no fleet yet, has no clients here: nothing is said of it.
        joins = not standing.part and standing.phase is not Phase.IN_CONTACT
        proxy.leases.follow(standing, clock)
        each = proxy.leases.each
        for key in KEYS:
            beside = each or proxy.leases.amounts.get(key, 0)
            self._apply(proxy, key, Given(0 if joins else floor(WHOLE, standing), beside, each))

    def _apply(self, proxy: Proxy, key: str, rate: Given) -> None:
        last = proxy.applying[key][-1] if proxy.applying[key] else proxy.kernel[key]
        if rate == last:
            return
        proxy.applying[key].append(rate)
        proxy.applied_at = max(proxy.applied_at, self.now + self.random.uniform(0, 0.9 * APPLY_SECONDS))
        proxy.applied_at = min(proxy.applied_at, self.now + 0.9 * APPLY_SECONDS)
        self.at(proxy.applied_at, lambda: self._applied(proxy, key))

    def _applied(self, proxy: Proxy, key: str) -> None:
        if not proxy.is_up:
            return
        proxy.kernel[key] = proxy.applying[key].popleft()
        total = self.total(key)
        self.largest = max(self.largest, total)
        assert total <= WHOLE, self.report(key)

    def report(self, key: str) -> str:
        """Who holds what, and what each knows of it."""
        lines = [f"{self.now:.2f}: {key}: {self.total(key)} of {WHOLE}"]
        for proxy in self.proxies.values():
            clock, statement = self._clock(proxy), self.server.statements[key].get(proxy.name)
            standing = proxy.members.standing(clock)
            heard = " ".join(name for name, other in standing.members.items() if other.heard)
            knows = f"{standing.phase} {standing.may_raise=} {standing.part=} hears {heard}"
            lines.append(f"{proxy.name}: {proxy.kernel[key]} there: {statement} {knows}")
        return "\n".join(lines)

    def _exchange(self, proxy: Proxy) -> None:
        if not proxy.is_up:
            return
        self.at(self.now + self.random.uniform(0.05, 1.0) * ROUND_SECONDS, lambda: self._exchange(proxy))
        if proxy.waits:
            return
        if proxy.members.session is None:
            self._connect(proxy)
        elif proxy.link is not None:
            self._round(proxy, proxy.link)

    def _connect(self, proxy: Proxy) -> None:
        proxy.link = link = Link(proxy)
        self._links.append(link)

        def opened(stated: list[Stated]) -> None:
            proxy.members.open(records_of(stated), self.random.getrandbits(64), self._clock(proxy))
            proxy.leases.begin()
            self._round(proxy, link)

        self._send(link, [_names], lambda answers: self._read(link, answers[0], opened))
        # Whoever connects gives up, too.
        self.at(self.now + LONGEST_DELAY, lambda: None if proxy.members.session is not None else self._lose(link))

    def _round(self, proxy: Proxy, link: Link) -> None:
        self._follow(proxy)
        if proxy.members.session is None:
            return
        each = proxy.leases.each
        if any(given.each > each for key in KEYS for given in proxy.given(key)):
            return
        clock = self._clock(proxy)
        proxy.leases.want(dict(proxy.wanted), clock)
        changes = proxy.leases.compose(0, lambda key: max(given.beside for given in proxy.given(key)), clock)
        operations = [_writing(key, proxy.name, statement) for key, statement in changes.writes.items()]
        operations += [_writing(key, proxy.name, None) for key in changes.deletes]
        for key in changes.writes:
            link.read.setdefault(key, {})
        for key in changes.deletes:
            del link.read[key]
        keys = [*link.read]
        writes = len(operations)
        record, told = proxy.members.state(clock), proxy.members.lost(clock)
        operations.append(lambda server: server.records.get(proxy.name))
        # The statements of an earlier instance are there, too, until they count for none.
        stated = Stated(
            proxy.name, record, told, frozenset(KEYS) if clock - proxy.began < HEARD_SECONDS else frozenset(keys)
        )
        operations.append(lambda server: server.state(proxy.name, stated, self.now))
        operations.append(_names)

        def named(answers: list[object]) -> None:
            first, _, names = answers[writes:]

            def listed(stated: list[Stated]) -> None:
                reads = [(key, each.name) for each in stated for key in keys if key in each.about]
                reads += [(key, proxy.name) for key in keys if (key, proxy.name) not in reads]
                reading = [_reading(key, name) for key, name in reads]

                def answered(answers: list[object]) -> None:
                    *read, last = answers
                    statements = {key: dict[str, Statement]() for key in keys}
                    for (key, name), statement in zip(reads, read, strict=True):
                        if isinstance(statement, Statement):
                            statements[key][name] = statement
                    self._take(proxy, link, Round(clock, first, records_of(stated), last), statements)  # type: ignore[arg-type]

                self._send(link, [*reading, lambda server: server.records.get(proxy.name)], answered)

            self._read(link, names, listed)

        self._send(link, operations, named)

    def _read(self, link: Link, names: object, answered: Callable[[list[Stated]], None]) -> None:
        """Read what each proxy says beside statements."""
        operations = [_stated(name, self) for name in sorted(names)] if isinstance(names, set) else []
        operations.append(_names)  # there may be none
        self._send(link, operations, lambda answers: answered([each for each in answers if isinstance(each, Stated)]))

    def _take(self, proxy: Proxy, link: Link, answer: Round, statements: dict[str, dict[str, Statement]]) -> None:
        clock = self._clock(proxy)
        if not proxy.members.read(answer, clock):
            self._lose(link)
            return
        proxy.answered_at = self.now
        changed = [key for key, each in statements.items() if each != link.read[key]]
        link.read.update(statements)
        if not proxy.leases.take(statements, changed, proxy.members.standing(clock), clock):
            self._lose(link)
            return
        self._follow(proxy)

    def _lose(self, link: Link) -> None:
        """The proxy closes a connection; what it has sent may still arrive."""
        if not link.is_open:
            return
        link.is_open = False
        proxy = link.proxy
        if proxy.link is link:
            proxy.link, proxy.waits = None, False
            proxy.members.close()

    # The network.

    def _delayed(self, proxy: Proxy, after: float) -> float | None:
        """When what is sent now arrives, after what was sent before; None: never."""
        when = max(after, self.now + self.random.uniform(0, proxy.slowest))
        return when if when <= self.now + LONGEST_DELAY else None

    def _send(self, link: Link, operations: list[Operation], answered: Callable[[list[object]], None]) -> None:
        proxy, sent = link.proxy, self.now
        proxy.waits = True
        when = self._delayed(proxy, link.arrives)
        if when is None or link.is_dead:
            link.is_dead = True
            return
        link.arrives = when

        def arrive() -> None:
            if link.is_dead:
                return
            if proxy.is_partitioned:
                if self.now + 0.2 > sent + LONGEST_DELAY:
                    link.is_dead = True
                else:
                    self.at(self.now + 0.2, arrive)
                return
            link.waiting.append((operations, answered))
            if len(link.waiting) == 1:
                self.at(self.now, lambda: self._work(link))

        self.at(when, arrive)

    def _work(self, link: Link) -> None:
        """The server carries out one command of a connection, and then those of others."""
        if link.is_dead or not link.waiting:
            return
        if self.now < self.stalled_until:
            self.at(self.stalled_until + self.random.uniform(0, 0.01), lambda: self._work(link))
            return
        operations, answered = link.waiting[0]
        link.done.append(operations[len(link.done)](self.server))
        if len(link.done) == len(operations):
            link.waiting.popleft()
            answers, link.done = link.done, []
            self._return(link, answers, answered)
        if link.waiting:
            gap = self.random.choice((0.0, 0.0, 0.0, 0.001, 0.05))
            self.at(self.now + gap, lambda: self._work(link))

    def _return(self, link: Link, answers: list[object], answered: Callable[[list[object]], None]) -> None:
        proxy, sent = link.proxy, self.now
        when = self._delayed(proxy, link.returns)
        if when is None:
            return
        link.returns = when

        def arrive() -> None:
            if not link.is_open or not proxy.is_up or proxy.link is not link:
                return
            if proxy.is_partitioned:
                if self.now + 0.2 <= sent + LONGEST_DELAY:
                    self.at(self.now + 0.2, arrive)
                return
            proxy.waits = False
            answered(answers)

        self.at(when, arrive)


def _writing(key: str, name: str, statement: Statement | None) -> Operation:
    def write(server: Server) -> None:
        if statement is None:
            server.statements[key].pop(name, None)
        else:
            server.statements[key][name] = statement

    return write


def _names(server: Server) -> set[str]:
    return set(server.names)


def _stated(name: str, fleet: Fleet) -> Operation:
    return lambda server: server.stated(name, fleet.now)


def _reading(key: str, name: str) -> Operation:
    return lambda server: server.statements[key].get(name)
