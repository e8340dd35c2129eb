"""The JSON answers to `status` and `connections`, from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Final

from mptcp_throttle.model import AccessNetwork, Connection, FourTuple, RateKind, format_token
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import encode_subflow
from mptcp_throttle.version import version
from mptcp_throttled.accounting.accounts import NetworkAccounts
from mptcp_throttled.accounting.history import Account, Period
from mptcp_throttled.answers.subflow_counts import SubflowCounts
from mptcp_throttled.answers.view import Observed
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.policy.rules.override import encode_override
from mptcp_throttled.reporting.recent_decisions import RecentDecision
from mptcp_throttled.vocabulary.class_ids import classid, format_classid
from mptcp_throttled.vocabulary.clock import Now, encode_end
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.operator import Pause
from mptcp_throttled.vocabulary.snapshot import Snapshot, why_free, why_uplink_free, why_uplink_throttled

_MAX_LINES: Final = 20


def status(
    snapshot: Snapshot, observed: Observed, counts: SubflowCounts, interfaces: tuple[str, ...], config: Json, now: Now
) -> Json:
    """The answer to `status`; `config` is the part about the configuration, `counts` are those of the snapshot."""
    kinds = counts.kinds
    return {
        "daemon": {
            "version": version(),
            "interfaces": list(interfaces),
            "config": config,
            "pause": pause_status(snapshot.operator.pause, now),
            "classifier": snapshot.classifier,
            "qdisc": "htb" if snapshot.applied.htb else "original",
            "classes": len(snapshot.applied.classes),
            "capped_subflows": kinds[RateKind.CAP],
            "limited_subflows": kinds[RateKind.LIMIT],
            "capped_uplinks": kinds[RateKind.UPLINK_CAP],
            "limited_uplinks": kinds[RateKind.UPLINK_LIMIT],
            "paced_subflows": len(snapshot.applied.paces),
            "features": {name: asdict(state) for name, state in snapshot.features.items()},
            "errors": list(snapshot.errors),
            "not_enforced": _not_enforced(observed.enforcement),
        },
        "sniffer": {
            "connected": snapshot.sniffer.problem is None,
            "problem": snapshot.sniffer.problem,
            "epoch": snapshot.sniffer.epoch,
            "revision": snapshot.sniffer.revision,
            "connections": len(snapshot.connections),
        },
        "networks": network_statuses(snapshot, observed, counts, now),
    }


def network_statuses(snapshot: Snapshot, observed: Observed, counts: SubflowCounts, now: Now) -> list[Json]:
    """The access networks in the answer to `status`."""
    live, throttled = counts.live, counts.throttled
    sent, received = observed.enforcement.network_rates, observed.enforcement.received_network_rates
    return [
        {
            **_network_status(configured, network, snapshot, live[network.name], throttled[network.name], now),
            "sent_bps": round(8 * sent.get(network.name, 0.0)),
            "received_bps": round(8 * received.get(network.name, 0.0)),
            "totals": asdict(observed.accounts.get(network.name, NetworkAccounts()).traffic),
        }
        for configured, network in zip(snapshot.configured, snapshot.networks, strict=True)
    ]


def pause_status(pause: Pause | None, now: Now) -> Json:
    """`{expires_at, seconds_left}`, both null if it lasts until resumed; null if there is no pause."""
    return None if pause is None else encode_end(pause.end, now)


def decisions(recent: Iterable[RecentDecision]) -> Json:
    """The answer to `decisions`."""
    return {"decisions": [one._asdict() for one in recent]}


def history(account: Account, resolution: int, periods: Iterable[Period]) -> Json:
    """The answer to `history`."""
    return {
        "kind": account.kind,
        "name": account.name,
        "resolution": resolution,
        "periods": [{"start": period.start, **asdict(period.traffic)} for period in periods],
    }


def _not_enforced(enforcement: Enforcement) -> list[str]:
    """A line per subflow, of thousands the first only."""
    differing = enforcement.not_enforced
    lines = [f"client {ends.client}: {why}" for ends, why in islice(differing.items(), _MAX_LINES)]
    more = len(differing) - len(lines)
    return [*lines, f"and {more} more subflows"] if more else lines


def connections(snapshot: Snapshot, enforcement: Enforcement, now: Now) -> Json:
    """The answer to `connections`, the oldest connection first; `sniffer_problem` is why none is known."""
    differing = enforcement.not_enforced
    oldest_first = sorted(snapshot.connections.items(), key=lambda item: (_opened_at(item[1]), item[0]))
    return {
        "sniffer_problem": snapshot.sniffer.problem,
        "connections": [
            {
                "token": format_token(token),
                "version": connection.version,
                "subflows": [
                    describe_subflow(decision, snapshot, enforcement, differing, now)
                    for decision in snapshot.decisions[token]
                ],
            }
            for token, connection in oldest_first
        ],
    }


def describe_subflow(
    decision: Decision, snapshot: Snapshot, enforcement: Enforcement, differing: Mapping[FourTuple, str], now: Now
) -> Json:
    """A subflow in the answer to `connections`; `differing` is why rates are not enforced."""
    return {**_subflow_status(decision, snapshot, now), **_flow(decision.subflow.ends, enforcement, differing)}


def _flow(ends: FourTuple, enforcement: Enforcement, differing: Mapping[FourTuple, str]) -> Json:
    """What the subflow carries, in bits of payload per second, and its RTT, null if not observed yet; why its rate is
    not enforced."""
    rate, long_rate = enforcement.rates.get(ends), enforcement.long_rates.get(ends)
    received = enforcement.received_rates.get(ends)
    socket = None if enforcement.latest is None else enforcement.latest.sockets.get(ends)
    rtt = None if socket is None or socket.rtt is None else round(socket.rtt * 1000, 3)
    return {
        "sent_bps": None if rate is None else round(8 * rate),
        "received_bps": None if received is None else round(8 * received),
        "rtt_ms": rtt,
        "sent_bps_10s": None if long_rate is None else round(8 * long_rate),
        "not_enforced": differing.get(ends),
    }


def _opened_at(connection: Connection) -> float:
    return min((subflow.opened_at for subflow in connection.subflows), default=0.0)


def _network_status(
    configured: AccessNetwork, present: AccessNetwork, snapshot: Snapshot, live: int, throttled: int, now: Now
) -> Json:
    return {
        "name": present.name,
        "subnets": [str(subnet) for subnet in present.subnets[:_MAX_LINES]],
        "subnet_count": len(present.subnets),
        "preference": present.preference,
        "per": present.per,
        "client_prefix": asdict(present.client_prefix),
        **{kind: _text(present.rates.get(kind)) for kind in RateKind},
        **{f"configured_{kind}": _text(configured.rates.get(kind)) for kind in RateKind},
        "overrides": [encode_override(o, now) for o in snapshot.operator.overrides if o.network == present.name],
        "subflows": live,
        "held_subflows": throttled,
    }


def _subflow_status(decision: Decision, snapshot: Snapshot, now: Now) -> Json:
    throttled = snapshot.throttled.get(decision.subflow.ends)
    throttle = snapshot.throttle_of(decision.subflow.ends)
    latency = None if throttled is None else throttled.latency
    uplink = snapshot.uplinks.get(decision.subflow.ends)
    is_policed = uplink is not None and decision.subflow.ends in snapshot.policed
    return {
        **encode_subflow(decision.subflow),
        "opened_at": now.in_epoch(decision.subflow.opened_at),
        "network": decision.network,
        "rule": None if throttle is None else throttle.share.kind,
        "rate": None if throttle is None else str(throttle.rate),
        "rate_bps": None if throttle is None else throttle.rate.bits_per_second,
        "class": None if throttled is None else format_classid(classid(throttled.minor)),
        "reason": why_free(decision) if throttle is None else decision.reason,
        "uplink_rule": None if uplink is None else uplink.share.kind,
        "uplink_rate": None if uplink is None else str(uplink.rate),
        "uplink_rate_bps": None if uplink is None else uplink.rate.bits_per_second,
        "uplink_policed": is_policed,
        "uplink_reason": (
            why_uplink_free(decision) if uplink is None else why_uplink_throttled(decision, is_policed=is_policed)
        ),
        "join_to_cap_ms": None if latency is None else round(latency * 1000, 3),
    }


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)
