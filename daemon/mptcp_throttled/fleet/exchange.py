"""The exchange of totals, as `FleetThread` knows it: publish totals, and read what others have published.

Beside them, each proxy reports of itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from mptcp_throttle.valkey.connection import ValkeyError
from mptcp_throttled.fleet.reports import Report


class ExchangeError(ValkeyError):
    """Why nothing can be exchanged now, in one line.

    `name` is the hash whose content is the reason, if any is, and `field` what in it is, if that is known.
    """

    def __init__(self, problem: str, name: bytes | None = None, field: str | None = None) -> None:
        super().__init__(problem)
        self.name = name
        self.field = field


class ReadRefused(ExchangeError):
    """Why the server lets nothing be read of a hash. Others can be read all the same."""


class WriteRefused(ExchangeError):
    """Why the server writes nothing, as when it is full. It can be read all the same."""


class Totals(NamedTuple):
    """The totals in a hash by field, and, of each value that is none, what is wrong with it."""

    by_field: Mapping[str, int]
    refused: Sequence[str] = ()


class ReadReports(NamedTuple):
    """The reports of proxies by field, and, of each value that is none, what is wrong with it.

    `unreadable` are the fields of proxies with such values. `problem` is why nothing was read, if so.
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
        """Write totals by the names of their hashes, and `keep` these hashes for so many seconds.

        Returns the names of those that had no total of this proxy.
        """

    def read(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """What is in these hashes. Equal bytes mean equal totals."""

    def is_filled(self, content: bytes) -> bool:
        """Whether a hash has more in it than proxies write. Its totals are not known."""

    def read_fields(self, asked: Sequence[tuple[bytes, tuple[str, ...]]]) -> Sequence[bytes]:
        """As `read`, but of each hash these fields alone, of which there is at least one."""

    def rest(self, content: bytes, own: int) -> bytes | None:
        """What is in a hash besides the total of this proxy; None if that is not as it was published."""

    def totals(self, content: bytes) -> Totals:
        """The totals in a hash that is not filled, or in the rest of one."""

    def report(self, report: Report, keep: int) -> bool:
        """Write what this proxy reports, and `keep` all reports for so many seconds. Returns whether it had none."""

    def reports(self) -> ReadReports:
        """What all proxies report."""

    def reports_of(self, fields: tuple[str, ...]) -> ReadReports:
        """What these report, of which there is at least one."""

    def forget(self, fields: Sequence[str]) -> None:
        """Delete the reports of these."""

    def close(self) -> None:
        """Close the connection."""
