"""The findings of `doctor` as one line and an exit status, as plugins of Nagios, Icinga and others have them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from mptcp_throttle.findings import Finding

_NAMED: Final = 3


class State(IntEnum):
    """The state of a service, which is the exit status of a plugin (Monitoring Plugins Development Guidelines)."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


MONITORING_HELP: Final = """\
exit status with --monitoring:
    0  OK: no problem was found
    1  WARNING: something works less well than it could
    2  CRITICAL: a problem prevents caps, or a reload was refused (also: wrong command line)
    3  UNKNOWN: nothing could be checked, for example because the configuration is invalid
What could not be checked is counted (unchecked), and does not change the status: some checks need root."""


def judge(findings: Sequence[Finding]) -> tuple[State, str]:
    """The state, and the line that says why: the worst problems first, then all counts as performance data."""
    problems = [finding for finding in findings if finding.problem is not None and finding.harm]
    notes = [finding for finding in findings if finding.problem is not None and not finding.harm]
    unchecked = sum(finding.unchecked is not None for finding in findings)
    state = State.CRITICAL if problems else State.WARNING if notes else State.OK
    worst = [f"{finding.subject}: {finding.problem}" for finding in (*problems, *notes)]
    named = [*worst[:_NAMED], *([f"and {len(worst) - _NAMED} more"] if len(worst) > _NAMED else [])]
    text = "; ".join(named) or "no problem was found"
    return state, _line(state, text) + f" | problems={len(problems)} notes={len(notes)} unchecked={unchecked}"


def unknown(reason: str) -> tuple[State, str]:
    """The state and the line where nothing could be checked; of a `reason` with several lines, the first."""
    first, *rest = reason.splitlines() or [""]
    return State.UNKNOWN, _line(State.UNKNOWN, first + (f"; and {len(rest)} more" if rest else ""))


def _line(state: State, text: str) -> str:
    # What follows a vertical bar is performance data.
    return f"mptcp-throttle {state.name}: {text.replace('|', '/')}"
