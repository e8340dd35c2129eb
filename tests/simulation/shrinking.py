"""Makes the scenario of a failure smaller, as long as it still fails: shorter, with fewer faults and fewer clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from scenario import Result, Scenario


def shrunk(failed: Result, run: Callable[[Scenario], Result], seconds: float) -> Result:
    """The smallest failure found within so many seconds of real time: of the same invariant."""
    until = time.monotonic() + seconds
    smallest = failed
    progress = True
    while progress and time.monotonic() < until:
        progress = False
        for scenario in _smaller(smallest):
            if time.monotonic() >= until:
                break
            result = run(scenario)
            if result.violation is not None and _kind(result) == _kind(failed):
                smallest, progress = result, True
                break
    return smallest


def _kind(result: Result) -> str:
    assert result.violation is not None
    return result.violation.partition(":")[0]


def _smaller(result: Result) -> Iterator[Scenario]:
    """Scenarios that are a little smaller, the most promising first."""
    scenario = result.scenario
    end = result.at + 0.5
    if scenario.ends is None or end < scenario.ends - 1.0:
        yield replace(scenario, ends=end)
    if scenario.faults != ():
        yield replace(scenario, faults=())
    happened = tuple(fault.number for fault in result.faults if fault.at <= result.at)
    yield from (replace(scenario, faults=kept) for kept in _parts(happened) if kept != scenario.faults)
    yield from (replace(scenario, clients=kept) for kept in _parts(scenario.clients) if kept)


def _parts(of: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Halves, quarters, all but a quarter, and so on to all but one."""
    size = len(of) // 2
    while size:
        for begin in range(0, len(of), size):
            yield of[begin : begin + size]
            yield of[:begin] + of[begin + size :]
        size //= 2
