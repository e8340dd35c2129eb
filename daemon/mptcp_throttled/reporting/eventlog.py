"""What the daemon logs: a line for every decision that changes something, for new errors, and for errors resolved."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from mptcp_throttle.logs import about
from mptcp_throttle.model import FourTuple, format_token
from mptcp_throttled.vocabulary.class_ids import classid, format_classid
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.features import FeatureName
from mptcp_throttled.vocabulary.operator import Pause
from mptcp_throttled.vocabulary.snapshot import (
    KEEPS_SENDING,
    MAX_ERRORS,
    Snapshot,
    Throttled,
    Transition,
    why_free,
    why_uplink_free,
)

_log = logging.getLogger("mptcp-throttled")

_FEATURES: Final = {
    FeatureName.PACING: (
        "caps are decided in the kernel",
        "only HTB enforces the rates, which slows whole connections down",
    ),
    FeatureName.DISCARDS: (
        "clients are kept from discarding segments",
        "clients may discard segments, which stalls connections over several networks",
    ),
}
"""What is logged when a feature is in place, and when it is not."""


def log_step(before: Snapshot, after: Snapshot, transitions: Iterable[Transition]) -> None:
    """Log what a step of the loop has changed."""
    for transition in transitions:
        _log_transition(transition, _why_unknown(after))
    for feature, (fine, drawback) in _FEATURES.items():
        if after.problem_of(feature) != before.problem_of(feature) and after.operator.pause is None:
            _log_feature(fine, drawback, after.problem_of(feature))
    if after.classifier != before.classifier:
        _log.info("subflows are led to their classes by: %s", after.classifier)
    if after.sniffer.problem != before.sniffer.problem:
        _log_sniffer(after)
    # The one behind them says how many others there are: each new number would be a line.
    _log_errors(before.errors[:MAX_ERRORS], after.errors[:MAX_ERRORS])


def log_uplinks(before: Snapshot, after: Snapshot, changed: Mapping[FourTuple, Decision | None]) -> None:
    """Log the uplinks whose throttle has changed.

    `changed` has the decisions, None for subflows that have ended.
    """
    for ends in after.policed - before.policed:
        of_client = about(str(ends.client.address))
        _log.info("uplink_policed client=%s reason=%r", ends.client, KEEPS_SENDING, extra=of_client)
    for ends, decision in changed.items():
        throttle = after.uplinks.get(ends)
        if throttle == before.uplinks.get(ends):
            continue
        if decision is None:
            _log.debug("uplink_free client=%s reason=%r", ends.client, _why_unknown(after))
        elif throttle is None:
            reason = why_uplink_free(decision)
            _log.info("uplink_free %s reason=%r", _identify(decision), reason, extra=_about(decision))
        else:
            _log.info(
                "%s %s rate=%s reason=%r",
                throttle.share.kind,
                _identify(decision),
                throttle.rate,
                decision.uplink_reason,
                extra=_about(decision),
            )


def log_adopted(throttled: Iterable[Throttled]) -> None:
    """Log how many subflows kept the assignments of an earlier instance."""
    adopted = [one.adopted for one in throttled]
    if adopted:
        _log.info("%d throttled subflows adopted, %d added", sum(adopted), len(adopted) - sum(adopted))


def log_pause_at_start(pause: Pause | None, now: float) -> None:
    """Log that a pause has survived the restart, if there is one; `now` is in monotonic seconds."""
    if pause is not None:
        left = "until resumed" if pause.end is None else f"for {pause.end - now:.0f} s"
        _log.warning("paused by the operator, %s: nothing is throttled; `mptcp-throttle resume` ends the pause", left)


def log_repairs(operations: int) -> None:
    """Log that another program had changed what was applied, if it was repaired by any operations."""
    if operations:
        _log.warning("the kernel had been changed; repaired by %d operations", operations)


def log_window_problems(problems: Iterable[str]) -> None:
    """Log why windows of uplinks are not bounded."""
    for problem in problems:
        _log.debug("%s", problem)


def log_enforcement(before: Mapping[FourTuple, str], after: Mapping[FourTuple, str]) -> None:
    """Log for how many subflows what is applied is not enforced, when it is the first, and when there is none left."""
    if bool(before) == bool(after):
        return
    if not after:
        _log.info("resolved: the rates of all subflows are enforced")
    for ends, why in islice(after.items(), 1):
        _log.error("%d subflows: what is applied is not enforced; client=%s: %s", len(after), ends.client, why)


def _why_unknown(snapshot: Snapshot) -> str:
    """Why the daemon does not know a subflow any more."""
    return "subflow ended" if snapshot.sniffer.problem is None else "the sniffer does not answer"


def _log_transition(transition: Transition, why_unknown: str) -> None:
    before, after, decision = transition.before, transition.after, transition.decision
    if after is not None and after.decision.throttle is not None:
        _log.info(
            "%s %s rate=%s class=%s reason=%r after_ms=%s",
            after.decision.throttle.share.kind,
            _identify(after.decision),
            after.decision.throttle.rate,
            format_classid(classid(after.minor)),
            after.decision.reason,
            None if after.latency is None else round(after.latency * 1000, 1),
            extra=_about(after.decision),
        )
    elif decision is not None:
        _log.info("free %s reason=%r", _identify(decision), why_free(decision), extra=_about(decision))
    elif before is not None:
        # Nobody has decided that.
        _log.debug("free %s reason=%r", _identify(before.decision), why_unknown, extra=_about(before.decision))


def _log_errors(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    if after == before:
        return
    for error in after:
        if error not in before:
            _log.error("%s; the rates of the subflows concerned are not applied", error)
    for error in before:
        if error not in after:
            _log.info("resolved: %s", error)


def _log_feature(fine: str, drawback: str, problem: str | None) -> None:
    if problem is None:
        _log.info("%s", fine)
    else:
        _log.warning("%s: %s", drawback, problem)


def _log_sniffer(snapshot: Snapshot) -> None:
    if snapshot.sniffer.problem is None:
        _log.info("following the sniffer: %d connections", len(snapshot.connections))
    else:
        _log.warning("the sniffer does not answer; all subflows are free: %s", snapshot.sniffer.problem)


def _about(decision: Decision) -> Mapping[str, object]:
    return about(f"token={format_token(decision.token)}")


def _identify(decision: Decision) -> str:
    return f"token={format_token(decision.token)} client={decision.subflow.ends.client} network={decision.network}"
