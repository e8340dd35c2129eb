"""What each check of `doctor` is given, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from mptcp_throttle.config.schema import Config
from mptcp_throttle.findings import Finding
from mptcp_throttle.rpc import Json


@dataclass(frozen=True, slots=True)
class Host:
    """What is examined: this host with its configuration, and what each service answers to `status`, or why it does
    not."""

    config_file: Path
    config: Config
    sniffer: Json | str
    daemon: Json | str


Check = Callable[[Host], Iterable[Finding]]
"""It changes nothing, takes no longer than seconds, and says what it could not check."""


def or_ok(subject: str, findings: Iterable[Finding]) -> list[Finding]:
    """The findings; if there are none, that the subject has no problem."""
    return list(findings) or [Finding(subject)]
