"""The ledger of budgets: what networks and their clients have used of each, and which stages they have reached.

IP bytes are counted as in `vocabulary.traffic`, of all TCP on the proxy's ports. Those of connections without MPTCP
count, too: a carrier bills them alike. A period begins when the wall clock says so. It never begins earlier than the
present one: while the clock is set back, bytes count in the present period. Bytes of an observation count in the period
in which the observation began.

A budget keeps its count as long as its network, `per`, `direction` and `every` stay. If its `starts` changes, the
present period ends as it would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple

from mptcp_throttle.model import AccessNetwork, Address, Budget, Counting, Every, NamedClient, Per
from mptcp_throttle.periods import Period, period_at
from mptcp_throttle.schedule import window_at
from mptcp_throttled.accounting import sharing, unwritten
from mptcp_throttled.accounting.budget_account import (
    NO_LEVEL,
    BudgetAccount,
    BudgetTotals,
    BudgetUse,
    charge,
    reached_stages,
    unexpired,
    used_fraction,
)
from mptcp_throttled.accounting.clock_trust import STAY_SECONDS, ClockTrust
from mptcp_throttled.accounting.ledger_rows import LedgerChanges, StoredAccount
from mptcp_throttled.accounting.near_stages import NearStages
from mptcp_throttled.accounting.recent_use import RecentUse
from mptcp_throttled.accounting.rolling import RollingUse, part_at
from mptcp_throttled.vocabulary.allowances import StageAhead
from mptcp_throttled.vocabulary.budgets import (
    AccountKey,
    Addition,
    BudgetChange,
    LevelReached,
    PeriodBegun,
    Reached,
    Spent,
    StagesEnded,
    Subject,
    Use,
)
from mptcp_throttled.vocabulary.fleet import OwnTotal, Scope, UsedElsewhere

MAX_CLIENTS: Final = 200_000
"""The most clients of a budget. The bytes of further clients are counted together, and reach no stage."""


class Carried(NamedTuple):
    """IP bytes to and from a client of a network; `is_mptcp` is false for TCP without MPTCP."""

    network: str
    client: Subject
    sent: int
    received: int
    is_mptcp: bool


class Choice(NamedTuple):
    """Chooses budgets: those with periods of `every` day, week or month, and with this `counting`; None: any."""

    every: Every | None = None
    counting: Counting | None = None

    def has(self, budget: Budget) -> bool:
        """Whether a budget is chosen."""
        return self.every in (None, budget.every) and self.counting in (None, budget.counting)


def _places_of_devices(
    networks: Iterable[AccessNetwork],
) -> dict[str, list[tuple[AccessNetwork, NamedClient]]]:
    """By the name of each device with budgets of its own: the networks that have it, and its client there."""
    places: dict[str, list[tuple[AccessNetwork, NamedClient]]] = {}
    for network in networks:
        for client in network.devices.clients:
            if client.budgets:
                places.setdefault(client.name, []).append((network, client))
    return places


def _counted(budget: Budget, carried: Carried) -> int:
    match budget.counting:
        case Counting.DOWN:
            return carried.sent
        case Counting.UP:
            return carried.received
        case Counting.BOTH:
            return carried.sent + carried.received


class Ledger:
    """The accounts of the budgets of all networks and devices. For one thread at a time, but `spent` is for any.

    `stored` is what an earlier instance has written; None: it could not be read, and `adopt` is called once it can.
    `is_synchronised` tells whether the wall clock is right; None: nothing tells (`ClockTrust`). While it is not right,
    only a provisional period begins, where there is none. `is_shared`: other proxies are to know of budgets, too.
    `seconds_to_next_stage` is when a subject reaches a stage, if all go on as in the last observation.
    """

    def __init__(
        self,
        stored: Mapping[AccountKey, StoredAccount] | None,
        is_synchronised: Callable[[], bool] | None,
        *,
        is_shared: bool = False,
    ) -> None:
        self._is_shared = is_shared
        self._stored = dict(stored or {})
        self.is_unread = stored is None
        self._clock = ClockTrust(is_synchronised)
        self._accounts: dict[AccountKey, BudgetAccount] = {}
        self._removed: dict[AccountKey, BudgetAccount] = {}
        self._by_network: dict[str, list[BudgetAccount]] = {}
        self._by_device: dict[tuple[str, Address], list[BudgetAccount]] = {}
        self._zone: tzinfo | None = None
        self._networks: Sequence[AccessNetwork] = ()
        self.seconds_to_next_stage = math.inf
        self._elapsed = 0.0
        self._overdue: set[AccountKey] = set()
        self._near_stages = NearStages()
        self._is_stale = False
        self._read_at: float | None = None
        self.spent: Spent = {}

    @property
    def has_budgets(self) -> bool:
        """Whether any network has one."""
        return bool(self._accounts)

    def configure(self, networks: Sequence[AccessNetwork], zone: tzinfo | None, at: float) -> list[LevelReached]:
        """Keep the budgets of these networks from now on; periods begin by the time in `zone`, None: that of this host.

        What was used of budgets that are no longer configured stays in memory and in the database. Returns the levels
        that are reached because an amount or stages have changed. `at` is in seconds since the epoch.
        """
        if networks is self._networks and zone == self._zone:
            return []
        self._networks, self._zone = networks, zone
        known, self._accounts, self._by_network, self._by_device = {**self._removed, **self._accounts}, {}, {}, {}
        for network in networks:
            for budget in network.budgets:
                account = self._account(network.name, budget, (network,), known, at)
                self._by_network.setdefault(network.name, []).append(account)
        for name, places in _places_of_devices(networks).items():
            for budget in {budget.key: budget for _, client in places for budget in client.budgets}.values():
                own = [(network, client) for network, client in places if network.name in budget.networks]
                account = self._account(name, budget, tuple(network for network, _ in own), known, at)
                account.firsts = {network.name: client.first for network, client in own}
                for place in account.firsts.items():
                    self._by_device.setdefault(place, []).append(account)
        self._removed = {key: account for key, account in known.items() if key not in self._accounts}
        return self._find_levels(at)

    def _account(
        self,
        owner: str,
        budget: Budget,
        networks: tuple[AccessNetwork, ...],
        known: Mapping[AccountKey, BudgetAccount],
        at: float,
    ) -> BudgetAccount:
        """The account of a budget from now on: a known one, or a new one with what is stored of it."""
        key = AccountKey(owner, budget.key)
        if key in known:
            account = self._accounts[key] = known[key]
            account.networks, account.budget = networks, budget
            sharing.configure(account, is_shared=self._is_shared)
            return account
        recent, rolling = RecentUse(budget.every, self._elapsed), RollingUse(budget.every) if budget.rolling else None
        period = self._period_at(budget, at)
        account = self._accounts[key] = BudgetAccount(owner, budget, networks, {}, period, recent, rolling=rolling)
        account.is_provisional = not self._clock.is_trusted
        sharing.configure(account, is_shared=self._is_shared)
        if (stored := self._stored.pop(key, None)) is not None:
            account.adopt(stored)
        return account

    def _period_at(self, budget: Budget, at: float) -> Period:
        """The period of a budget that contains the instant `at`; of a rolling budget, the part (`rolling`)."""
        if budget.rolling:
            return part_at(budget.every, at)
        return period_at(budget.every, budget.starts, at, self._zone)

    def adopt(self, stored: Mapping[AccountKey, StoredAccount], at: float) -> None:
        """Go on from what an earlier instance has written, now that it can be read."""
        self.is_unread = False
        for key, of_account in stored.items():
            if key in self._accounts:
                self._accounts[key].adopt(of_account)
            else:
                self._stored[key] = of_account
        self._find_levels(at)

    def _find_levels(self, at: float) -> list[LevelReached]:
        told: list[LevelReached] = []
        for account in self._accounts.values():
            for subject in {*account.uses, *account.additions, *account.elsewhere}:
                told += self._note_level(account, subject, at)
                self._near_stages.note_idle(account.key, subject, account.left_to_next_stage(subject, at))
        self._publish(at)
        return told

    def count(self, carried: Iterable[Carried], at: float, seconds: float) -> list[BudgetChange]:
        """Count what was carried in the last `seconds` before `at`, and begin the periods that are due.

        `at` is in seconds since the epoch. Returns what the operator is to be told.
        """
        told: list[BudgetChange] = []
        self._elapsed += seconds
        amounts = self._charge_all(carried, at)
        self.seconds_to_next_stage = math.inf
        for (key, subject), amount in amounts.items():
            account = self._accounts[key]
            account.recent.add(subject, amount, self._elapsed)
            told += self._note_level(account, subject, at)
            rate = amount / max(seconds, 0.1) + sharing.rate_elsewhere(account, subject)
            left = account.left_to_next_stage(subject, at)
            self.seconds_to_next_stage = min(self.seconds_to_next_stage, left / rate)
            sharing.note_own(account, subject, left / rate)
            self._near_stages.note(key, subject, left, rate)
        told += self._begin_periods(at, seconds)
        self._drop_ended_additions(at)
        if self._is_stale:
            self._publish(at)
        return told

    def _charge_all(self, carried: Iterable[Carried], at: float) -> dict[tuple[AccountKey, Subject], int]:
        """Charge what was carried to all budgets that it counts in; how many bytes each subject has used."""
        amounts: dict[tuple[AccountKey, Subject], int] = {}
        free = self._free_networks(at)
        for each in carried:
            for account in () if each.network in free else self._accounts_of(each.network, each.client):
                amount = _counted(account.budget, each)
                if not amount:
                    continue
                subject = each.client if account.has_clients else None
                if subject not in account.uses and len(account.uses) >= MAX_CLIENTS:
                    subject = None
                without, additions = 0 if each.is_mptcp else amount, account.additions_of(subject)
                use, left = charge(account.uses.get(subject, Use()), additions, amount, without, at)
                account.set_use(subject, use, left)
                key = account.key, subject
                amounts[key] = amounts.get(key, 0) + amount
        return amounts

    def _accounts_of(self, network: str, client: Subject) -> Iterable[BudgetAccount]:
        """The accounts that count what a client carries on a network."""
        of_network = self._by_network.get(network, ())
        if not self._by_device or client is None:
            return of_network
        return (*of_network, *self._by_device.get((network, client), ()))

    def _free_networks(self, at: float) -> set[str]:
        """The names of the networks in which nothing counts now."""
        return {network.name for network in self._networks if self._is_free(network, at)}

    def _is_free(self, network: AccessNetwork, at: float) -> bool:
        window = window_at(network.schedule, at, self._zone) if network.schedule else None
        return window is not None and not window.counts

    def _note_level(self, account: BudgetAccount, subject: Subject, at: float) -> list[LevelReached]:
        budget, use = account.budget, account.use_everywhere(subject)
        if subject is None and account.has_clients:
            return []
        fraction = used_fraction(budget, use, account.additions_of(subject), at)
        is_warned = budget.warn_at is not None and fraction >= budget.warn_at
        before, level = account.levels.get(subject, NO_LEVEL), (reached_stages(budget, fraction), is_warned)
        if level[0] and account.published_ends.get(subject) != account.stage_ends(subject, level[0], at):
            self._is_stale = True
        if level == before:
            return []
        if level == NO_LEVEL:
            del account.levels[subject]
        else:
            account.levels[subject] = level
        self._is_stale = self._is_stale or level[0] != before[0]
        is_told = level[0] > before[0] or (level[0] == 0 and level[1] > before[1])
        return [LevelReached(account.key, budget, subject, use, level[0])] if is_told else []

    def own_totals(self, scope: Scope) -> Iterator[list[OwnTotal]]:
        """The totals that other proxies are to know, in portions; the ledger may change between two of them."""
        may_begin = self._clock.may_begin
        for account in [*self._accounts.values()]:
            yield from sharing.own_totals(account, scope, may_begin=may_begin)

    def note_elsewhere(self, used: Iterable[UsedElsewhere], at: float) -> tuple[list[LevelReached], bool]:
        """Take what was `used` at other proxies.

        Returns what the operator is to be told, and whether a subject is so near to a stage that kernel programs must
        be told at once.
        """
        told: list[LevelReached] = []
        is_near = False
        self._read_at = at
        for each in used:
            account = self._accounts.get(each.key)
            if account is None or not sharing.note_elsewhere(account, each, self._elapsed):
                continue
            told += self._note_level(account, each.subject, at)
            left = account.left_to_next_stage(each.subject, at)
            self._near_stages.note(each.key, each.subject, left, each.elsewhere.rate)
            is_near = is_near or left < sharing.NEAR_SECONDS * each.elsewhere.rate
        if self._is_stale:
            self._publish(at)
        return told, is_near

    def stages_ahead(self, applied: Spent, at: float) -> list[StageAhead]:
        """The nearest stage of each subject that is near to one, without the stages that are `applied` already."""
        return self._near_stages.ahead(self._accounts, self._free_networks(at), applied, at)

    def _begin_periods(self, at: float, seconds: float) -> list[BudgetChange]:
        may_begin = self._clock.may_begin
        self._clock.observe(at, seconds)
        self._is_stale = self._is_stale or may_begin != self._clock.may_begin
        told: list[BudgetChange] = []
        was_overdue, self._overdue = self._overdue, set()
        for account in self._accounts.values():
            if not account.is_provisional and account.period.start <= at < account.period.end:
                continue
            present = self._period_at(account.budget, at)
            if account.is_provisional and self._clock.may_begin:
                self._correct_period(account, present, at)
            if at < account.period.end:
                continue
            if not self._clock.may_begin or (present.start > account.period.end and not self._clock.is_trusted):
                self._overdue.add(account.key)
                continue
            if account.rolling is None:
                told.append(self._begin_period(account, present))
            else:
                told += self._begin_part(account, account.rolling, present, at)
        self._is_stale = self._is_stale or self._overdue != was_overdue
        return told

    def _correct_period(self, account: BudgetAccount, present: Period, at: float) -> None:
        """Correct the period of a provisional account to `present`, which the clock says.

        A clock that is not confirmed changes nothing while `present` is the account's period or the next one.
        """
        before, in_order = account.period, account.period.start <= at and present.start <= account.period.end
        if self._clock.is_confirmed or not in_order:
            account.period = present
        account.is_provisional = not self._clock.is_trusted
        if account.period != before:
            account.forget_elsewhere()
            account.share_all()
        if account.rolling is not None and account.period != before:
            account.rolling.move(before, account.period)
        if account.period != before or not account.is_provisional:
            account.is_new, account.changed, self._is_stale = True, {*account.uses}, True

    def _begin_part(self, account: BudgetAccount, rolling: RollingUse, present: Period, at: float) -> list[StagesEnded]:
        """Begin the `present` part of a rolling budget: what was used in the parts that have left counts no longer."""
        account.recent.forget_old(self._elapsed)
        account.period, account.is_provisional, account.is_new, self._is_stale = present, False, True, True
        ended = []
        for subject in rolling.drop(present):
            use, (before, _) = rolling.sum_of(subject), account.levels.get(subject, NO_LEVEL)
            account.total += use.used - account.uses[subject].used
            account.uses[subject] = use
            self._note_level(account, subject, at)
            stages, _ = account.levels.get(subject, NO_LEVEL)
            if stages < before:
                ended.append(StagesEnded(account.key, account.budget, subject, use, stages))
            if use == Use():
                del account.uses[subject]
        return ended

    def _begin_period(self, account: BudgetAccount, present: Period) -> PeriodBegun:
        account.recent.forget_old(self._elapsed)
        before, old, freed = account.uses, account.period, self._forget(account)
        sharing.begin_period(account)
        # Its `starts` may have changed.
        account.period = Period(max(present.start, old.end), present.end)
        account.is_provisional = False
        account.rolled_over = account.budget.rollover and present.start <= old.end
        if account.rolled_over:
            account.roll_over(before)
        return PeriodBegun(account.key, account.budget, account.period, freed)

    @property
    def problem(self) -> str | None:
        """Why no period begins although the clock says that one is due; None: none is due."""
        if not self._overdue:
            return None
        number = len(self._overdue)
        which = f"{number} budget{'s' * (number > 1)} should begin again"
        if not self._clock.may_begin:
            return f"{which}, but the clock is not synchronised"
        return f"{which}, but the clock has jumped: it is trusted after {STAY_SECONDS / 3600:.0f} h"

    def _forget(self, account: BudgetAccount) -> int:
        """Forget what was used; how many subjects had reached a stage."""
        self._is_stale = True
        return account.forget_uses()

    def _drop_ended_additions(self, at: float) -> None:
        for account in self._accounts.values():
            for subject, additions in list(account.additions.items()):
                left = tuple(unexpired(additions, at))
                if left != additions:
                    account.set_additions(subject, left)
                    self._note_level(account, subject, at)
                    self._near_stages.note_idle(account.key, subject, account.left_to_next_stage(subject, at))

    def _publish(self, at: float) -> None:
        spent: dict[str, dict[Subject, tuple[Reached, ...]]] = {}
        for account in self._accounts.values():
            is_waiting, account.published_ends = not self._clock.may_begin or account.key in self._overdue, {}
            for subject, (stages, _) in account.levels.items():
                if not stages:
                    continue
                ends = account.published_ends[subject] = account.stage_ends(subject, stages, at)
                reached = Reached(account.budget, stages, None if is_waiting else ends)
                for network in account.networks:
                    whose = account.firsts.get(network.name, subject)
                    of_network = spent.setdefault(network.name, {})
                    of_network[whose] = (*of_network.get(whose, ()), reached)
        self._is_stale = False
        self.spent = spent

    @property
    def _known_accounts(self) -> list[BudgetAccount]:
        """Those of budgets that are no longer configured, too."""
        return [*self._removed.values(), *self._accounts.values()]

    def changes(self) -> LedgerChanges:
        """What has changed since `written` was called."""
        return unwritten.changes_of(self._known_accounts, self._read_at)

    def written(self) -> None:
        """The changes are in the database."""
        unwritten.note_written(self._known_accounts)

    def write_all_again(self) -> None:
        """The database is a new one: everything counts as changed."""
        unwritten.write_all_again(self._known_accounts)

    def matching(self, network: str, subject: Subject, choice: Choice) -> list[AccountKey]:
        """The chosen budgets of a network that are for this subject: for the network if it is None, or for a client."""
        per = Per.NETWORK if subject is None else Per.CLIENT
        return [
            account.key
            for account in self._by_network.get(network, ())
            if account.budget.per is per and choice.has(account.budget)
        ]

    def of_device(self, network: str, first: Address, choice: Choice) -> list[AccountKey]:
        """The chosen budgets of the device with this first address in a network, as far as they count there."""
        accounts = self._by_device.get((network, first), ())
        return [account.key for account in accounts if choice.has(account.budget)]

    def additions_of(self, key: AccountKey, subject: Subject, at: float) -> tuple[Addition, ...]:
        """The unexpired additions to a budget for a subject."""
        return tuple(unexpired(self._accounts[key].additions_of(subject), at))

    def add(self, key: AccountKey, subject: Subject, addition: Addition, at: float) -> list[LevelReached]:
        """Add to a budget for a subject; the levels that this reaches."""
        account = self._accounts[key]
        additions = (*account.additions_of(subject), addition)
        return self._set(account, subject, account.uses.get(subject, Use()), additions, at)

    def take_back(self, key: AccountKey, subject: Subject, addition: Addition, at: float) -> list[LevelReached]:
        """Take back an addition for a subject: what was used of the addition counts as used of the budget itself."""
        account = self._accounts[key]
        additions, use = [*account.additions_of(subject)], account.uses.get(subject, Use())
        additions.remove(addition)
        used = use._replace(used=use.used + addition.amount - addition.left)
        return self._set(account, subject, used, tuple(additions), at)

    def set_used(self, key: AccountKey, subject: Subject, used: int, at: float) -> list[LevelReached]:
        """Set what a subject has used at this proxy in the present period, whatever was counted."""
        account = self._accounts[key]
        return self._set(account, subject, Use(used), account.additions_of(subject), at)

    def _set(
        self, account: BudgetAccount, subject: Subject, use: Use, additions: tuple[Addition, ...], at: float
    ) -> list[LevelReached]:
        account.set_use(subject, use, additions)
        sharing.note_own(account, subject, 0.0)
        told = self._note_level(account, subject, at)
        self._near_stages.note(account.key, subject, account.left_to_next_stage(subject, at), rate=0.0)
        self._publish(at)
        return told

    def used_elsewhere(self, key: AccountKey, subject: Subject) -> int:
        """What a subject has used of a budget at other proxies, in bytes."""
        return self._accounts[key].use_everywhere(subject).used - self._accounts[key].uses.get(subject, Use()).used

    def reset(self, network: str, choice: Choice, at: float) -> list[PeriodBegun]:
        """Forget what was used of the chosen budgets of a network, and begin the period that the clock says."""
        begun = []
        for account in self._by_network.get(network, ()):
            if choice.has(account.budget):
                freed, present = self._forget(account), self._period_at(account.budget, at)
                if present != account.period:
                    sharing.begin_period(account)
                account.period = present
                account.is_provisional = not self._clock.is_trusted
                begun.append(PeriodBegun(account.key, account.budget, account.period, freed))
        self._publish(at)
        return begun

    def uses(self, at: float) -> list[BudgetUse]:
        """All budgets with their use; those of clients once for each client with use or additions."""
        return [
            self._budget_use(account, subject, at)
            for account in self._accounts.values()
            for subject in ({**account.uses, **account.additions} if account.has_clients else [None])
        ]

    def uses_of(self, network: str, client: Address, at: float) -> list[BudgetUse]:
        """The budgets that count what a client carries on a network, also those of which nothing is used."""
        return [
            self._budget_use(account, client if account.has_clients else None, at)
            for account in self._accounts_of(network, client)
        ]

    def _budget_use(self, account: BudgetAccount, subject: Subject, at: float) -> BudgetUse:
        free = None
        if all(self._is_free(network, at) for network in account.networks):
            free = window_at(account.networks[0].schedule, at, self._zone)
        use = account.use_of(subject, at, self._elapsed)
        return use._replace(free=free, is_overdue=account.key in self._overdue)

    def totals(self) -> list[BudgetTotals]:
        """All budgets as a whole."""
        return [account.totals for account in self._accounts.values()]
