"""A proxy of a simulated fleet: sockets that carry bytes, and of the product what counts them and shares totals.

The ledger, the history with its database, and the thread of totals are the product's own, as `lifecycle/daemon.py`
puts them together. There is no control loop: what stages of budgets narrow is applied at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

from byte_mirror import ByteMirror, Company, Written, replace_at
from disk import DATABASE, WRITTEN_BACK_SECONDS, WriteAheadLog, copied, killed_at
from fleet_server import SlowAnswer, Way
from modelled_daemon import WatchedHistory
from modelled_proxy import PORT, Link, ModelSocket
from segments import PROXY
from timeline import VirtualClock

from mptcp_throttle.model import Address, FourTuple, RateKind, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.budget_account import BudgetAccount
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.fleet.exchange import ExchangeError
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals_thread import TICK_SECONDS, TotalsThread
from mptcp_throttled.lifecycle.fleet_member import fleet_member
from mptcp_throttled.observing.observer import pause_after
from mptcp_throttled.vocabulary.allowances import StageAhead
from mptcp_throttled.vocabulary.budgets import AccountKey, Subject
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.fleet import Load
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import Facts, WallClock
from mptcp_throttled.vocabulary.traffic import ClosedSubflow

if TYPE_CHECKING:
    from mptcp_throttle.config.schema import Config

NETWORK: Final = "lte"

_PAUSES: Final = (2 * TICK_SECONDS, 2.0)
"""After an attempt that has failed the thread waits so long at least, and at most: twice as long after each."""

_OBSERVATION_SECONDS: Final = 0.005
"""The processor time of an observation."""

_LOOK_AT_ONCE_SECONDS: Final = 0.05
_LINK: Final = Link(math.inf, math.inf)


class HostClock(Clock):
    """The clocks of one host of the fleet: the wall clock is by so many seconds `ahead` of the true time."""

    def __init__(self, true: VirtualClock) -> None:
        self._true = true
        self.ahead = 0.0
        self.is_synchronised = True

    def time(self) -> float:
        return self._true.true_time + self.ahead

    def monotonic(self) -> float:
        return self._true.now

    def processor_time(self) -> float:
        return 0.0


class KnownSubflows(Snapshot):
    """A snapshot of a control loop that decides for all `sockets`, and throttles none."""

    sockets: Mapping[FourTuple, ModelSocket]

    def all_decisions(self) -> Iterator[Decision]:
        """Of a decision, only the ends of its subflow are looked at."""
        return (cast("Decision", SimpleNamespace(subflow=socket)) for socket in self.sockets.values())


class FleetProxy:
    """A proxy with the `number`, and its host.

    `settled` is called once it has counted what its sockets have carried, and `losing` once an instance has ended.
    """

    def __init__(self, number: int, config: Config, state: Path, clock: VirtualClock) -> None:
        self.number, self.config = number, config
        self.clock = HostClock(clock)
        self.way = Way()
        self.sockets: dict[FourTuple, ModelSocket] = {}
        self.mirror = ByteMirror(self, lambda *_: False)
        self.accounts: Accounts | None = None
        self.thread: TotalsThread
        self.ledger: Ledger
        self.tick_due = self.observe_due = self.started_at = -math.inf
        self.pause = 0.0
        self.ticks = 0
        self.lineage = 0
        """How many databases it has lost."""
        self.settled: Callable[[FleetProxy], None] = lambda _: None
        self.losing: Callable[[FleetProxy], None] = lambda _: None
        self._state, self._states = state, itertools.count(1)
        self._root = state.parent
        state.mkdir()
        self._boots, self._boots_again = 0, False
        self._cookies, self._ports = itertools.count(1), itertools.count(10_000)
        self._closed: list[ClosedSubflow] = []
        self._kept: list[Written] = [Written()]
        self._log = WriteAheadLog()
        self._carried_at = clock.now
        self._carried: dict[Subject, int] = {}
        self._looked: dict[Subject, int] = {}
        self._ahead: dict[Subject, StageAhead] = {}
        self._caps: dict[Subject, float] = {}
        self._busy_since: dict[Address, float] = {}
        self._idle_since: dict[Address, float] = {}
        self._snapshot = KnownSubflows()

    # The daemon

    @property
    def is_up(self) -> bool:
        """Whether there is a daemon."""
        return self.accounts is not None

    def start(self) -> None:
        """The daemon starts, if there is none."""
        if self.accounts is not None:
            return
        config, now = self.config, self.clock.monotonic()
        history = WatchedHistory(self._state / "history.sqlite", f"boot-{self._boots}")
        ledger = Ledger(history.budgets(), lambda: self.clock.is_synchronised, is_shared=True)
        ledger.configure(config.networks, config.time_zone, self.clock.time())
        accounts = Accounts(history, ledger, self.clock, config.proxies, lambda _: self._apply())
        accounts.budgets_changed = self._apply
        assert config.fleet.url is not None
        self.thread = fleet_member(config.fleet, config.fleet.url, accounts, history, Refusals(), lambda _: None, Load)
        history.writing, history.written = self._settle, self._written
        self.accounts, self.ledger, self.history = accounts, ledger, history
        facts = Facts(wall_clock=WallClock(zone=config.time_zone))
        self._snapshot = KnownSubflows(networks=config.networks, facts=facts)
        object.__setattr__(self._snapshot, "sockets", self.sockets)
        self.mirror.company = Company(config.networks)
        self.mirror.started(ledger, self._kept, boots_again=self._boots_again)
        self._boots_again, self._kept = False, self.mirror.versions
        self.started_at, self.pause = now, 0.0
        self.tick_due = self.observe_due = now

    def kill(self, power: Random | None = None) -> None:
        """kill -9, or with random numbers for what is left of the log, a loss of power."""
        if self.accounts is None:
            return
        self._keep_state(power)
        kept = self.mirror.versions
        if power is not None:
            sure = [each for each in kept if each.at <= self.clock.monotonic() - WRITTEN_BACK_SECONDS]
            kept = [*sure[-1:], *(each for each in kept if each not in sure)]
            self._boots, self._boots_again = self._boots + 1, True
        self._gone(kept if power is not None else kept[-1:])
        if power is not None:
            self.sockets.clear()
            self._busy_since.clear()
            self._ahead, self._caps = {}, {}

    def kill_at_line(self, random: Random) -> None:
        """Kill it while it writes its database, or just after that."""
        accounts = self.accounts
        if accounts is None:
            return
        earlier = replace_at(self.mirror.versions[-1], self.mirror.versions[-1].at)
        accounts._flush_at = 0.0
        line = random.randint(1, random.choice((60, 120, 300)))
        if not killed_at(line, DATABASE, self.observe, self._keep_state):
            self._keep_state()
        if self.mirror.is_read:
            self.mirror.settle(self.ledger, {*self.sockets}, self.clock.time())
        self._gone([earlier, replace_at(self.mirror.present, self.clock.monotonic())])

    def stop(self) -> None:
        """It ends as the service does."""
        if self.accounts is None:
            return
        self.thread.stop()
        self.observe()
        self.accounts.close()
        self._gone([self.mirror.versions[-1]])

    def lose_database(self) -> None:
        """While no daemon runs, its database goes."""
        for file in self._state.iterdir():
            file.unlink()
        self.lineage += 1
        self._kept = [Written()]

    def _keep_state(self, power: Random | None = None) -> None:
        state = self._root / f"{self._state.name.partition('.')[0]}.{next(self._states)}"
        copied(self._state, state, power_lost=power is not None)
        if power is not None:
            self._log.tear(state, self.clock.monotonic(), power)
        self._state = state

    def _gone(self, kept: list[Written]) -> None:
        self.losing(self)
        database = self.history._database
        if database is not None:
            database.close()
        self.thread._close()
        self.accounts = None
        self._kept = kept
        self.mirror.killed()
        self._closed.clear()
        self.way.dies_after = -1

    # Its threads

    def observe(self) -> None:
        """One observation."""
        accounts = self.accounts
        assert accounts is not None
        self.carry()
        self.mirror.read()
        sockets = {ends: socket.state(None) for ends, socket in self.sockets.items()}
        closed, self._closed = self._closed, []
        self.mirror.heard(closed)
        accounts.note_closed(closed)
        accounts.observe(sockets, self._snapshot, {})
        self._settle()
        self._apply()
        now = self.clock.monotonic()
        self.observe_due = now + pause_after(_OBSERVATION_SECONDS, accounts.seconds_to_next_stage)

    def _settle(self) -> None:
        if self.mirror.is_read:
            self.mirror.settle(self.ledger, {*self.sockets}, self.clock.time())
            self._looked = dict(self._carried)
            self.settled(self)

    def _written(self) -> None:
        self.mirror.written(self.clock.monotonic())
        self._log.note(self._state, self.clock.monotonic())

    def tick(self) -> None:
        """One tick of the thread of totals, which pauses as `TotalsThread.run` does."""
        waited = 0.0
        try:
            self.thread.step(self.clock.monotonic())
            self.pause = TICK_SECONDS
        except ExchangeError as error:
            if isinstance(error.__cause__, SlowAnswer):
                waited = error.__cause__.seconds
            self.thread._note_failure(error)
            self.pause = min(2 * self.pause or TICK_SECONDS, _PAUSES[1])
        self.tick_due = self.clock.monotonic() + waited + self.pause

    # What flows

    def open(self, address: str, rate: float) -> ModelSocket:
        """A client opens a connection, by which it receives at a rate in bytes/s."""
        self.carry()
        port = 10_000 + next(self._ports) % 50_000
        ends = FourTuple.of(ip_address(address).packed, port, ip_address(PROXY).packed, PORT)
        cookie = next(self._cookies)
        socket = ModelSocket(ends, cookie, cast("Token", cookie), _LINK, self.clock.monotonic(), wanted=rate)
        self.sockets[ends] = socket
        self._busy_since.setdefault(socket.ends.client.address, self.clock.monotonic())
        return socket

    def end(self, socket: ModelSocket) -> None:
        """A connection ends, unless it has ended with its host."""
        if socket.ends not in self.sockets:
            return
        self.carry()
        del self.sockets[socket.ends]
        if self.accounts is not None:
            self._closed.append(ClosedSubflow(socket.token, socket.ends, socket.cookie, socket.totals))
        self.mirror.ended(socket)
        client = socket.ends.client.address
        if all(other.ends.client.address != client for other in self.sockets.values()):
            del self._busy_since[client]
            self._idle_since[client] = self.clock.monotonic()

    def carry(self) -> None:
        """Let all sockets carry what they do until now. Called before anything changes."""
        now = self.clock.monotonic()
        seconds, self._carried_at = now - self._carried_at, now
        if seconds <= 0.0:
            return
        for socket in self.sockets.values():
            self._carry(socket, seconds)

    def _carry(self, socket: ModelSocket, seconds: float) -> None:
        client = socket.ends.client.address
        number = sum(other.ends.client.address == client for other in self.sockets.values())
        rate = self.rate_of(client, socket.wanted, number)
        most = min(self._room(client), self._room(None))
        payload = rate * seconds
        if payload > most:
            # The programs of the kernel go over to the next stage by themselves.
            self._use_up(client)
            narrowed = self.rate_of(client, socket.wanted, number)
            payload = max(most, 0.0) + narrowed * (seconds - max(most, 0.0) / rate)
            self.observe_due = min(self.observe_due, self.clock.monotonic() + _LOOK_AT_ONCE_SECONDS)
        before = socket.ip_sent + socket.ip_received
        socket.part_sent += payload
        whole = int(socket.part_sent)
        socket.part_sent -= whole
        socket.send(whole)
        added = socket.ip_sent + socket.ip_received - before
        for subject in (client, None):
            self._carried[subject] = self._carried.get(subject, 0) + added

    def rate_of(self, client: Address, wanted: float, number: int) -> float:
        """At which a socket carries, of so many of a client."""
        return min(wanted, *(self._caps.get(subject, math.inf) / number for subject in (client, None)))

    def _room(self, subject: Subject) -> float:
        ahead = self._ahead.get(subject)
        if ahead is None:
            return math.inf
        return ahead.left - (self._carried.get(subject, 0) - self._looked.get(subject, 0))

    def _use_up(self, client: Address) -> None:
        for subject in (client, None):
            if self._room(subject) <= self._room(client if subject is None else None):
                ahead = self._ahead.pop(subject, None)
                if ahead is not None:
                    self._narrow(subject, ahead.budget.allowed(ahead.stage + 1).get(RateKind.LIMIT))

    def _narrow(self, subject: Subject, rate: Rate | None) -> None:
        if rate is not None:
            self._caps[subject] = min(self._caps.get(subject, math.inf), rate.bits_per_second / 8)

    def _apply(self) -> None:
        """Rules and programs are told what budgets say now."""
        accounts = self.accounts
        if accounts is None:
            return
        self.carry()
        spent = self.ledger.spent
        self._caps = {}
        for subject, reached in spent.get(NETWORK, {}).items():
            for each in reached:
                self._narrow(subject, each.budget.allowed(each.stages).get(RateKind.LIMIT))
        self._ahead = {ahead.subject: ahead for ahead in accounts.stages_ahead(spent)}

    # What is checked

    @property
    def name(self) -> str:
        """Whose field is its own, with its number, as two may have one name."""
        return f"{self.config.fleet.name} ({self.number})"

    @property
    def number_of_bytes(self) -> int:
        """What all sockets have carried."""
        return self._carried.get(None, 0)

    def busy(self, account: BudgetAccount, seconds: float) -> set[Subject]:
        """The subjects of a budget that have had connections for so many seconds."""
        now = self.clock.monotonic()
        return _subjects(account, {client for client, since in self._busy_since.items() if now - since >= seconds})

    def busy_for(self, account: BudgetAccount, subject: Subject) -> float:
        """For how many seconds a subject of a budget has had connections."""
        whose, now = account.firsts.get(NETWORK, subject), self.clock.monotonic()
        return max(now - since for client, since in self._busy_since.items() if whose in {None, client})

    def idle(self, account: BudgetAccount, seconds: float) -> set[Subject]:
        """The subjects of a budget whose last connection has ended in the last so many seconds."""
        now = self.clock.monotonic()
        return _subjects(account, {client for client, since in self._idle_since.items() if now - since <= seconds})

    def carried(self, account: BudgetAccount, subject: Subject) -> int:
        """What a subject of a budget has carried in the present period, also what is not counted yet."""
        use, whose = self.ledger._accounts[account.key].uses.get(subject), account.firsts.get(NETWORK, subject)
        return (use.used if use else 0) + self._carried.get(whose, 0) - self._looked.get(whose, 0)

    def wanted(self, account: BudgetAccount, subject: Subject) -> float:
        """At which rate a subject of a budget would carry without narrower rates, in bytes/s."""
        whose = account.firsts.get(NETWORK, subject)
        return sum(each.wanted for each in self.sockets.values() if whose in {None, each.ends.client.address})

    def given(self, account: BudgetAccount, subject: Subject) -> float:
        """At which rate a subject of a budget may carry now, in bytes/s."""
        whose = account.firsts.get(NETWORK, subject)
        return min(self._caps.get(each, math.inf) for each in {whose, None})

    def counts(self, key: AccountKey, start: float) -> bool:
        """Whether there is a daemon that counts in this period of a budget."""
        if self.accounts is None or key not in self.ledger._accounts:
            return False
        account = self.ledger._accounts[key]
        return account.period.start == start and not account.is_provisional


def _subjects(account: BudgetAccount, clients: set[Address]) -> set[Subject]:
    if account.firsts:
        return {None} if clients & {*account.firsts.values()} else set()
    return {*clients} if account.has_clients else {None} if clients else set()
