"""The account of one budget: who has used how much of it in the present period."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mptcp_throttle.model import AccessNetwork, Address, Budget, Per, Window
from mptcp_throttle.periods import Period
from mptcp_throttled.accounting.ledger_rows import StoredAccount
from mptcp_throttled.accounting.recent_use import RecentUse
from mptcp_throttled.accounting.rolling import RollingUse, rolling_period
from mptcp_throttled.accounting.shared_subjects import SharedSubjects
from mptcp_throttled.vocabulary.budgets import AccountKey, Addition, Subject, Use
from mptcp_throttled.vocabulary.fleet import Elsewhere

NO_LEVEL: Final = (0, False)
_NO_USE: Final = Use()
_NOTHING: Final = Elsewhere()


class BudgetUse(NamedTuple):
    """What a subject has used of a budget at the time `at`. `owner` is the network or device that has the budget.

    `spent_stages` is the number of stages reached, `left` the bytes not used, additions included. `recent_rate` is the
    rate of late use in bytes/s; None: not known. `is_overdue`: the clock says that the period has ended, but is not
    trusted. `free` is the window that holds now in which nothing counts and no stage narrows a rate. `elsewhere` is the
    part of the use at other proxies; None: they are not counted.

    Of a rolling budget, `period` is the time that counts, and `leaving` has for each part when it stops counting, in
    seconds since the epoch, and its bytes.
    """

    owner: str
    budget: Budget
    period: Period
    subject: Subject
    at: float
    use: Use
    additions: tuple[Addition, ...]
    left: int
    spent_stages: int
    recent_rate: float | None
    leaving: tuple[tuple[float, int], ...] = ()
    free: Window | None = None
    is_overdue: bool = False
    elsewhere: Elsewhere | None = None


class BudgetTotals(NamedTuple):
    """A budget over all its subjects: bytes `used` at this proxy, and how many subjects have `reached` each stage."""

    owner: str
    budget: Budget
    used: int
    reached: tuple[int, ...]


@dataclass(slots=True)
class BudgetAccount:
    """What is known of a budget of `owner`, a network or a device, by its name.

    It counts in these `networks`. Of a device, `firsts` are its first addresses there, by network; its only subject is
    None. Of a `rolling` budget, `period` is the present part.

    `levels` has how many stages a subject has reached, and whether the operator was warned. `total` is the sum of what
    all subjects have used, in bytes. `published_ends` has when the last stage of a subject ends, as rules were told.
    `rolled_over` and `is_provisional` are as in `StoredPeriod`.

    Not written to the database yet: the period if it `is_new`, the use of the subjects in `changed`, the additions of
    those in `changed_additions`, and what is `elsewhere` of those in `changed_elsewhere`.

    `elsewhere` is what other proxies have counted; an earlier instance has read that of the subjects in
    `kept_elsewhere`. `shared` has the subjects whose totals they do not know yet; None: this budget is not shared.
    """

    owner: str
    budget: Budget
    networks: tuple[AccessNetwork, ...]
    firsts: Mapping[str, Address]
    period: Period
    recent: RecentUse
    uses: dict[Subject, Use] = field(default_factory=dict)
    additions: dict[Subject, tuple[Addition, ...]] = field(default_factory=dict)
    levels: dict[Subject, tuple[int, bool]] = field(default_factory=dict)
    changed: set[Subject] = field(default_factory=set)
    changed_additions: set[Subject] = field(default_factory=set)
    is_new: bool = True
    rolled_over: bool = False
    is_provisional: bool = False
    total: int = 0
    rolling: RollingUse | None = None
    published_ends: dict[Subject, float | None] = field(default_factory=dict)
    elsewhere: dict[Subject, Elsewhere] = field(default_factory=dict)
    changed_elsewhere: set[Subject] = field(default_factory=set)
    kept_elsewhere: set[Subject] = field(default_factory=set)
    shared: SharedSubjects | None = None

    @property
    def key(self) -> AccountKey:
        """The key under which the account is stored."""
        return AccountKey(self.owner, self.budget.key)

    @property
    def has_clients(self) -> bool:
        """Whether its subjects are clients."""
        return self.budget.per is Per.CLIENT and not self.firsts

    def additions_of(self, subject: Subject) -> tuple[Addition, ...]:
        """The additions for a subject. After a roll-over, one without any entry has not used the period before: it has
        the whole amount of that."""
        amount = self.budget.amount
        if self.rolled_over and subject not in self.uses and subject not in self.additions:
            return (Addition(amount, amount, self.period.end),)
        return self.additions.get(subject, ())

    def use_everywhere(self, subject: Subject) -> Use:
        """What a subject has used at this proxy and at all others."""
        own, elsewhere = self.uses.get(subject, _NO_USE), self.elsewhere.get(subject)
        return own if elsewhere is None else Use(own.used + elsewhere.used, own.without_mptcp)

    def forget_elsewhere(self) -> None:
        """Forget what other proxies have counted."""
        self.elsewhere.clear()
        self.changed_elsewhere.clear()
        self.kept_elsewhere.clear()

    def share_all(self) -> None:
        """Tell other proxies what each subject has used."""
        if self.shared is not None:
            self.shared.note_all(self.uses)

    def adopt(self, stored: StoredAccount) -> None:
        """Continue from what is stored, and add what was counted meanwhile."""
        uses = {subject: use.plus(self.uses.get(subject, Use())) for subject, use in stored.uses.items()}
        additions = {
            subject: (*stored.additions.get(subject, ()), *self.additions.get(subject, ()))
            for subject in {*stored.additions, *self.additions}
        }
        if self.rolling is not None:
            self.rolling.adopt(stored.parts, stored.period.period)
            uses = {subject: self.rolling.sum_of(subject) for subject in self.rolling.uses}
        self.changed |= self.uses.keys()
        self.changed_additions |= self.additions.keys()
        self.uses, self.additions = {**self.uses, **uses}, additions
        if self.shared is not None:
            self.kept_elsewhere = {*stored.elsewhere} - self.elsewhere.keys()
            self.elsewhere.update({subject: stored.elsewhere[subject] for subject in self.kept_elsewhere})
        self.share_all()
        self.period, self.rolled_over, self.is_provisional = stored.period
        self.total, self.is_new = sum(use.used for use in self.uses.values()), False

    def set_use(self, subject: Subject, use: Use, additions: tuple[Addition, ...]) -> None:
        """Set what a subject has used, and its additions."""
        before = self.uses.get(subject, Use())
        self.total += use.used - before.used
        self.uses[subject] = use
        if self.rolling is not None and use != before:
            self.rolling.change(subject, self.period, before, use)
        self.changed.add(subject)
        if additions != self.additions.get(subject, ()):
            self.set_additions(subject, additions)

    def set_additions(self, subject: Subject, additions: tuple[Addition, ...]) -> None:
        """Set the additions of a subject."""
        self.changed_additions.add(subject)
        if additions:
            self.additions[subject] = additions
        else:
            del self.additions[subject]

    def roll_over(self, uses: Mapping[Subject, Use]) -> None:
        """Add what each subject has not used of the period that has ended, of which these are the `uses`.

        A subject that has used nothing, and has no additions, has the whole amount without an entry (`additions_of`).
        """
        for subject, use in {**dict.fromkeys(self.additions, _NO_USE), **uses}.items():
            left = self.budget.amount - use.used
            added = (Addition(left, left, self.period.end),) if left > 0 else ()
            if use.used or subject in self.additions:
                self.set_use(subject, Use(), (*self.additions.get(subject, ()), *added))

    def forget_uses(self) -> int:
        """Forget what was used; how many subjects had reached a stage."""
        freed = sum(stages > 0 for stages, _ in self.levels.values())
        if self.shared is not None:
            self.shared.note_forgotten(self.uses)
        self.uses, self.levels, self.changed, self.is_new, self.total = {}, {}, set(), True, 0
        self.rolled_over = False
        if self.rolling is not None:
            self.rolling.clear(self.period)
        return freed

    def left_to_next_stage(self, subject: Subject, at: float) -> float:
        """How many bytes a subject has until its next stage; infinite: it has reached the last one."""
        fraction = used_fraction(self.budget, self.use_everywhere(subject), self.additions_of(subject), at)
        ahead = min((stage.at for stage in self.budget.stages if stage.at > fraction), default=math.inf)
        return (ahead - fraction) * self.budget.amount

    def use_of(self, subject: Subject, at: float, now: float) -> BudgetUse:
        """What a subject has used now: `at` in seconds since the epoch, `now` in monotonic seconds."""
        use, additions = self.use_everywhere(subject), tuple(unexpired(self.additions_of(subject), at))
        left = max(self.budget.amount - use.used, 0) + sum(addition.left for addition in additions)
        stages, _ = self.levels.get(subject, NO_LEVEL)
        recent = self.recent.rate(subject, now)
        made = BudgetUse(self.owner, self.budget, self.period, subject, at, use, additions, left, stages, recent)
        if self.shared is not None:
            return made._replace(elsewhere=self.elsewhere.get(subject, _NOTHING))
        if self.rolling is None:
            return made
        leaving = tuple(self.rolling.leaving(subject))
        return made._replace(period=rolling_period(self.budget.every, self.period), leaving=leaving)

    @property
    def totals(self) -> BudgetTotals:
        """The budget as a whole."""
        reached = [stages for stages, _ in self.levels.values()]
        numbers = range(len(self.budget.stages))
        of_each = tuple(sum(stages > number for stages in reached) for number in numbers)
        return BudgetTotals(self.owner, self.budget, self.total, of_each)

    def stage_ends(self, subject: Subject, stages: int, at: float) -> float | None:
        """When the last of the `stages` that a subject has reached ends, if it uses nothing more; None: never.

        In seconds since the epoch, as is the present time `at`.
        """
        if self.rolling is None:
            return self.period.end
        used = self.uses.get(subject, Use()).used - sum(each.left for each in unexpired(self.additions_of(subject), at))
        return self.rolling.falls_at(subject, used - self.budget.stages[stages - 1].at * self.budget.amount)


def used_fraction(budget: Budget, use: Use, additions: Sequence[Addition], at: float) -> float:
    """The fraction of a budget that is used, unexpired additions deducted, `at` in seconds since the epoch."""
    added = sum(addition.left for addition in unexpired(additions, at)) if additions else 0
    return (use.used - added) / budget.amount


def reached_stages(budget: Budget, fraction: float) -> int:
    """How many stages of a budget are reached when this fraction is used."""
    return sum(fraction >= stage.at for stage in budget.stages)


def charge(
    use: Use, additions: tuple[Addition, ...], amount: int, without_mptcp: int, at: float
) -> tuple[Use, tuple[Addition, ...]]:
    """Use `amount` bytes, of which `without_mptcp` without MPTCP: of the additions first, the earliest to end first."""
    left: list[Addition] = []
    for addition in sorted(unexpired(additions, at), key=lambda each: (each.until is None, each.until or 0.0)):
        part = min(addition.left, amount)
        amount -= part
        if addition.left > part:
            left.append(addition._replace(left=addition.left - part))
    return Use(use.used + amount, use.without_mptcp + min(without_mptcp, amount)), tuple(left)


def unexpired(additions: Iterable[Addition], at: float) -> Iterator[Addition]:
    """The additions that have not ended `at` a time, in seconds since the epoch."""
    return (addition for addition in additions if addition.until is None or addition.until > at)
