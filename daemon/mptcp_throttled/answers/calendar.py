"""The answer to `week`: what the schedules of networks say in a week, and when that changes next."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Final

from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import Direction, RateKind
from mptcp_throttle.week import AHEAD_SECONDS, clock_changes, days_of_week, intervals, next_intervals
from mptcp_throttled.answers.status import zone_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mptcp_throttle.model import AccessNetwork
    from mptcp_throttle.rpc import Json
    from mptcp_throttle.units import Rate
    from mptcp_throttle.week import Interval

_NEXT: Final = 3
_YEARS: Final = range(2000, 2100)


def requested_time(at: Json, now: float, zone: tzinfo | None) -> float:
    """A time in seconds since the epoch; null: `now`. Raises UserError with what is allowed."""
    if at is None:
        return now
    if not isinstance(at, bool) and isinstance(at, int | float):
        try:
            if datetime.fromtimestamp(at, zone).year in _YEARS:
                return float(at)
        except (ValueError, OverflowError, OSError):
            pass
    raise UserError(f"at: {shown(at)}: allowed: seconds since the epoch, from {_YEARS.start} to {_YEARS.stop - 1}")


def week(networks: Iterable[AccessNetwork], at: float, now: float, zone: tzinfo | None) -> Json:
    """The week with the instant `at`, from Monday on; all times in seconds since the epoch."""
    days = days_of_week(at, zone)
    start, end = days[0], days[-1]
    scheduled = [network for network in networks if network.schedule]
    following = [
        {"network": network.name, **_interval(network, each)}
        for network in scheduled
        for each in next_intervals(network.schedule, now, zone, _NEXT)
    ]
    next_clock_change = next(clock_changes(now, now + AHEAD_SECONDS, zone), None)
    return {
        "time_zone": zone_name(zone),
        "now": now,
        "start": start,
        "end": end,
        "days": [{"start": each, "date": datetime.fromtimestamp(each, zone).date().isoformat()} for each in days[:-1]],
        "networks": [
            {
                "name": network.name,
                "intervals": [_interval(network, each) for each in intervals(network.schedule, start, end, zone)],
            }
            for network in scheduled
        ],
        "clock_changes": [each._asdict() for each in clock_changes(start, end, zone)],
        "next_clock_change": None if next_clock_change is None else next_clock_change._asdict(),
        "next": sorted(following, key=lambda each: each["start"]),
    }


def _interval(network: AccessNetwork, interval: Interval) -> dict[str, Json]:
    window = interval.window
    rates: dict[RateKind, Rate | None] = {**network.rates, **({} if window is None else window.rates)}
    return {
        "start": interval.start,
        "end": interval.end,
        "when": None if window is None else str(window.when),
        "counts": window is None or window.counts,
        "rates": _rates(rates),
    }


def _rates(rates: Mapping[RateKind, Rate | None]) -> dict[str, Json]:
    of_directions: dict[str, Json] = {direction: {} for direction in Direction}
    for kind in RateKind:
        rate = rates.get(kind)
        of_directions[kind.direction][kind.word] = {
            "rate": None if rate is None else str(rate),
            "rate_bps": None if rate is None else rate.bits_per_second,
        }
    return of_directions
