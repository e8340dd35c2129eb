"""What the daemon logs: a line for every decision that changes something, for new errors, and for errors resolved."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from mptcp_throttle.features import FEATURE_TEXTS
from mptcp_throttle.logs import about
from mptcp_throttle.model import FourTuple, RateKind, format_token
from mptcp_throttle.units import format_percentage, format_volume
from mptcp_throttled.vocabulary.applied import Applied, UplinkStep
from mptcp_throttled.vocabulary.budgets import Begun, Level
from mptcp_throttled.vocabulary.class_ids import classid, format_classid
from mptcp_throttled.vocabulary.operator import Pause
from mptcp_throttled.vocabulary.snapshot import KEEPS_SENDING, MAX_ERRORS, Snapshot, Throttled, Transition
from mptcp_throttled.vocabulary.terms import UNLIMITED, PresentTerms

_log = logging.getLogger("mptcp-throttled")

_MAX_BUDGET_LINES: Final = 20


def log_step(
    before: Snapshot, after: Snapshot, transitions: Iterable[Transition], applied: Applied, uplinks: UplinkStep
) -> None:
    """Log what a step of the loop has changed and met."""
    for ends in after.policed - before.policed:
        of_client = about(str(ends.client.address))
        client = _client(ends.client, after.device_of(ends))
        _log.info("policed %s direction=uplink reason=%r", client, KEEPS_SENDING, extra=of_client)
    _log_terms(before.terms, after.terms)
    for transition in transitions:
        _log_transition(transition, after)
    for feature, texts in FEATURE_TEXTS.items():
        if after.problem_of(feature) != before.problem_of(feature) and after.operator.pause is None:
            _log_problem(texts.in_place, f"{feature}: {texts.drawback}", after.problem_of(feature))
    if after.classifier != before.classifier:
        _log.info("classifier in use: %s", after.classifier)
    if after.sniffer.problem != before.sniffer.problem:
        following = f"following the sniffer: {len(after.connections)} connections"
        _log_problem(following, "the sniffer does not answer; all subflows are free", after.sniffer.problem)
    # The line behind them says how many more errors there are: each new number would be a line.
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


def log_pause_at_start(pause: Pause | None, now: float) -> None:
    """Log that a pause has survived the restart, if there is one; `now` is in monotonic seconds."""
    if pause is not None:
        left = "until resumed" if pause.end is None else f"for {pause.end - now:.0f} s"
        _log.warning("paused by the operator, %s: nothing is throttled; `mptcp-throttle resume` ends the pause", left)


def log_enforcement(before: Mapping[FourTuple, str], after: Mapping[FourTuple, str], snapshot: Snapshot) -> None:
    """Log that the rates of some subflows are not enforced, and when all are enforced again."""
    if bool(before) == bool(after):
        return
    if not after:
        _log.info("resolved: the rates of all subflows are enforced")
    for ends, why in islice(after.items(), 1):
        client = _client(ends.client, snapshot.device_of(ends))
        _log.error("%d subflows: rate not enforced; %s: %s", len(after), client, why)


def log_budgets(told: Sequence[Level | Begun], snapshot: Snapshot) -> None:
    """Log what has become of budgets; of thousands at one time the first only."""
    for each in islice(told, _MAX_BUDGET_LINES):
        network, budget = each.key.network, each.budget
        of_budget = f"network={network} budget={format_volume(budget.amount)!r} per={budget.per} every={budget.every}"
        if isinstance(each, Begun):
            _log.info("budget begins again %s freed=%d", of_budget, each.freed)
            continue
        who = "" if each.subject is None else f" {_client(each.subject, snapshot.device(network, each.subject))}"
        used = f"used={format_volume(each.use.used)!r} ({format_percentage(each.use.used / budget.amount)})"
        state = f"stage {each.stages} reached" if each.stages else "warning"
        _log.warning("budget %s %s%s %s", state, of_budget, who, used, extra=about(who))
    if len(told) > _MAX_BUDGET_LINES:
        _log.warning("and %d more budgets", len(told) - _MAX_BUDGET_LINES)


def _log_terms(before: PresentTerms, after: PresentTerms) -> None:
    """Log the rates of networks that a rule has changed, or changes no longer."""
    if after is before:
        return
    for name, terms in after.by_network.items():
        earlier = before.by_network.get(name, {})
        for kind in RateKind:
            term, old = terms.get(kind, UNLIMITED), earlier.get(kind, UNLIMITED)
            if (term.rate, term.reason) != (old.rate, old.reason) and (term.reason or old.reason):
                rate, reason = term.rate or "unlimited", term.reason or "as configured"
                _log.info("network=%s direction=%s %s=%s reason=%r", name, kind.direction, kind.word, rate, reason)


def _log_transition(transition: Transition, snapshot: Snapshot) -> None:
    direction, decision, throttle = transition.direction, transition.decision, transition.after
    if decision is None:
        if transition.before is not None:
            # No decision: the daemon does not know the subflow any more.
            network = transition.before.share.network
            client = _client(transition.ends.client, snapshot.device(network, transition.ends.client.address))
            reason = "subflow ended" if snapshot.sniffer.problem is None else "the sniffer does not answer"
            _log.debug("free %s network=%s direction=%s reason=%r", client, network, direction, reason)
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
    _log.info("%s %s%s%s reason=%r%s", what, subflow, rate, in_class, reason, after_ms, extra=about(about_token))


def _client(client: object, device: str | None) -> str:
    return f"client={client}" + (f" device={device}" if device is not None else "")


def _log_errors(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    if after == before:
        return
    for error in after:
        if error not in before:
            _log.error("%s; the rates of the subflows concerned are not applied", error)
    for error in before:
        if error not in after:
            _log.info("resolved: %s", error)


def _log_problem(in_place: str, drawback: str, problem: str | None) -> None:
    if problem is None:
        _log.info("%s", in_place)
    else:
        _log.warning("%s: %s", drawback, problem)
