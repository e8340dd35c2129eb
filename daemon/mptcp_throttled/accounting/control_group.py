"""What caps save and cost: connections with caps are compared with the control group, which has none.

Of each connection only its contribution to sums is kept; these are whole numbers, and so exact. Differences have
confidence intervals of 95 % by Welch's test (The Significance of the Difference Between Two Means, 1938), those of
ratios by the delta method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import NormalDist
from types import MappingProxyType
from typing import Final, NamedTuple

from mptcp_throttled.vocabulary.control_group import EndedConnection

MIN_CONNECTIONS: Final = 30
"""The fewest connections of each group for which there is a confidence interval."""

KEPT_DAYS: Final = 62
"""For how many days sums are kept: two months."""

MIN_DOWNLOAD_BYTES: Final = 1_000_000
"""The least payload of a connection whose rate counts."""

_NORMAL: Final = NormalDist().inv_cdf(0.975)


class Sums(NamedTuple):
    """The number of some whole numbers, their sum, and the sum of their squares."""

    number: int = 0
    total: int = 0
    squares: int = 0

    def plus(self, value: int) -> Sums:
        """The sums with one more number."""
        return Sums(self.number + 1, self.total + value, self.squares + value * value)

    def with_all_of(self, sums: Sums) -> Sums:
        """The sums of both."""
        return Sums(self.number + sums.number, self.total + sums.total, self.squares + sums.squares)

    @property
    def mean(self) -> float | None:
        """The mean of the numbers; None if there are none."""
        return self.total / self.number if self.number else None


class GroupSums(NamedTuple):
    """Sums over the connections of a group that have ended.

    `sent` sums up the bytes of payload of each, `sent_with_cap` those over networks with a cap, `products` the products
    of both. `rates` sums up the rates, in bytes/s, of connections that sent at least `MIN_DOWNLOAD_BYTES`.
    """

    sent: Sums = Sums()
    sent_with_cap: Sums = Sums()
    products: int = 0
    rates: Sums = Sums()

    def plus(self, connection: EndedConnection) -> GroupSums:
        """With one connection more."""
        sent, with_cap, seconds = connection.sent, connection.sent_with_cap, connection.seconds
        has_rate = sent >= MIN_DOWNLOAD_BYTES and seconds > 0
        return GroupSums(
            self.sent.plus(sent),
            self.sent_with_cap.plus(with_cap),
            self.products + sent * with_cap,
            self.rates.plus(round(sent / seconds)) if has_rate else self.rates,
        )

    def with_all_of(self, sums: GroupSums) -> GroupSums:
        """The sums over the connections of both."""
        return GroupSums(
            self.sent.with_all_of(sums.sent),
            self.sent_with_cap.with_all_of(sums.sent_with_cap),
            self.products + sums.products,
            self.rates.with_all_of(sums.rates),
        )

    @property
    def share_with_cap(self) -> float | None:
        """The part of all bytes that went over networks with a cap; None if there is no byte."""
        return self.sent_with_cap.total / self.sent.total if self.sent.total else None


class Interval(NamedTuple):
    """How much more a figure is with caps than without, with 95 % confidence."""

    low: float
    high: float


class Differences(NamedTuple):
    """Between connections with caps and the control group; None while there are not enough connections."""

    sent_with_cap: Interval | None
    share_with_cap: Interval | None
    rate: Interval | None


class ComparedGroups(NamedTuple):
    """Both groups since the daemon's start; `share` of all connections are in the control group."""

    share: float
    capped: GroupSums = GroupSums()
    control: GroupSums = GroupSums()

    @property
    def differences(self) -> Differences:
        """What caps change."""
        capped, control = self.capped, self.control
        return Differences(
            difference_of_means(capped.sent_with_cap, control.sent_with_cap),
            difference_of_shares(capped, control),
            difference_of_means(capped.rates, control.rates),
        )


