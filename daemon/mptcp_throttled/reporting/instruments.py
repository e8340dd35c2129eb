"""Histograms and counters that are updated where something happens, like the log.

Each series exists from the start with the value 0, so that the first event shows as an increase.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from mptcp_throttle.model import RateKind
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.applied import Applied, UplinkStep
from mptcp_throttled.vocabulary.snapshot import Snapshot, Transition

NAMESPACE: Final = "mptcpthrottle"
REGISTRY: Final = CollectorRegistry()

# Otherwise each metric would have another series, with the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]

_JOIN_TO_CAP: Final = Histogram(
    "join_to_cap_seconds",
    "Time from the SYN that made a subflow capped until it was held back, or in its class.",
    namespace=NAMESPACE,
    registry=REGISTRY,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
_RECONCILE_DURATION: Final = Histogram(
    "reconcile_duration_seconds",
    "Duration of full and incremental reconciles.",
    namespace=NAMESPACE,
    registry=REGISTRY,
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5),
)
_KERNEL_REPAIRS: Final = Counter(
    "kernel_repairs",
    "Repairs of kernel objects that another program had changed.",
    ("object",),
    namespace=NAMESPACE,
    registry=REGISTRY,
)
_ERRORS: Final = Counter(
    "errors",
    "Errors, by stage. An error that lasts counts once.",
    ("stage",),
    namespace=NAMESPACE,
    registry=REGISTRY,
)

_KINDS: Final[dict[type[op.Operation], str]] = {
    op.InstallHtb: "qdisc",
    op.RestoreQdisc: "qdisc",
    op.AddClass: "class",
    op.ChangeClass: "class",
    op.DeleteClass: "class",
    op.MakeAssignments: "assignment",
    op.ChangeAssignments: "assignment",
    op.RemoveAssignments: "assignment",
    op.ChangePaces: "pace",
}
_STAGES: Final = ("kernel", "sniffer", "reload", "policy", "history", "observation", "budgets")

for _kind in (*dict.fromkeys(_KINDS.values()), "filter"):
    _KERNEL_REPAIRS.labels(_kind)
for _stage in _STAGES:
    _ERRORS.labels(_stage)


def count_step(
    before: Snapshot, after: Snapshot, transitions: Iterable[Transition], applied: Applied, uplinks: UplinkStep
) -> None:
    """Count what a step of the loop has changed, and what has happened in it."""
    for transition in transitions:
        is_cap = transition.after is not None and transition.after.share.kind is RateKind.CAP
        if is_cap and transition.before is None and transition.latency is not None:
            _JOIN_TO_CAP.observe(transition.latency)
    if after.errors != before.errors:
        count_errors("kernel", len(set(after.errors) - set(before.errors)))
    if before.sniffer.problem is None and after.sniffer.problem is not None:
        count_errors("sniffer")
    count_errors("kernel", len(uplinks.window_problems))
    for duration in applied.durations:
        _RECONCILE_DURATION.observe(duration)
    for operation in applied.repairs:
        _KERNEL_REPAIRS.labels(_KINDS[type(operation)]).inc()
    if uplinks.repairs:
        _KERNEL_REPAIRS.labels("filter").inc(uplinks.repairs)


def count_errors(stage: str, number: int = 1) -> None:
    """Count errors at one of the stages."""
    if number:
        _ERRORS.labels(stage).inc(number)
