"""What the daemon tells operators: log lines, one per decision, and the answers to the CLI."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mptcp_throttle.model import AccessNetwork, Connection, FourTuple, Token, format_token
from mptcp_throttle.wire import encode_subflow
from mptcp_throttled.kernel.htb import classid
from mptcp_throttled.kernel.netlink import format_classid
from mptcp_throttled.overrides import encode_override
from mptcp_throttled.plan import UNTOUCHED, KernelPlan
from mptcp_throttled.policy import Rule, Treatment
from mptcp_throttled.pull import TableUpdate
from mptcp_throttled.wishes import Pause, Wishes

if TYPE_CHECKING:
    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-throttled")


@dataclass(frozen=True, slots=True)
class Hold:
    """A subflow that is held in the kernel, by the class `minor`.

    `latency` is the seconds from the kernel's time stamp of the SYN that made it so (the latest of its connection) to
    the moment at which the kernel had its mark; None if it had that before us.
    """

    treatment: Treatment
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
    wishes: Wishes = field(default_factory=Wishes)
    connections: Mapping[Token, Connection] = field(default_factory=dict)
    treatments: Mapping[Token, tuple[Treatment, ...]] = field(default_factory=dict)
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
            treatments=dict(self.treatments),
            plan=_copy(self.plan),
            in_force=_copy(self.in_force),
            holds=dict(self.holds),
        )


def _copy(plan: KernelPlan) -> KernelPlan:
    return replace(plan, classes=dict(plan.classes), marks=dict(plan.marks), paces=dict(plan.paces))


def take_holds(
    holds: dict[FourTuple, Hold],
    concerned: Mapping[FourTuple, Treatment | None],
    in_force: KernelPlan,
    treatments: Mapping[Token, tuple[Treatment, ...]],
    found: Mapping[FourTuple, int],
    now: float,
) -> None:
    """Bring `holds` up to date for the subflows `concerned`, and log a line for every one that is treated otherwise.

    `found` are the marks that were in the kernel before us.
    """
    for ends, treatment in concerned.items():
        old, minor = holds.get(ends), in_force.marks.get(ends)
        if treatment is None or treatment.held is None or minor is None:
            if old is not None:
                del holds[ends]
                _log.info(
                    "free %s reason=%r",
                    _identify(treatment or old.treatment),
                    "subflow ended" if treatment is None else treatment.reason,
                )
            continue
        if old is None and found.get(ends) == minor:
            holds[ends] = Hold(treatment, minor, None)
            continue
        if old is None:
            since = max(t.subflow.opened_at for t in treatments[treatment.token])
            holds[ends] = Hold(treatment, minor, now - since)
        elif (old.treatment, old.minor) != (treatment, minor):
            holds[ends] = Hold(treatment, minor, old.latency)
        if old is None or old.treatment.held != treatment.held:
            _log.info(
                "%s %s rate=%s class=%s reason=%r after_ms=%s",
                treatment.held.share.rule,
                _identify(treatment),
                treatment.held.rate,
                format_classid(classid(minor)),
                treatment.reason,
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


def _identify(treatment: Treatment) -> str:
    return f"token={format_token(treatment.token)} client={treatment.subflow.ends.client} network={treatment.network}"


def status(view: View, interface: str, marks: str, config: Json, now: float) -> Json:
    """The answer to `status`; `marks` is what marks packets, `config` its part about the configuration.

    `now` is in seconds since the epoch.
    """
    rules = Counter(hold.treatment.held.share.rule for hold in view.holds.values() if hold.treatment.held is not None)
    live = Counter(treatment.network for of in view.treatments.values() for treatment in of)
    held = Counter(hold.treatment.network for hold in view.holds.values())
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
                "subflows": [_subflow_status(treatment, view) for treatment in view.treatments[token]],
            }
            for token, connection in view.connections.items()
        ]
    }


def _subflow_status(treatment: Treatment, view: View) -> Json:
    hold = view.holds.get(treatment.subflow.ends)
    held = None if hold is None else hold.treatment.held
    failed = treatment.held is not None and held is None
    return {
        **encode_subflow(treatment.subflow),
        "network": treatment.network,
        "rule": None if held is None else held.share.rule,
        "rate": None if held is None else str(held.rate),
        "rate_bps": None if held is None else held.rate.bits_per_second,
        "class": None if hold is None else format_classid(classid(hold.minor)),
        "reason": "the kernel refused; see status" if failed else treatment.reason,
        "join_to_cap_ms": None if hold is None else _milliseconds(hold, 3),
    }


def _milliseconds(hold: Hold, digits: int) -> float | None:
    return None if hold.latency is None else round(hold.latency * 1000, digits)


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)
