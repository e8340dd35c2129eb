"""Logs what a step of the loop has changed: decisions, features, new errors, and errors that are resolved."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from mptcp_throttle.features import FEATURE_TEXTS
from mptcp_throttle.logs import about, with_fields
from mptcp_throttle.model import FourTuple, format_token
from mptcp_throttled.reporting.frequent_events import SNIFFER_DRAWBACK
from mptcp_throttled.vocabulary.applied import Applied, UplinkStep
from mptcp_throttled.vocabulary.class_ids import classid, format_classid
from mptcp_throttled.vocabulary.events import Event, EventKind
from mptcp_throttled.vocabulary.snapshot import KEEPS_SENDING, MAX_ERRORS, Snapshot, Throttled, Transition
from mptcp_throttled.vocabulary.terms import RuleName

_log = logging.getLogger("mptcp-throttled")

_ERROR_BEGAN: Final = with_fields(EventKind.ERROR_BEGAN.fields)
_ERROR_ENDED: Final = with_fields(EventKind.ERROR_ENDED.fields)


def log_step(
    before: Snapshot, after: Snapshot, transitions: Iterable[Transition], applied: Applied, uplinks: UplinkStep
) -> None:
    """Log what a step of the loop has changed, and what has happened in it."""
    for ends in after.policed - before.policed:
        of_client = about(str(ends.client.address))
        client = _client(ends.client, after.device_of(ends))
        _log.info("policed %s direction=uplink reason=%r", client, KEEPS_SENDING, extra=of_client)
    for transition in transitions:
        # An overflow or a lease may change the rates of all subflows each second; events tell of an overflow.
        level = logging.DEBUG if _is_frequent(transition, before, after) else logging.INFO
        _log_transition(transition, after, level)
    for feature, texts in FEATURE_TEXTS.items():
        if after.problem_of(feature) != before.problem_of(feature) and after.operator.pause is None:
            _log_problem(texts.in_place, f"{feature}: {texts.drawback}", after.problem_of(feature))
    if after.classifier != before.classifier:
        _log.info("classifier in use: %s", after.classifier)
    if after.sniffer.problem != before.sniffer.problem:
        following = f"following the sniffer: {len(after.connections)} connections"
        # At a start, that the sniffer answers is no end of an error.
        _log_problem(following, SNIFFER_DRAWBACK, after.sniffer.problem, is_start=not before.networks)
    # Without the last line, which says how many more errors there are: it would be logged for each new number.
    _log_errors(before.errors[:MAX_ERRORS], after.errors[:MAX_ERRORS])
    repairs = len(applied.repairs) + uplinks.repairs
    if repairs:
        _log.warning("another program had changed kernel objects; repaired by %d operations", repairs)
    for problem in uplinks.window_problems:
        _log.debug("%s", problem)


def log_adopted(throttled: Iterable[Throttled]) -> None:
    """Log how many subflows kept the assignments of an earlier instance."""
    adopted = [subflow.adopted for subflow in throttled]
    if adopted:
        _log.info("%d throttled subflows adopted, %d added", sum(adopted), len(adopted) - sum(adopted))


def enforcement_event(
    before: Mapping[FourTuple, str], after: Mapping[FourTuple, str], snapshot: Snapshot
) -> Event | None:
    """The event that some rates are not enforced, or that all are enforced again; None: that has not changed."""
    if bool(before) == bool(after):
        return None
    if not after:
        return Event(EventKind.ERROR_ENDED, "resolved: the rates of all subflows are enforced")
    ends, why = next(iter(after.items()))
    text = f"{len(after)} subflows: rate not enforced; {_client(ends.client, snapshot.device_of(ends))}: {why}"
    return Event(EventKind.ERROR_BEGAN, text, client=str(ends.client.address), reason=why)


def _is_frequent(transition: Transition, before: Snapshot, after: Snapshot) -> bool:
    """Whether only the rate has changed, and an overflow or a lease of a shared rate has changed it."""
    old, new = transition.before, transition.after
    if old is None or new is None or old.share.kind is not new.share.kind:
        return False
    rules = {before.terms.term(old.share).rule, after.terms.term(new.share).rule}
    return RuleName.FLEET in rules or (old.share.kind.is_cap and RuleName.OVERFLOW in rules)


def _log_transition(transition: Transition, snapshot: Snapshot, level: int) -> None:
    direction, decision, throttle = transition.direction, transition.decision, transition.after
    if decision is not None and not _log.isEnabledFor(level):
        return
    if decision is None:
        if transition.before is not None and _log.isEnabledFor(logging.DEBUG):
            # No decision: the daemon does not know the subflow any more.
            network = transition.before.share.network
            client = _client(transition.ends.client, snapshot.device(network, transition.ends.client.address))
            reason = "subflow ended" if snapshot.sniffer.problem is None else "the sniffer does not answer"
            extra = with_fields(_fields(transition, snapshot, reason))
            _log.debug("free %s network=%s direction=%s reason=%r", client, network, direction, reason, extra=extra)
        return
    about_token = f"token={format_token(decision.token)}"
    client = _client(transition.ends.client, snapshot.device(decision.network, transition.ends.client.address))
    subflow = f"{about_token} {client} network={decision.network} direction={direction}"
    what = "free" if throttle is None else throttle.share.kind.word
    rate = "" if throttle is None else f" rate={throttle.rate}"
    in_class, after_ms = "", ""
    if transition.minor is not None:
        in_class = f" class={format_classid(classid(transition.minor))}"
        after_ms = f" after_ms={None if transition.latency is None else round(transition.latency * 1000, 1)}"
    reason = snapshot.reason(direction, decision)
    extra = with_fields(_fields(transition, snapshot, reason), about_token)
    _log.log(level, "%s %s%s%s reason=%r%s", what, subflow, rate, in_class, reason, after_ms, extra=extra)


def _fields(transition: Transition, snapshot: Snapshot, reason: str) -> dict[str, str] | None:
    """The fields in the journal of a line about a cap that has begun or ended; None: the line is about no cap."""
    was_capped, is_capped = (
        each is not None and each.share.kind.is_cap for each in (transition.before, transition.after)
    )
    throttle = transition.after or transition.before
    if throttle is None or was_capped == is_capped:
        return None
    kind = EventKind.CAP_BEGAN if is_capped else EventKind.CAP_ENDED
    share, client = throttle.share, str(transition.ends.client.address)
    rule = snapshot.terms.term(share).rule if is_capped else None
    return Event(kind, "", share.network, client, rule, reason).fields


def _client(client: object, device: str | None) -> str:
    return f"client={client}" + (f" device={device}" if device is not None else "")


def _log_errors(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    if after == before:
        return
    for error in after:
        if error not in before:
            _log.error("%s; the rates of the subflows concerned are not applied", error, extra=_ERROR_BEGAN)
    for error in before:
        if error not in after:
            _log.info("resolved: %s", error, extra=_ERROR_ENDED)


def _log_problem(in_place: str, drawback: str, problem: str | None, *, is_start: bool = False) -> None:
    if problem is None:
        _log.info("%s", in_place, extra=None if is_start else _ERROR_ENDED)
    else:
        _log.warning("%s: %s", drawback, problem, extra=_ERROR_BEGAN)
