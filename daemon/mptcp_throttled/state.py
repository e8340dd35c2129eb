"""What the daemon tells operators: log lines, one per decision, and the answers to the CLI."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mptcp_throttle.model import AccessNetwork, Connection, FourTuple, Token, format_token
from mptcp_throttle.rpc.wire import encode_subflow
from mptcp_throttled.desired.kernel_plan import UNTOUCHED, KernelPlan
from mptcp_throttled.kernel.htb import classid
from mptcp_throttled.kernel.tc import format_classid
from mptcp_throttled.operator_state import OperatorState, Pause
from mptcp_throttled.policy.decide import Decision, Rule
from mptcp_throttled.policy.overrides import encode_override
from mptcp_throttled.source import TableUpdate

if TYPE_CHECKING:
    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-throttled")


@dataclass(frozen=True, slots=True)
class Hold:
    """A subflow that is held in the kernel, by the class `minor`.

    `latency` is the seconds from the kernel's time stamp of the SYN that made it so (the latest of its connection) to
    the moment at which the kernel had its mark; None if it had that before us.
    """

    decision: Decision
    minor: int
    latency: float | None


@dataclass(frozen=True, slots=True)
class View:
    """What was known, decided, planned, and what is in force in the kernel after a round of the daemon.

    `table` is the last update. `networks` are the `configured` ones with the operator's rates in place of their own.
    `unpaced` is why no socket can be paced.
    """

    table: TableUpdate = field(default_factory=TableUpdate)
    configured: tuple[AccessNetwork, ...] = ()
    networks: tuple[AccessNetwork, ...] = ()
    wishes: OperatorState = field(default_factory=OperatorState)
    connections: Mapping[Token, Connection] = field(default_factory=dict)
    decisions: Mapping[Token, tuple[Decision, ...]] = field(default_factory=dict)
    plan: KernelPlan = UNTOUCHED
    in_force: KernelPlan = UNTOUCHED
    holds: Mapping[FourTuple, Hold] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    unpaced: str | None = None

    def copy(self) -> View:
        """One that stays as it is while the daemon goes on."""
        return replace(
            self,
            connections=dict(self.connections),
            decisions=dict(self.decisions),
            plan=_copy(self.plan),
            in_force=_copy(self.in_force),
            holds=dict(self.holds),
        )


def _copy(plan: KernelPlan) -> KernelPlan:
    return replace(plan, classes=dict(plan.classes), marks=dict(plan.marks), paces=dict(plan.paces))


def take_holds(
    holds: dict[FourTuple, Hold],
    concerned: Mapping[FourTuple, Decision | None],
    in_force: KernelPlan,
    decisions: Mapping[Token, tuple[Decision, ...]],
    found: Mapping[FourTuple, int],
    now: float,
) -> None:
    """Bring `holds` up to date for the subflows `concerned`, and log a line for every one that is treated otherwise.

    `found` are the marks that were in the kernel before us.
    """
    for ends, decision in concerned.items():
        old, minor = holds.get(ends), in_force.marks.get(ends)
        if decision is None or decision.held is None or minor is None:
            if old is not None:
                del holds[ends]
                _log.info(
                    "free %s reason=%r",
                    _identify(decision or old.decision),
                    "subflow ended" if decision is None else decision.reason,
                )
            continue
        if old is None and found.get(ends) == minor:
            holds[ends] = Hold(decision, minor, None)
            continue
        if old is None:
            since = max(t.subflow.opened_at for t in decisions[decision.token])
            holds[ends] = Hold(decision, minor, now - since)
        elif (old.decision, old.minor) != (decision, minor):
            holds[ends] = Hold(decision, minor, old.latency)
        if old is None or old.decision.held != decision.held:
            _log.info(
                "%s %s rate=%s class=%s reason=%r after_ms=%s",
                decision.held.share.rule,
                _identify(decision),
                decision.held.rate,
                format_classid(classid(minor)),
                decision.reason,
                _milliseconds(holds[ends], 1),
            )


def log_errors(before: View, after: View) -> None:
    """A line for every error that is new, and for every one that is gone."""
    for error in after.errors:
        if error not in before.errors:
            _log.error("%s; the subflows concerned stay uncapped, it is tried again", error)
    for error in before.errors:
        if error not in after.errors:
            _log.info("resolved: %s", error)


def _identify(decision: Decision) -> str:
    return f"token={format_token(decision.token)} client={decision.subflow.ends.client} network={decision.network}"


def status(view: View, interface: str, marks: str, config: Json, now: float) -> Json:
    """The answer to `status`; `marks` is what marks packets, `config` its part about the configuration.

    `now` is in seconds since the epoch.
    """
    rules = Counter(hold.decision.held.share.rule for hold in view.holds.values() if hold.decision.held is not None)
    live = Counter(decision.network for of in view.decisions.values() for decision in of)
    held = Counter(hold.decision.network for hold in view.holds.values())
    return {
        "daemon": {
            "interface": interface,
            "config": config,
            "pause": pause_status(view.wishes.pause, now),
            "marks": marks,
            "qdisc": "htb" if view.in_force.htb else "original",
            "classes": len(view.in_force.classes),
            "capped_subflows": rules[Rule.CAP],
            "limited_subflows": rules[Rule.LIMIT],
            "paced_subflows": len(view.in_force.paces),
            "unpaced": view.unpaced,
            "errors": list(view.errors),
        },
        "sniffer": {
            "connected": view.table.problem is None,
            "problem": view.table.problem,
            "epoch": view.table.epoch,
            "revision": view.table.revision,
            "connections": len(view.connections),
        },
        "networks": [
            _network_status(configured, network, view, live[network.name], held[network.name])
            for configured, network in zip(view.configured, view.networks, strict=True)
        ],
    }


def pause_status(pause: Pause | None, now: float) -> Json:
    """`{expires_at, seconds_left}`, both null if it lasts until resumed; null if there is no pause."""
    if pause is None:
        return None
    end = pause.expires_at
    return {"expires_at": end, "seconds_left": None if end is None else max(end - now, 0.0)}


def _network_status(configured: AccessNetwork, now: AccessNetwork, view: View, live: int, held: int) -> Json:
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
        "subflows": live,
        "held_subflows": held,
    }


def connections(view: View) -> Json:
    """The answer to `connections`."""
    return {
        "connections": [
            {
                "token": format_token(token),
                "version": connection.version,
                "subflows": [_subflow_status(decision, view) for decision in view.decisions[token]],
            }
            for token, connection in view.connections.items()
        ]
    }


def _subflow_status(decision: Decision, view: View) -> Json:
    hold = view.holds.get(decision.subflow.ends)
    held = None if hold is None else hold.decision.held
    failed = decision.held is not None and held is None
    return {
        **encode_subflow(decision.subflow),
        "network": decision.network,
        "rule": None if held is None else held.share.rule,
        "rate": None if held is None else str(held.rate),
        "rate_bps": None if held is None else held.rate.bits_per_second,
        "class": None if hold is None else format_classid(classid(hold.minor)),
        "reason": "the kernel refused; see status" if failed else decision.reason,
        "join_to_cap_ms": None if hold is None else _milliseconds(hold, 3),
    }


def _milliseconds(hold: Hold, digits: int) -> float | None:
    return None if hold.latency is None else round(hold.latency * 1000, digits)


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)
