"""The numbers that shares have in a kernel program, and which subflows belong to them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from mptcp_throttle.model import FourTuple, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.decision import Share, Throttle


@dataclass(slots=True)
class _Record:
    """A share: its number in the program, the rate that the program has, and how many subflows have it.

    `unused_since` (monotonic seconds) counts while it has none.
    """

    number: int
    unused_since: float
    rate: Rate | None = None
    subflows: int = 0


_Key = Share | tuple[str, RateKind, str]


def _key(throttle: Throttle) -> _Key:
    """What is one share to a program: with a burst, a client's while it has terms of its own, and while it has none.

    Else it would have a burst of each whenever its terms change.
    """
    share = throttle.share
    return (share.network, share.kind, share.who.partition("/")[0]) if throttle.rate.burst else share


class ShareNumbers:
    """The shares of a program, numbered from 1. For one thread.

    For `linger` seconds a share without subflows stays: a client could open new subflows to escape its debt.
    """

    def __init__(self) -> None:
        self.linger = 0.0
        self._numbers = count(1)
        self._records: dict[_Key, _Record] = {}
        self._record_of: dict[FourTuple, _Record] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def subflows(self) -> Collection[FourTuple]:
        """Those that have a share."""
        return self._record_of.keys()

    def new_rates(self, throttles: Iterable[Throttle | None]) -> dict[int, Rate]:
        """By number, the rates that the program lacks, until `note_rates` says that it has them.

        Shares are made as needed.
        """
        rates = {}
        for throttle in filter(None, throttles):
            key = _key(throttle)
            record = self._records.get(key)
            if record is None:
                record = self._records[key] = _Record(next(self._numbers), time.monotonic())
            if record.rate != throttle.rate:
                rates[record.number] = throttle.rate
        return rates

    def note_rates(self, throttles: Iterable[Throttle | None]) -> None:
        """The program has these rates now."""
        for throttle in filter(None, throttles):
            self._records[_key(throttle)].rate = throttle.rate

    def number(self, throttle: Throttle) -> int:
        """That of its share."""
        return self._records[_key(throttle)].number

    def note(self, throttles: Mapping[FourTuple, Throttle | None]) -> None:
        """The subflows belong to these shares now, or to none."""
        for ends, throttle in throttles.items():
            before = self._record_of.pop(ends, None)
            if throttle is not None:
                record = self._record_of[ends] = self._records[_key(throttle)]
                record.subflows += 1
            if before is not None:
                before.subflows -= 1
                before.unused_since = time.monotonic()

    def take_unused(self) -> list[int]:
        """Forget the shares that have had no subflow for `linger` seconds; their numbers."""
        kept_since = time.monotonic() - self.linger
        unused = [
            share
            for share, record in self._records.items()
            if not record.subflows and record.unused_since <= kept_since
        ]
        return [self._records.pop(share).number for share in unused]

    def clear(self) -> None:
        """Forget all."""
        self._records, self._record_of = {}, {}
