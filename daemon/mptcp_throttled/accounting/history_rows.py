"""What the history has: accounts, what they carried in a period, and sums of clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from mptcp_throttled.vocabulary.traffic import Traffic

KEPT: Final = {1: 600, 60: 86_400, 3600: 60 * 86_400}
"""By resolution, in seconds: for how many seconds its rows are kept."""


class Kind(StrEnum):
    """What a row is about."""

    NETWORK = "network"
    CLIENT = "client"
    PATH = "path"


class Account(NamedTuple):
    """What has a history: a network by its name, or a client by the name of its device or by its first address.

    A path is a device on one network. A client by its address is on one network anyway.
    """

    kind: Kind
    name: str

    @classmethod
    def of_path(cls, network: str, device: str) -> Account:
        """A device on a network."""
        return cls(Kind.PATH, f"{network} {device}")


class ClientSums(NamedTuple):
    """Parts of the traffic of a client; `name` is that of its account."""

    name: str
    ip_sent: int
    ip_sent_throttled: int
    held_back_ms: int


class HourOfWaiting(NamedTuple):
    """How long data of clients waited in the hour that began at `start`, in seconds since the epoch.

    `clients` is how many have carried something, `waiting` how many of them had data that waited. Over these `clients`,
    `p99_ms` is the 99th percentile of the milliseconds that data waited, `worst_ms` the most, `held_back_ms` the sum.
    """

    start: int
    clients: int
    waiting: int
    held_back_ms: int
    p99_ms: int
    worst_ms: int

    @classmethod
    def of(cls, start: int, clients: int, waited: Sequence[int]) -> HourOfWaiting:
        """`waited` are the milliseconds of each client whose data waited."""
        place = -(-99 * clients // 100) - (clients - len(waited)) - 1
        p99 = sorted(waited)[place] if place >= 0 else 0
        return cls(start, clients, len(waited), sum(waited), p99, max(waited, default=0))


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """What an account carried from `start` (seconds since the epoch) for the length of the resolution."""

    start: int
    traffic: Traffic


def summed(periods: Iterable[HistoryRow]) -> list[HistoryRow]:
    """The rows of several accounts, those with the same start added up; the oldest first."""
    sums: dict[int, Traffic] = {}
    for period in periods:
        before = sums.get(period.start)
        sums[period.start] = period.traffic if before is None else before.plus(period.traffic)
    return [HistoryRow(start, sums[start]) for start in sorted(sums)]


def resolution_for(seconds: float) -> int:
    """The finest resolution that is kept for this number of seconds."""
    return next((resolution for resolution, kept in KEPT.items() if seconds <= kept), max(KEPT))
