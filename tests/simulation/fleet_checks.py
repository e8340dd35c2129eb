"""What must hold of the totals of a simulated fleet, whatever fails.

Totals are compared with what the ledgers have counted, and those with what sockets have carried (`byte_mirror.py`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fleet_proxy import FleetProxy
from violation import Violation

from mptcp_throttle.model import RateKind
from mptcp_throttled.accounting.budget_account import BudgetAccount
from mptcp_throttled.accounting.ledger_rows import MOST_FIELDS
from mptcp_throttled.fleet.keys import name_of
from mptcp_throttled.fleet.totals import LOWER_SECONDS
from mptcp_throttled.vocabulary.budgets import AccountKey, Subject
from mptcp_throttled.vocabulary.fleet import FAR_SECONDS, OwnTotal

if TYPE_CHECKING:
    from simulated_fleet import SimulatedFleet

LATE_SECONDS: Final = 5.0
"""What a proxy has counted is known to the others so soon, if the client is near to a stage."""

MIDDLE_LATE_SECONDS: Final = 7.0
"""So soon if it is neither near nor far: counted after 0.5 s, published after 2 s, and read after 4 s."""

_NEAR_SECONDS: Final = 128.0
"""Before a stage, a client is near to it for so long (totals_book.py, _MIDDLE_SECONDS)."""

REST_SECONDS: Final = 36.0
"""After so long without traffic and faults, also what is far from a stage is known: 16 s each to publish and read."""

SLOWED_SECONDS: Final = 1.0
"""How soon a client at a stage is slowed on each proxy: 0.4 s to count, and 0.25 s each to publish and read."""

_FAR_PART: Final = 18.0 / FAR_SECONDS
"""Who is far from a stage by what it carries at a proxy carries no more there in the 16 s until that reads again."""

Lineage = tuple[int, int]
"""A ledger: the number of a proxy, and how many it has lost before."""

_FEW_BYTES: Final = 64 << 10
_KEPT_SECONDS: Final = 2 * 86_400.0
_DAY: Final = 86_400.0
_LATEST_CLOCK_SECONDS: Final = 41 * _DAY
"""A hash stays as long as the clock of its proxy says, which may be so late."""


class Counter(NamedTuple):
    """A subject of a budget in the period that begins at `start`."""

    key: AccountKey
    start: float
    subject: Subject


@dataclass
class Grown:
    """What a proxy has counted lately: when, and how much then."""

    at: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, used: int) -> None:
        """It is so much now."""
        if not self.at or self.at[-1][1] != used:
            self.at.append((now, used))
        while len(self.at) > 1 and self.at[1][0] < now - REST_SECONDS - 1.0:
            self.at.popleft()

    def since(self, when: float) -> int:
        """By how much it has grown since then."""
        before = next((used for at, used in reversed(self.at) if at <= when), 0)
        return self.at[-1][1] - before

    def late_seconds(self, now: float, left: float) -> float:
        """How soon others know of it, by how long what is left lasts, as it grew lately or a little earlier.

        What was left `MIDDLE_LATE_SECONDS` ago counts: a client that is near now may have been far then.
        """
        lately = self.since(now - LATE_SECONDS)
        rate = min(lately, self.since(now - 2 * LATE_SECONDS) - lately) / LATE_SECONDS
        before = left + MIDDLE_LATE_SECONDS * rate
        if before <= _NEAR_SECONDS * rate:
            return LATE_SECONDS
        return MIDDLE_LATE_SECONDS if before <= FAR_SECONDS * rate else REST_SECONDS


class FleetChecks:
    """All checks of a fleet; each raises Violation."""

    def __init__(self, world: SimulatedFleet) -> None:
        self._world = world
        self._peaks: dict[Counter, dict[Lineage, int]] = {}
        self._grown: dict[tuple[Lineage, Counter], Grown] = {}
        self._most: dict[tuple[int, float, Counter], int] = {}
        self.false_totals: set[tuple[bytes, str]] = set()
        self.latest_cut = 0.0
        self._crossed: dict[Counter, list[float]] = {}

    # What is noted

    def note_counted(self, proxy: FleetProxy) -> None:
        """A proxy has counted what its sockets have carried: each byte once."""
        proxy.mirror.check(proxy.ledger)
        now, own = self._world.clock.now, (proxy.number, proxy.lineage)
        for account in proxy.ledger._accounts.values():
            for counter, used in _counters(account):
                peaks = self._peaks.setdefault(counter, {})
                peaks[own] = max(peaks.get(own, 0), used)
                grown = self._grown.get((own, counter))
                if grown is None:
                    grown = self._grown[own, counter] = Grown()
                grown.note(now, used)

    def note_gone(self, proxy: FleetProxy) -> None:
        """An instance of a proxy has ended."""
        for known in [known for known in self._most if known[0] == proxy.number]:
            del self._most[known]

    def forget(self, before: float) -> None:
        """Forget periods that began before that time, in seconds since the epoch."""
        for counter in [counter for counter in self._peaks if counter.start < before]:
            del self._peaks[counter]
            self._crossed.pop(counter, None)
        for known in [known for known in self._grown if known[1].start < before]:
            del self._grown[known]

    # What is checked

    def check(self, proxy: FleetProxy, well: float) -> None:
        """After a tick of a proxy; all has been well for so many seconds."""
        if not proxy.thread._field:
            return
        for account in proxy.ledger._accounts.values():
            if account.shared is None:
                continue
            for subject, elsewhere in account.elsewhere.items():
                counter = Counter(account.key, account.period.start, subject)
                self._check_most(proxy, account, counter, elsewhere.used)
                self._check_fall(proxy, account, counter, elsewhere.used)
            if well >= LATE_SECONDS:
                self._check_late(proxy, account)
        if well >= LATE_SECONDS:
            self._check_cut(proxy)

    def _check_most(self, proxy: FleetProxy, account: BudgetAccount, counter: Counter, used: int) -> None:
        own = proxy.number, proxy.lineage
        most = sum(peak for ledger, peak in self._peaks.get(counter, {}).items() if ledger != own)
        if used <= most:
            return
        name = _name(account, counter.subject)
        false = self._false_totals_in(name)
        age = proxy.clock.time() - account.period.start + LATE_SECONDS
        if used > most + false * age * proxy.config.fleet.link.bits_per_second / 8:
            raise Violation(
                f"F1: {proxy.name} adds {used} bytes of {_shown(counter)}; others have counted {most}, {false} false"
            )

    def _check_fall(self, proxy: FleetProxy, account: BudgetAccount, counter: Counter, used: int) -> None:
        known = proxy.number, proxy.started_at, counter
        most = self._most.get(known, 0)
        if used >= most:
            self._most[known] = used
            return
        name = _name(account, counter.subject)
        if self._false_totals_in(name):
            return
        fallen = self._world.server.fallen(name, proxy.thread._field.encode(), LOWER_SECONDS)
        # What the server has lost of a lost ledger may be known to no proxy that restarts.
        lost = self._lost(counter) if len(self._peaks.get(counter, {})) > MOST_FIELDS else 0
        if used < most - fallen - lost:
            raise Violation(f"F2: {proxy.name} adds {used} bytes of {_shown(counter)}, which were {most}")
        self._most[known] = used

    def _lost(self, counter: Counter) -> int:
        """How many bytes the ledgers that were lost have counted."""
        return sum(
            peak
            for (number, lineage), peak in self._peaks.get(counter, {}).items()
            if lineage < self._world.proxies[number].lineage
        )

    def _check_late(self, proxy: FleetProxy, account: BudgetAccount) -> None:
        now = self._world.clock.now
        if now - proxy.started_at < LATE_SECONDS or account.is_provisional:
            return
        for subject in proxy.busy(account, 2 * LATE_SECONDS):
            counter = Counter(account.key, account.period.start, subject)
            left = account.left_to_next_stage(subject, proxy.clock.time())
            own = self._grown.get(((proxy.number, proxy.lineage), counter))
            if left == math.inf or _name(account, subject) in self._world.server.damaged:
                continue
            # A proxy reads nothing of a client before that has carried something there in its period.
            if own is None or now - own.at[0][0] < LATE_SECONDS:
                continue
            own_late = own.late_seconds(now, left)
            used = young = 0
            for other in self._world.proxies:
                grown = self._grown.get(((other.number, other.lineage), counter))
                if other is not proxy and grown is not None and other.counts(counter.key, counter.start):
                    used += grown.at[-1][1]
                    late = max(own_late, grown.late_seconds(now, self._left_at(other, counter, left)))
                    if self._world.well < late:
                        young += grown.at[-1][1]
                    else:
                        young += max(grown.since(now - late), 0)
            known = account.elsewhere.get(subject)
            missing = used - (0 if known is None else known.used)
            if missing > young:
                raise Violation(
                    f"F3: {proxy.name} misses {missing} bytes of {_shown(counter)}, of which {young} are so young;"
                    f" {left:.0f} are left"
                )

    def _left_at(self, other: FleetProxy, counter: Counter, left: float) -> float:
        """What is left until the next stage, or more, if another proxy believes so.

        Of a lost ledger, it may know what the server has lost, too, or not know what this one does.
        """
        if not self._lost(counter):
            return left
        account = other.ledger._accounts[counter.key]
        return max(left, account.left_to_next_stage(counter.subject, other.clock.time()))

    def _check_cut(self, proxy: FleetProxy) -> None:
        for account in proxy.ledger._accounts.values():
            if account.shared is None or account.is_provisional:
                continue
            for subject in proxy.busy(account, 0.0):
                self._check_cut_of(proxy, account, subject)

    def _check_cut_of(self, proxy: FleetProxy, account: BudgetAccount, subject: Subject) -> None:
        now, budget, start = self._world.clock.now, account.budget, account.period.start
        counter = Counter(account.key, start, subject)
        total = sum(
            other.carried(account, subject) for other in self._world.proxies if other.counts(account.key, start)
        )
        reached = sum(total > stage.at * budget.amount + _FEW_BYTES for stage in budget.stages)
        crossed = self._crossed.setdefault(counter, [])
        del crossed[reached:]
        crossed += [now] * (reached - len(crossed))
        if not reached:
            return
        allowed = budget.allowed(reached)[RateKind.LIMIT].bits_per_second / 8
        given = min(proxy.given(account, subject), proxy.wanted(account, subject))
        if given <= 1.01 * allowed or _name(account, subject) in self._world.server.damaged:
            return
        late = min(now - crossed[-1], proxy.busy_for(account, subject), self._world.well - LATE_SECONDS)
        few = _FAR_PART * budget.stages[reached - 1].at * budget.amount
        if late * given > few:
            self.latest_cut = max(self.latest_cut, late)
            if late > SLOWED_SECONDS:
                raise Violation(
                    f"F4: {proxy.name} gives {subject} {given:.0f} bytes/s, {late:.2f} s after it was to have"
                    f" {budget.stages[reached - 1]}"
                )

    def _false_totals_in(self, name: bytes) -> int:
        """How many fields of a hash are no proxy's."""
        return sum(hash_ == name for hash_, _ in self.false_totals)

    def check_rest(self) -> None:
        """Nothing was carried, and nothing has failed, for `REST_SECONDS`."""
        for proxy in self._world.proxies:
            own = proxy.thread._field.encode()
            for account in proxy.ledger._accounts.values():
                if account.shared is None or account.is_provisional:
                    continue
                for counter, used in _counters(account):
                    if _name(account, counter.subject) in self._world.server.damaged:
                        continue
                    self._check_published(proxy, account, counter, used, own)
                # A proxy reads nothing of a client that has carried nothing there in the present period.
                for subject in proxy.idle(account, REST_SECONDS + 2.0) & account.uses.keys():
                    self._check_known(proxy, account, subject, own)

    def _check_published(
        self, proxy: FleetProxy, account: BudgetAccount, counter: Counter, used: int, own: bytes
    ) -> None:
        hashed = self._world.server.hashes.get(_name(account, counter.subject))
        value = None if hashed is None else hashed.fields.get(own)
        if value != b"%d" % used:
            raise Violation(f"F5: {proxy.name} has counted {used} bytes of {_shown(counter)}, the server has {value!r}")

    def _check_known(self, proxy: FleetProxy, account: BudgetAccount, subject: Subject, own: bytes) -> None:
        hashed = self._world.server.hashes.get(_name(account, subject))
        known = account.elsewhere.get(subject)
        used, name = 0 if known is None else known.used, _name(account, subject)
        if hashed is None or name in self._world.server.damaged or self._false_totals_in(name):
            return
        expected = sum(int(value) for key, value in hashed.fields.items() if key != own)
        # Of a ledger that was lost, it may know what the server has lost, too.
        if used < expected:
            counter = Counter(account.key, account.period.start, subject)
            raise Violation(f"F6: {proxy.name} adds {used} bytes of {_shown(counter)}, the server has {expected}")

    def check_bounds(self) -> None:
        """Nothing stays at the server for ever."""
        world = self._world
        for name, hashed in world.server.hashes.items():
            if hashed.expires == math.inf:
                raise Violation(f"F7: {name.decode()} never expires")
            _, kind, part, *_ = *name.split(b":"), b""
            if kind != b"used":
                continue
            longest = max(int(part) + 31.2 * _DAY - world.clock.true_time, 0.0) + _KEPT_SECONDS + _LATEST_CLOCK_SECONDS
            if hashed.expires - world.clock.now > longest:
                raise Violation(f"F7: {name.decode()} expires in {hashed.expires - world.clock.now:.0f} s")


def _counters(account: BudgetAccount) -> list[tuple[Counter, int]]:
    if account.shared is None:
        return []
    key, start = account.key, account.period.start
    return [
        (Counter(key, start, subject), use.used)
        for subject, use in account.uses.items()
        if not (subject is None and account.has_clients)
    ]


def _name(account: BudgetAccount, subject: Subject) -> bytes:
    return name_of(OwnTotal(account.key, subject, account.period, 0, 0.0), None)


def _shown(counter: Counter) -> str:
    return f"{counter.key.owner} {counter.key.budget} of {counter.subject or 'all'} since {counter.start:.0f}"