class DaySums(NamedTuple):
    """The sums over connections that ended on a day, by group."""

    capped: GroupSums = GroupSums()
    control: GroupSums = GroupSums()

    def plus(self, connection: EndedConnection) -> DaySums:
        """With one connection more."""
        if connection.is_control:
            return self._replace(control=self.control.plus(connection))
        return self._replace(capped=self.capped.plus(connection))

    def with_all_of(self, day: DaySums) -> DaySums:
        """The sums over the connections of both days."""
        return DaySums(self.capped.with_all_of(day.capped), self.control.with_all_of(day.control))


ByDay = Mapping[str, DaySums]
"""The sums by day, such as `2026-11-28`."""


class Comparison:
    """Adds up connections that have ended; `share` of all connections are in the control group.

    `groups` has the sums since the daemon's start, `own` these by day. `earlier` has the sums of earlier instances;
    `today` tells the present day. `note` is for one thread, `groups` and `own` for any: they are replaced, not changed.
    """

    def __init__(self, share: float, earlier: ByDay = MappingProxyType({}), today: Callable[[], str] = str) -> None:
        self.groups = ComparedGroups(share)
        self.own: ByDay = {}
        self._earlier = earlier
        self._today = today

    @property
    def by_day(self) -> ByDay:
        """What ended on each day, for any thread."""
        own, nothing = self.own, DaySums()
        return {
            day: self._earlier.get(day, nothing).with_all_of(own.get(day, nothing)) for day in {*self._earlier, *own}
        }

    def note(self, ended: Iterable[EndedConnection]) -> None:
        """These connections have ended."""
        connections, day = list(ended), self._today()
        if not connections and day in self.own:
            return
        share, since_start = self.groups.share, DaySums(self.groups.capped, self.groups.control)
        of_day = self.own.get(day, DaySums())
        for connection in connections:
            since_start, of_day = since_start.plus(connection), of_day.plus(connection)
        self.groups = ComparedGroups(share, *since_start)
        latest = sorted({**self.own, day: of_day}.items())[-KEPT_DAYS:]
        self.own = dict(latest)


class _Estimate(NamedTuple):
    """A figure of a group of `number` connections, and the square of its standard error."""

    value: float
    variance: float
    number: int


def difference_of_means(capped: Sums, control: Sums) -> Interval | None:
    """How much more the mean is with caps; None if a group is too small."""
    if min(capped.number, control.number) < MIN_CONNECTIONS:
        return None
    return _difference(_mean(capped), _mean(control))


def difference_of_shares(capped: GroupSums, control: GroupSums) -> Interval | None:
    """How much more of all bytes went over networks with a cap, as fractions of 1; None if a group is too small."""
    is_small = min(capped.sent.number, control.sent.number) < MIN_CONNECTIONS
    if is_small or not (capped.sent.total and control.sent.total):
        return None
    return _difference(_share(capped), _share(control))


def _mean(sums: Sums) -> _Estimate:
    number, total, squares = sums
    variance = (number * squares - total * total) / (number * number * (number - 1))
    return _Estimate(total / number, variance, number)


def _share(sums: GroupSums) -> _Estimate:
    (number, sent, sent_squares), (_, with_cap, squares) = sums.sent, sums.sent_with_cap
    residuals = squares * sent**2 - 2 * sums.products * with_cap * sent + sent_squares * with_cap**2
    return _Estimate(with_cap / sent, residuals * number / ((number - 1) * sent**4), number)


def _difference(capped: _Estimate, control: _Estimate) -> Interval:
    difference, variance = capped.value - control.value, capped.variance + control.variance
    if variance == 0:
        return Interval(difference, difference)
    parts = (each.variance**2 / (each.number - 1) for each in (capped, control))
    margin = _student(variance**2 / sum(parts)) * math.sqrt(variance)
    return Interval(difference - margin, difference + margin)


def _student(degrees: float) -> float:
    """The quantile of Student's distribution for 95 %, both sides, from 29 degrees of freedom on: within 0.0001.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    x = _NORMAL
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
    )
    return x + sum(term / degrees**power for power, term in enumerate(terms, 1))
