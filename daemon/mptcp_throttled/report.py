"""What the daemon tells operators: log lines, one per decision, and the answers to the CLI."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mptcp_throttle.model import AccessNetwork, FourTuple, format_token
from mptcp_throttle.wire import encode_subflow
from mptcp_throttled.kernel.htb import classid
from mptcp_throttled.kernel.netlink import format_classid
from mptcp_throttled.overrides import encode_override
from mptcp_throttled.plan import UNTOUCHED, KernelPlan
from mptcp_throttled.policy import Rule, Treatment
from mptcp_throttled.pull import TableView
from mptcp_throttled.wishes import Pause, Wishes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-throttled")


@dataclass(frozen=True, slots=True)
class View:
    """One round of the daemon: what was known, decided, planned, and what is in force in the kernel.

    `networks` are the `configured` ones with the operator's rates in place of their own.
    `unpaced` is why no socket can be paced.
    `latency` is, for each subflow held in the kernel, the seconds from the kernel's time stamp of the SYN that made
    it so (the latest of its connection) to the moment the mark was read back.
    """

    table: TableView = field(default_factory=TableView)
    configured: tuple[AccessNetwork, ...] = ()
    networks: tuple[AccessNetwork, ...] = ()
    wishes: Wishes = field(default_factory=Wishes)
    treatments: tuple[Treatment, ...] = ()
    plan: KernelPlan = UNTOUCHED
    in_force: KernelPlan = UNTOUCHED
    errors: tuple[str, ...] = ()
    unpaced: str | None = None
    latency: Mapping[FourTuple, float] = field(default_factory=dict)


def measure_latency(
    before: View, treatments: tuple[Treatment, ...], in_force: KernelPlan, now: float
) -> dict[FourTuple, float]:
    """The latency of every subflow in force; those that were in force before keep theirs."""
    triggers: dict[int, float] = {}
    for treatment in treatments:
        triggers[treatment.token] = max(triggers.get(treatment.token, 0.0), treatment.subflow.opened_at)
    return {
        t.subflow.ends: before.latency.get(t.subflow.ends, now - triggers[t.token])
        for t in treatments
        if t.subflow.ends in in_force.marks
    }


def log_decisions(before: View, after: View) -> None:
    """One line for every subflow whose treatment in the kernel has changed, and for every new error."""
    was = {t.subflow.ends: t for t in before.treatments if t.subflow.ends in before.in_force.marks}
    for treatment in after.treatments:
        ends = treatment.subflow.ends
        old = was.pop(ends, None)
        held = treatment.held if ends in after.in_force.marks else None
        if held is not None and (old is None or old.held != held):
            minor = after.in_force.marks[ends]
            _log.info(
                "%s %s rate=%s class=%s reason=%r after_ms=%.1f",
                held.share.rule,
                _identify(treatment),
                held.rate,
                format_classid(classid(minor)),
                treatment.reason,
                after.latency[ends] * 1000,
            )
        elif held is None and old is not None:
            _log.info("free %s reason=%r", _identify(treatment), treatment.reason)
    for gone in was.values():
        _log.info("free %s reason='subflow ended'", _identify(gone))
    for error in after.errors:
        if error not in before.errors:
            _log.error("%s; the subflows concerned stay uncapped, it is tried again", error)
    for error in before.errors:
        if error not in after.errors:
            _log.info("resolved: %s", error)


def _identify(treatment: Treatment) -> str:
    return f"token={format_token(treatment.token)} client={treatment.subflow.ends.client} network={treatment.network}"


def status(view: View, interface: str, marks: str, config: Json, now: float) -> Json:
    """The answer to `status`; `marks` is what marks packets, `config` its part about the configuration.

    `now` is in seconds since the epoch.
    """
    rules = [treatment.held.share.rule for treatment in _in_force(view) if treatment.held is not None]
    return {
        "daemon": {
            "interface": interface,
            "config": config,
            "pause": pause_status(view.wishes.pause, now),
            "marks": marks,
            "qdisc": "htb" if view.in_force.htb else "original",
            "classes": len(view.in_force.classes),
            "capped_subflows": rules.count(Rule.CAP),
            "limited_subflows": rules.count(Rule.LIMIT),
            "paced_subflows": len(view.in_force.paces),
            "unpaced": view.unpaced,
            "errors": list(view.errors),
        },
        "sniffer": {
            "connected": view.table.problem is None,
            "problem": view.table.problem,
            "epoch": view.table.epoch,
            "revision": view.table.revision,
            "connections": len(view.table.connections),
        },
        "networks": [
            _network_status(configured, network, view)
            for configured, network in zip(view.configured, view.networks, strict=True)
        ],
    }


def pause_status(pause: Pause | None, now: float) -> Json:
    """`{expires_at, seconds_left}`, both null if it lasts until resumed; null if there is no pause."""
    if pause is None:
        return None
    end = pause.expires_at
    return {"expires_at": end, "seconds_left": None if end is None else max(end - now, 0.0)}


def _network_status(configured: AccessNetwork, now: AccessNetwork, view: View) -> Json:
    live = [treatment for treatment in view.treatments if treatment.network == now.name]
    return {
        "name": now.name,
        "subnets": [str(subnet) for subnet in now.subnets],
        "preference": now.preference,
        "per": now.per,
        "cap": _text(now.cap),
        "limit": _text(now.limit),
        "configured_cap": _text(configured.cap),
        "configured_limit": _text(configured.limit),
        "overrides": [encode_override(o) for o in view.wishes.overrides if o.network == now.name],
        "subflows": len(live),
        "held_subflows": sum(treatment.subflow.ends in view.in_force.marks for treatment in live),
    }


def connections(view: View) -> Json:
    """The answer to `connections`."""
    subflows: dict[str, list[Json]] = {}
    for treatment in view.treatments:
        subflows.setdefault(format_token(treatment.token), []).append(_subflow_status(treatment, view))
    return {
        "connections": [
            {
                "token": format_token(c.token),
                "version": c.version,
                "subflows": subflows.get(format_token(c.token), []),
            }
            for c in view.table.connections.values()
        ]
    }


def _subflow_status(treatment: Treatment, view: View) -> Json:
    ends = treatment.subflow.ends
    held = treatment.held if ends in view.in_force.marks else None
    failed = treatment.held is not None and held is None
    latency = view.latency.get(ends)
    return {
        **encode_subflow(treatment.subflow),
        "network": treatment.network,
        "rule": None if held is None else held.share.rule,
        "rate": None if held is None else str(held.rate),
        "rate_bps": None if held is None else held.rate.bits_per_second,
        "class": None if held is None else format_classid(classid(view.in_force.marks[ends])),
        "reason": "the kernel refused; see status" if failed else treatment.reason,
        "join_to_cap_ms": None if held is None or latency is None else round(latency * 1000, 3),
    }


def _in_force(view: View) -> Iterator[Treatment]:
    return (treatment for treatment in view.treatments if treatment.subflow.ends in view.in_force.marks)


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)
