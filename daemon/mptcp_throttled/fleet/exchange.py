"""The exchange of totals, as `TotalsThread` knows it: publish totals, and read what others have published.

Beside them, each proxy reports of itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from mptcp_throttle.valkey.connection import ValkeyError
from mptcp_throttled.fleet.reports import Report


class ExchangeError(ValkeyError):
    """Why nothing can be exchanged now, in one line.

    `name` is the hash whose content is the reason, and `field` the field of it whose value is; None: no hash, or none
    that is known.
    """

    def __init__(self, problem: str, name: bytes | None = None, field: str | None = None) -> None:
        super().__init__(problem)
        self.name = name
        self.field = field


class ReadRefused(ExchangeError):
    """Why the server refuses to let a hash be read. Other hashes may be readable."""


class WriteRefused(ExchangeError):
    """Why the server refuses writes, as when it is full. Reading may still work."""


class Totals(NamedTuple):
    """The totals in a hash by field, and what is wrong with each value that is not a total."""

    by_field: Mapping[str, int]
    refused: Sequence[str] = ()


class ReadReports(NamedTuple):
    """The reports of proxies by field, and what is wrong with each value that is not a report.

    `unreadable` are the fields of proxies with such values. `problem` is why nothing was read; None: it was.
    """

    by_field: Mapping[str, Report]
    refused: Sequence[str] = ()
    unreadable: Set[str] = frozenset()
    problem: str | None = None


class Exchange(Protocol):
    """Hashes at a server; the field is that of this proxy. All methods raise ExchangeError."""

    @property
    def server(self) -> str:
        """Which one it is."""

    def publish(self, totals: Sequence[tuple[bytes, int]], keep: Mapping[bytes, int]) -> set[bytes]:
        """Write totals by the names of their hashes. `keep` has the seconds after which a hash expires.

        Returns the names of those that had no total of this proxy.
        """

    def read(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """What is in these hashes. Equal bytes mean equal totals."""

    def oversized(self, names: Sequence[bytes], contents: Sequence[bytes]) -> Sequence[bytes]:
        """The names of the hashes that have more in them than proxies write: `contents` do not tell their totals."""

    def read_fields(self, asked: Sequence[tuple[bytes, tuple[str, ...]]]) -> Sequence[bytes]:
        """As `read`, but only these fields of each hash; at least one."""

    def without_own_totals(self, contents: Sequence[bytes], published: Sequence[int]) -> Sequence[bytes | None]:
        """What is in each hash without the total of this proxy; None if that is not as it was published."""

    def totals(self, content: bytes) -> Totals:
        """The totals in a hash that is not oversized, with or without that of this proxy."""

    def report(self, report: Report, keep: int) -> bool:
        """Write what this proxy reports; all reports expire after `keep` seconds. Returns whether it had none there."""

    def reports(self) -> ReadReports:
        """What all proxies report."""

    def reports_of(self, fields: tuple[str, ...]) -> ReadReports:
        """What these proxies report, by their fields; at least one."""

    def forget(self, fields: Sequence[str]) -> None:
        """Delete the reports with these fields."""

    def close(self) -> None:
        """Close the connection."""
