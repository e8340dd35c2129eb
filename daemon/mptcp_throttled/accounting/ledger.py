"""The ledger of budgets: what networks and their clients have used of each, and which stages they have reached.

IP bytes are counted as in `vocabulary.traffic`, of all TCP on the proxy's ports: also of connections without MPTCP, on
which a carrier's bill does not differ. A period begins when the wall clock says so, never earlier than the present one:
while the clock is set back, bytes count in the present period. Bytes of an observation count in the period in which it
began.

A budget keeps its count as long as its network, `per`, `direction` and `every` stay. If its `starts` changes, the
present period ends as it would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Final, NamedTuple

from mptcp_throttle.model import AccessNetwork, Budget, Counting, Every, Per
from mptcp_throttle.periods import Period, period_at
from mptcp_throttle.schedule import window_at
from mptcp_throttled.accounting.ledger_rows import LedgerChanges, StoredAccount, StoredPeriod
from mptcp_throttled.vocabulary.budgets import AccountKey, Addition, Begun, Level, Reached, Spent, Subject, Use

MAX_CLIENTS: Final = 200_000
"""Of a budget. What more clients carry is counted for all of them together, and reaches no stage."""

_NO_LEVEL: Final = (0, False)


class Carried(NamedTuple):
    """IP bytes to and from a client of a network; `is_mptcp` is false for TCP without MPTCP."""

    network: str
    client: Subject
    sent: int
    received: int
    is_mptcp: bool


@dataclass(slots=True)
class _Account:
    """What is known of a budget.

    `levels` has how many stages a subject has reached, and whether the operator was warned. `changed` and
    `changed_additions` are the subjects of which not all is written, nor is the period if it `is_new`. `rolled_over`
    and `is_provisional` are as in `StoredPeriod`. `total` is what all subjects have used.
    """

    network: AccessNetwork
    budget: Budget
    period: Period
    uses: dict[Subject, Use] = field(default_factory=dict)
    additions: dict[Subject, tuple[Addition, ...]] = field(default_factory=dict)
    levels: dict[Subject, tuple[int, bool]] = field(default_factory=dict)
    changed: set[Subject] = field(default_factory=set)
    changed_additions: set[Subject] = field(default_factory=set)
    is_new: bool = True
    rolled_over: bool = False
    is_provisional: bool = False
    total: int = 0

    @property
    def key(self) -> AccountKey:
        return AccountKey(self.network.name, self.budget.key)

    def additions_of(self, subject: Subject) -> tuple[Addition, ...]:
        """What was added for a subject. One that has used nothing of the period before has all of that."""
        amount = self.budget.amount
        if self.rolled_over and subject not in self.uses and subject not in self.additions:
            return (Addition(amount, amount, self.period.end),)
        return self.additions.get(subject, ())

    def adopt(self, stored: StoredAccount) -> None:
        """Go on from what is stored; what was counted meanwhile is added."""
        uses = {subject: use.plus(self.uses.get(subject, Use())) for subject, use in stored.uses.items()}
        additions = {
            subject: (*stored.additions.get(subject, ()), *self.additions.get(subject, ()))
            for subject in {*stored.additions, *self.additions}
        }
        self.changed |= self.uses.keys()
        self.changed_additions |= self.additions.keys()
        self.uses, self.additions = {**self.uses, **uses}, additions
        self.period, self.rolled_over, self.is_provisional = stored.period
        self.total, self.is_new = sum(use.used for use in self.uses.values()), False


class BudgetUse(NamedTuple):
    """A budget of a subject as it is: `spent_stages` are reached, `left` bytes are not used, additions included."""

    network: str
    budget: Budget
    period: Period
    subject: Subject
    use: Use
    additions: tuple[Addition, ...]
    left: int
    spent_stages: int


class BudgetTotals(NamedTuple):
    """A budget of a network, or of all its clients together: how much is used, and how many have reached each stage."""

    network: str
    budget: Budget
    used: int
    reached: tuple[int, ...]


def used_fraction(budget: Budget, use: Use, additions: Iterable[Addition], at: float) -> float:
    """Which part of a budget is used at a time, in seconds since the epoch. What was added and is left lowers it."""
    return (use.used - sum(addition.left for addition in _held(additions, at))) / budget.amount


def reached_stages(budget: Budget, fraction: float) -> int:
    """How many stages of a budget are reached when this fraction is used."""
    return sum(fraction >= stage.at for stage in budget.stages)


def charge(
    use: Use, additions: tuple[Addition, ...], amount: int, without_mptcp: int, at: float
) -> tuple[Use, tuple[Addition, ...]]:
    """Use `amount` bytes, `without_mptcp` of them so: first of what was added, in the order in which it ends."""
    left: list[Addition] = []
    for addition in sorted(_held(additions, at), key=lambda each: (each.until is None, each.until or 0.0)):
        part = min(addition.left, amount)
        amount -= part
        if addition.left > part:
            left.append(addition._replace(left=addition.left - part))
    return Use(use.used + amount, use.without_mptcp + min(without_mptcp, amount)), tuple(left)


def _held(additions: Iterable[Addition], at: float) -> Iterator[Addition]:
    return (addition for addition in additions if addition.until is None or addition.until > at)


def _counted(budget: Budget, carried: Carried) -> int:
    match budget.counting:
        case Counting.DOWN:
            return carried.sent
        case Counting.UP:
            return carried.received
        case Counting.BOTH:
            return carried.sent + carried.received


class Ledger:
    """The budgets of all networks. For one thread at a time, but `spent` is for any.

    `stored` is what an earlier instance has written; None: it could not be read, and `adopt` is called once it can.
    `is_synchronised` tells whether the wall clock can be trusted: while it cannot, no period begins but a provisional
    one where there is none.
    """

    def __init__(self, stored: Mapping[AccountKey, StoredAccount] | None, is_synchronised: Callable[[], bool]) -> None:
        self._stored = dict(stored or {})
        self.is_unread = stored is None
        self._is_synchronised = is_synchronised
        self._accounts: dict[AccountKey, _Account] = {}
        self._removed: dict[AccountKey, _Account] = {}
        self._by_network: dict[str, list[_Account]] = {}
        self._zone: tzinfo | None = None
        self._networks: Sequence[AccessNetwork] = ()
        self._soon = math.inf
        self._was_synchronised = is_synchronised()
        self._is_stale = False
        self.spent: Spent = {}

    @property
    def has_budgets(self) -> bool:
        """Whether any network has one."""
        return bool(self._accounts)

    def use(self, networks: Sequence[AccessNetwork], zone: tzinfo | None, at: float) -> list[Level]:
        """Keep the budgets of these networks from now on; periods are those of the `zone`.

        What was used of others is kept as long as this instance runs, and in the database. Returns the levels that
        another amount, or other stages, have reached.
        """
        if networks is self._networks and zone == self._zone:
            return []
        self._networks, self._zone = networks, zone
        known, self._accounts, self._by_network = {**self._removed, **self._accounts}, {}, {}
        for network in networks:
            for budget in network.budgets:
                account = self._account(network, budget, known, at)
                self._accounts[account.key] = account
                self._by_network.setdefault(network.name, []).append(account)
        self._removed = {key: account for key, account in known.items() if key not in self._accounts}
        return self._find_levels(at)

    def _account(
        self, network: AccessNetwork, budget: Budget, known: Mapping[AccountKey, _Account], at: float
    ) -> _Account:
        key = AccountKey(network.name, budget.key)
        if key in known:
            account = known[key]
            account.network, account.budget = network, budget
            return account
        period = period_at(budget.every, budget.starts, at, self._zone)
        account = _Account(network, budget, period, is_provisional=not self._was_synchronised)
        if (stored := self._stored.pop(key, None)) is not None:
            account.adopt(stored)
        return account

    def adopt(self, stored: Mapping[AccountKey, StoredAccount], at: float) -> None:
        """Go on from what an earlier instance has written, now that it can be read."""
        self.is_unread = False
        for key, of_account in stored.items():
            if key in self._accounts:
                self._accounts[key].adopt(of_account)
            else:
                self._stored[key] = of_account
        self._find_levels(at)

    def _find_levels(self, at: float) -> list[Level]:
        told = [
            level
            for account in self._accounts.values()
            for subject in {*account.uses, *account.additions}
            for level in self._note_level(account, subject, at)
        ]
        self._publish()
        return told

    def count(self, carried: Iterable[Carried], at: float, seconds: float) -> list[Level | Begun]:
        """Count what was carried in the last `seconds` before `at`, and begin the periods that are due.

        `at` is in seconds since the epoch. Returns what the operator is to be told.
        """
        told: list[Level | Begun] = []
        amounts = self._charge_all(carried, at)
        self._soon = math.inf
        for (key, subject), amount in amounts.items():
            account = self._accounts[key]
            told += self._note_level(account, subject, at)
            self._soon = min(self._soon, self._seconds_to_next_stage(account, subject, amount / max(seconds, 0.1), at))
        told += self._begin_periods(at)
        self._drop_ended_additions(at)
        if self._is_stale:
            self._publish()
        return told

    def _charge_all(self, carried: Iterable[Carried], at: float) -> dict[tuple[AccountKey, Subject], int]:
        """How many bytes each subject of a budget has used."""
        amounts: dict[tuple[AccountKey, Subject], int] = {}
        free = {network.name for network in self._networks if network.budgets and self._is_free(network, at)}
        for each in carried:
            for account in () if each.network in free else self._by_network.get(each.network, ()):
                amount = _counted(account.budget, each)
                if not amount:
                    continue
                subject = each.client if account.budget.per is Per.CLIENT else None
                if subject not in account.uses and len(account.uses) >= MAX_CLIENTS:
                    subject = None
                without, additions = 0 if each.is_mptcp else amount, account.additions_of(subject)
                use, left = charge(account.uses.get(subject, Use()), additions, amount, without, at)
                self._set(account, subject, use, left)
                key = account.key, subject
                amounts[key] = amounts.get(key, 0) + amount
        return amounts

    def _is_free(self, network: AccessNetwork, at: float) -> bool:
        window = window_at(network.schedule, at, self._zone)
        return window is not None and not window.counts

    def _set(self, account: _Account, subject: Subject, use: Use, additions: tuple[Addition, ...]) -> None:
        account.total += use.used - account.uses.get(subject, Use()).used
        account.uses[subject] = use
        account.changed.add(subject)
        if additions != account.additions.get(subject, ()):
            self._set_additions(account, subject, additions)

    def _set_additions(self, account: _Account, subject: Subject, additions: tuple[Addition, ...]) -> None:
        account.changed_additions.add(subject)
        if additions:
            account.additions[subject] = additions
        else:
            del account.additions[subject]

    def _note_level(self, account: _Account, subject: Subject, at: float) -> list[Level]:
        budget, use = account.budget, account.uses.get(subject, Use())
        if subject is None and budget.per is Per.CLIENT:
            return []
        fraction = used_fraction(budget, use, account.additions_of(subject), at)
        is_warned = budget.warn_at is not None and fraction >= budget.warn_at
        before, level = account.levels.get(subject, _NO_LEVEL), (reached_stages(budget, fraction), is_warned)
        if level == before:
            return []
        if level == _NO_LEVEL:
            del account.levels[subject]
        else:
            account.levels[subject] = level
        self._is_stale = self._is_stale or level[0] != before[0]
        is_told = level[0] > before[0] or (level[0] == 0 and level[1] > before[1])
        return [Level(account.key, budget, subject, use, level[0])] if is_told else []

    def _seconds_to_next_stage(self, account: _Account, subject: Subject, rate: float, at: float) -> float:
        """`rate` is in bytes/s."""
        budget = account.budget
        fraction = used_fraction(budget, account.uses[subject], account.additions_of(subject), at)
        ahead = min((stage.at for stage in budget.stages if stage.at > fraction), default=math.inf)
        return (ahead - fraction) * budget.amount / rate

    def _begin_periods(self, at: float) -> list[Begun]:
        is_synchronised = self._is_synchronised()
        self._is_stale = self._is_stale or is_synchronised != self._was_synchronised
        self._was_synchronised = is_synchronised
        begun = []
        for account in self._accounts.values() if is_synchronised else ():
            present = period_at(account.budget.every, account.budget.starts, at, self._zone)
            if account.is_provisional:
                account.period, account.is_provisional = present, False
                account.is_new, account.changed, self._is_stale = True, {*account.uses}, True
            if at < account.period.end:
                continue
            before, old, freed = account.uses, account.period, self._forget_uses(account)
            # Its `starts` may have changed.
            account.period = Period(max(present.start, old.end), present.end)
            account.rolled_over = account.budget.rollover and present.start <= old.end
            if account.rolled_over:
                self._roll_over(account, before)
            begun.append(Begun(account.key, account.budget, account.period, freed))
        return begun

    def _roll_over(self, account: _Account, uses: Mapping[Subject, Use]) -> None:
        """Add what is not used of a period that has ended. Who has used nothing of it has all: `additions_of`."""
        for subject, use in uses.items():
            left = account.budget.amount - use.used
            added = (Addition(left, left, account.period.end),) if left > 0 else ()
            if use.used:
                self._set(account, subject, Use(), (*account.additions.get(subject, ()), *added))

    def _forget_uses(self, account: _Account) -> int:
        """Begin the account again; how many subjects had reached a stage."""
        freed = sum(stages > 0 for stages, _ in account.levels.values())
        account.uses, account.levels, account.changed, account.is_new, account.total = {}, {}, set(), True, 0
        account.rolled_over = False
        self._is_stale = True
        return freed

    def _drop_ended_additions(self, at: float) -> None:
        for account in self._accounts.values():
            for subject, additions in list(account.additions.items()):
                held = tuple(_held(additions, at))
                if held != additions:
                    self._set_additions(account, subject, held)
                    self._note_level(account, subject, at)

    def _publish(self) -> None:
        spent: dict[str, dict[Subject, tuple[Reached, ...]]] = {}
        for account in self._accounts.values():
            until = account.period.end if self._was_synchronised else None
            of_network = spent.setdefault(account.network.name, {})
            for subject, (stages, _) in account.levels.items():
                if stages:
                    reached = Reached(account.budget, account.budget.stages[:stages], until)
                    of_network[subject] = (*of_network.get(subject, ()), reached)
        self._is_stale = False
        self.spent = spent

    @property
    def seconds_to_next_stage(self) -> float:
        """When the first subject will reach a stage, if all go on as in the last observation."""
        return self._soon

    def changes(self) -> LedgerChanges:
        """What `written` has not confirmed."""
        accounts = [*self._removed.items(), *self._accounts.items()]
        return LedgerChanges(
            {
                key: StoredPeriod(account.period, account.rolled_over, account.is_provisional)
                for key, account in accounts
                if account.is_new
            },
            {key: {subject: account.uses[subject] for subject in account.changed} for key, account in accounts},
            {
                key: {subject: account.additions.get(subject, ()) for subject in account.changed_additions}
                for key, account in accounts
            },
        )

    def written(self) -> None:
        """The changes are in the database."""
        for account in (*self._removed.values(), *self._accounts.values()):
            account.is_new, account.changed, account.changed_additions = False, set(), set()

    def write_all_again(self) -> None:
        """The database is another one: all is a change."""
        for account in (*self._removed.values(), *self._accounts.values()):
            account.is_new, account.changed, account.changed_additions = True, {*account.uses}, {*account.additions}

    def matching(self, network: str, subject: Subject, every: Every | None) -> list[AccountKey]:
        """The budgets of a network that subject has, with periods of that length; None: of any."""
        per = Per.NETWORK if subject is None else Per.CLIENT
        return [
            account.key
            for account in self._by_network.get(network, ())
            if account.budget.per is per and every in (None, account.budget.every)
        ]

    def additions_of(self, key: AccountKey, subject: Subject, at: float) -> tuple[Addition, ...]:
        """What is left of what was added to a budget of a subject."""
        return tuple(_held(self._accounts[key].additions_of(subject), at))

    def add(self, key: AccountKey, subject: Subject, addition: Addition, at: float) -> list[Level]:
        """Add to a budget of a subject."""
        account = self._accounts[key]
        additions = (*account.additions_of(subject), addition)
        self._set(account, subject, account.uses.get(subject, Use()), additions)
        told = self._note_level(account, subject, at)
        self._publish()
        return told

    def set_used(self, key: AccountKey, subject: Subject, used: int, at: float) -> list[Level]:
        """Set what a subject has used in the present period, whatever was counted."""
        account = self._accounts[key]
        self._set(account, subject, Use(used), account.additions_of(subject))
        told = self._note_level(account, subject, at)
        self._publish()
        return told

    def reset(self, network: str, every: Every | None, at: float) -> list[Begun]:
        """Forget what was used of all budgets of a network; their present periods, as the clock says, begin again."""
        begun = []
        for account in self._by_network.get(network, ()):
            if every in (None, account.budget.every):
                account.period = period_at(account.budget.every, account.budget.starts, at, self._zone)
                account.is_provisional = not self._is_synchronised()
                begun.append(Begun(account.key, account.budget, account.period, self._forget_uses(account)))
        self._publish()
        return begun

    def uses(self, at: float) -> list[BudgetUse]:
        """All budgets with what is used of them: those of a network, and those of the clients that have used any."""
        return [
            self._use(account, subject, at)
            for account in self._accounts.values()
            for subject in ([None] if account.budget.per is Per.NETWORK else {**account.uses, **account.additions})
        ]

    def totals(self) -> list[BudgetTotals]:
        """All budgets as a whole."""
        return [
            BudgetTotals(
                account.network.name,
                account.budget,
                account.total,
                tuple(
                    sum(stages > number for stages, _ in account.levels.values())
                    for number in range(len(account.budget.stages))
                ),
            )
            for account in self._accounts.values()
        ]

    def _use(self, account: _Account, subject: Subject, at: float) -> BudgetUse:
        use, additions = account.uses.get(subject, Use()), tuple(_held(account.additions_of(subject), at))
        left = max(account.budget.amount - use.used, 0) + sum(addition.left for addition in additions)
        stages, _ = account.levels.get(subject, _NO_LEVEL)
        return BudgetUse(account.network.name, account.budget, account.period, subject, use, additions, left, stages)
