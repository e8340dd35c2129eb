"""The results of the demo: a situation, what was recorded, the verdict; and all of them as JSON."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptcp_lab.demo.recording import INTERFACES, MEGA

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_lab.demo.recording import Recording
    from mptcp_lab.demo.situations import Situation, Verdict


@dataclass(frozen=True, slots=True)
class Run:
    """One situation, performed and judged."""

    situation: Situation
    recording: Recording
    verdict: Verdict

    @property
    def failures(self) -> int:
        """How many expectations did not hold."""
        return sum(not expectation.held for expectation in self.verdict.expectations)


def environment() -> dict[str, str]:
    """What the numbers depend on: the kernel and its default congestion control."""
    congestion_control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
    return {"kernel": platform.release(), "congestion_control": congestion_control}


def as_json(runs: Iterable[Run]) -> dict[str, Any]:
    """Everything that was measured, except the samples."""
    return {"environment": environment(), "runs": [_run(run) for run in runs]}


def _run(run: Run) -> dict[str, Any]:
    recording = run.recording
    latency = recording.join_to_cap
    return {
        "name": run.situation.name,
        "title": run.situation.title,
        "bytes": recording.result.size,
        "seconds": round(recording.duration, 3),
        "goodput_mbps": round(recording.result.goodput / MEGA, 3),
        "paths": {
            network: {
                "mbps": round(recording.mbps(network, 0, recording.duration), 3),
                "bytes": recording.bytes(network),
            }
            for network in INTERFACES
        },
        "join_to_cap_ms": None if latency is None else round(latency * 1000, 3),
        "windows": [
            {
                "label": window.label,
                "start_s": round(window.start, 3),
                "end_s": round(window.end, 3),
                "paths": {network: {"mbps": round(rate, 3)} for network, rate in window.mbps.items()},
            }
            for window in run.verdict.windows
        ],
        "events": [{"at_s": round(event.at, 3), "text": event.text} for event in recording.events],
        "expectations": [{"expected": e.expected, "seen": e.seen, "held": e.held} for e in run.verdict.expectations],
    }
