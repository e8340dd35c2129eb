"""What to believe of the running totals that proxies publish; pure.

A total is a grow-only counter of a proxy: repeated or lost writes do no harm, and sums are the same in any order. It
grows no faster than the link of a proxy, since its start at the beginning of a period.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from mptcp_throttled.fleet.keys import MAX_FIELDS

LOWER_SECONDS: Final = 10.0
"""A server that has lost writes has them again before: each proxy then writes its own totals again."""

# A proxy publishes every 0.25 s to 5 s: its total grows in steps.
_SLACK_SECONDS: Final = 5.0


class BelievedTotal(NamedTuple):
    """A proxy's total that is believed; times are in monotonic seconds.

    Its link has needed the time until `paid` to carry it. It was read last at `read`; -infinity: by an earlier
    instance. A lower total was read since `lower`; None: the last one was not.
    """

    total: int
    paid: float
    read: float
    lower: float | None = None


_NOTHING: Final = BelievedTotal(0, -math.inf, -math.inf)


def believed_earlier(totals: Iterable[tuple[str, int]]) -> dict[str, BelievedTotal]:
    """What is believed of totals, each with its field, that an earlier instance has believed."""
    return {field: BelievedTotal(total, -math.inf, -math.inf) for field, total in totals}


def first_believed(total: int, now: float, age: float, link: float, before: int = 0) -> BelievedTotal:
    """What is believed of a total that is read for the first time, `age` seconds after its period has begun.

    `link` is the rate of a proxy's link in bytes/s. An earlier instance has believed the total `before`.
    """
    paid = now - age + before / link
    return later_believed(BelievedTotal(before, paid, paid), total, now, link)


def later_believed(before: BelievedTotal, total: int, now: float, link: float) -> BelievedTotal:
    """What is believed once a total is read again."""
    if total < before.total:
        lower = now if before.lower is None else before.lower
        if now - lower < LOWER_SECONDS:
            return before._replace(read=now, lower=lower)
        return BelievedTotal(total, before.paid, now)
    paid = max(before.paid, before.read - _SLACK_SECONDS)
    granted = min(total - before.total, max(int((now - paid) * link), 0))
    return BelievedTotal(before.total + granted, paid + granted / link, now)


def merged(
    believed: Mapping[str, BelievedTotal], totals: Mapping[str, int], now: float, age: float, link: float
) -> dict[str, BelievedTotal]:
    """What is believed of all fields after these totals were read; one without a total keeps what it had.

    Of more than `MAX_FIELDS`, the smallest without a total are forgotten.
    """
    made = dict(believed)
    for field, total in totals.items():
        before = believed.get(field, _NOTHING)
        made[field] = (
            first_believed(total, now, age, link, before.total)
            if math.isinf(before.read)
            else later_believed(before, total, now, link)
        )
    excess = len(made) - MAX_FIELDS
    if excess > 0:
        for field in sorted(made.keys() - totals.keys(), key=lambda each: made[each].total)[:excess]:
            del made[field]
    return made


def is_settled(believed: Mapping[str, BelievedTotal], totals: Mapping[str, int]) -> bool:
    """Whether reading the same totals again changes nothing."""
    return all(believed[field].total == total for field, total in totals.items())
