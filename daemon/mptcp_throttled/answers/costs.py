"""The answers to `savings` and `waiting`: what caps bring, and what they cost."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, time, tzinfo
from ipaddress import ip_address
from itertools import islice
from typing import TYPE_CHECKING, Final

from mptcp_throttle.model import Direction
from mptcp_throttled.accounting.control_group import MIN_CONNECTIONS, DaySums, difference_of_means

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from mptcp_throttle.model import AccessNetwork
    from mptcp_throttle.rpc import Json
    from mptcp_throttled.accounting.control_group import ByDay, GroupSums
    from mptcp_throttled.accounting.history_rows import HourOfWaiting
    from mptcp_throttled.answers.view import View

_HOUR: Final = 3600
_HOURS: Final = 24
WAITING_SECONDS: Final = float((_HOURS - 1) * _HOUR)
"""How long ago the first of the hours in the answer to `waiting` began, at least, in seconds."""

_MOST_CLIENTS: Final = 10


def savings(view: View, zone: tzinfo | None) -> Json:
    """What caps have saved today and this month, in a time zone; None: that of this host."""
    today = datetime.fromtimestamp(view.now.epoch, zone).date()
    share = None if view.groups is None else view.groups.share
    rates = view.snapshot.terms.rates
    return {
        "problem": None if share is not None else "there is no control group: daemon.control_group is 0",
        "share": share,
        "min_connections": MIN_CONNECTIONS,
        "networks": [each.name for each in view.snapshot.networks if Direction.DOWNLINK.cap in rates[each.name]],
        "periods": [
            {"name": name, "start": _midnight(first, zone), **saved_since(view.by_day, first)}
            for name, first in (("today", today), ("month", today.replace(day=1)))
        ],
    }


def saved_since(by_day: ByDay, first: date) -> dict[str, Json]:
    """What connections with caps carried since the day `first`, and what they would have carried without caps.

    The latter is estimated from the control group. All are bytes of payload on networks with a cap; `low` and `high`
    bound what was `saved` with 95 % confidence.
    """
    sums = DaySums()
    for day, of_day in by_day.items():
        if day >= first.isoformat():
            sums = sums.with_all_of(of_day)
    capped, control = sums
    difference = difference_of_means(capped.sent_with_cap, control.sent_with_cap)
    number, carried = capped.sent.number, capped.sent_with_cap.total
    low = high = saved = None
    if difference is not None and capped.sent_with_cap.mean is not None and control.sent_with_cap.mean is not None:
        low, high = round(-number * difference.high), round(-number * difference.low)
        saved = round(number * (control.sent_with_cap.mean - capped.sent_with_cap.mean))
    without = None if saved is None else carried + saved
    return {
        "capped": _group(capped),
        "control": _group(control),
        "carried": carried,
        "without": without,
        "saved": saved,
        "low": low,
        "high": high,
        "fraction": saved / without if saved is not None and without else None,
    }


def _group(sums: GroupSums) -> Json:
    return {"connections": sums.sent.number, "sent": sums.sent.total, "sent_with_cap": sums.sent_with_cap.total}


def _midnight(day: date, zone: tzinfo | None) -> float:
    return datetime.combine(day, time(), zone).timestamp()


def waiting(
    hours: Iterable[HourOfWaiting], of_clients: Mapping[str, int], now: float, networks: Sequence[AccessNetwork]
) -> Json:
    """How long data of clients waited in each of the last 24 hours, `now` being in seconds since the epoch.

    `of_clients` has the milliseconds in the last hour, by the name of an account of the history. Devices that are no
    longer configured are left out: they have no address.
    """
    known = {hour.start: hour._asdict() for hour in hours}
    nothing = {"clients": 0, "waiting": 0, "held_back_ms": 0, "p99_ms": 0, "worst_ms": 0}
    present = int(now) // _HOUR * _HOUR
    starts = range(present - (_HOURS - 1) * _HOUR, present + 1, _HOUR)
    longest = sorted(of_clients.items(), key=lambda item: item[1], reverse=True)
    clients = ((_client(name, networks), held) for name, held in longest)
    most = islice(((client, held) for client, held in clients if client is not None), _MOST_CLIENTS)
    return {
        "hours": [known.get(start, {"start": start, **nothing}) for start in starts],
        "clients": [{**client, "held_back_ms": held} for client, held in most],
    }


def _client(name: str, networks: Iterable[AccessNetwork]) -> dict[str, Json] | None:
    """The client of an account, with its first address; None: a device that is no longer configured."""
    named = (network.devices.by_name[name] for network in networks if name in network.devices.by_name)
    device = next(named, None)
    if device is not None:
        return {"client": str(device.first), "device": name}
    with suppress(ValueError):
        return {"client": str(ip_address(name)), "device": None}
    return None
