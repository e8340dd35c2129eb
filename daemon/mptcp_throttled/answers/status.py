"""The JSON answers to `status` and `connections`, from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import tzinfo
from itertools import islice
from typing import Final

from mptcp_throttle.command_line import version
from mptcp_throttle.devices import named
from mptcp_throttle.model import AccessNetwork, Address, Ailment, Connection, Direction, RateKind, Token, format_token
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import encode_subflow
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.accounts import NetworkAccounts
from mptcp_throttled.accounting.control_group import MIN_CONNECTIONS, ComparedGroups, GroupSums, Interval
from mptcp_throttled.accounting.history_rows import Account, HistoryRow
from mptcp_throttled.answers.subflow_counts import SubflowCounts
from mptcp_throttled.answers.view import View
from mptcp_throttled.vocabulary.class_ids import classid, format_classid
from mptcp_throttled.vocabulary.clock import Now, encode_end
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.fleet import WHOLE, FleetState, LeaseState
from mptcp_throttled.vocabulary.operator import OperatorState, Pause, is_over
from mptcp_throttled.vocabulary.terms import UNLIMITED, RuleName, Term, Terms

_MAX_LINES: Final = 20
# A client that changes its network, with association and DHCP, has opened a subflow by then.
_ONE_PATH_SECONDS: Final = 30.0


def status(view: View, counts: SubflowCounts, interfaces: tuple[str, ...], config: Json, policy: Json = None) -> Json:
    """The answer to `status`; `config` and `policy` are its parts about these, `counts` are those of the snapshot."""
    snapshot, kinds = view.snapshot, counts.kinds
    return {
        "daemon": {
            "version": version(),
            "interfaces": list(interfaces),
            "config": config,
            "policy": policy,
            "time_zone": zone_name(snapshot.facts.wall_clock.zone),
            "observed_at": None if view.enforcement.latest is None else view.now.in_epoch(view.enforcement.latest.at),
            "pause": pause_status(snapshot.operator.pause, view.now),
            "classifier": snapshot.classifier,
            "qdisc": "htb" if snapshot.has_htb else "original",
            "classes": len(snapshot.applied.classes) if snapshot.has_htb else 0,
            "capped_subflows": kinds[RateKind.CAP],
            "limited_subflows": kinds[RateKind.LIMIT],
            "capped_uplinks": kinds[RateKind.UPLINK_CAP],
            "limited_uplinks": kinds[RateKind.UPLINK_LIMIT],
            "held_subflows": snapshot.held,
            "paced_subflows": max(0, len(snapshot.applied.paces) - snapshot.held),
            "features": {
                name: {
                    "problem": state.problem,
                    "switched_off": state.switched_off,
                    "counters": dict(state.counters),
                }
                for name, state in snapshot.features.items()
            },
            "errors": list(snapshot.errors),
            "not_enforced": _not_enforced(view),
            "budget_problem": view.budget_problem,
            "fleet": None if view.fleet is None else _fleet(view.fleet, view.now),
            "leases": None if view.leases is None else _leases(view.leases),
            "control_group": None if view.groups is None else _control_group(view.groups),
        },
        "sniffer": {
            "connected": snapshot.sniffer.problem is None,
            "problem": snapshot.sniffer.problem,
            "epoch": snapshot.sniffer.epoch,
            "revision": snapshot.sniffer.revision,
            "connections": len(snapshot.connections),
        },
        "networks": network_statuses(view, counts),
    }


def zone_name(zone: tzinfo | None) -> str | None:
    """The name of a configured time zone; None: it is that of this host."""
    return None if zone is None else str(zone)


def network_statuses(view: View, counts: SubflowCounts) -> list[Json]:
    """The access networks in the answer to `status`."""
    sent, received = view.enforcement.network_rates, view.enforcement.received_network_rates
    terms = view.snapshot.terms
    own_terms: dict[str, dict[Address, Terms]] = {}
    for (name, client), own in terms.by_client.items():
        own_terms.setdefault(name, {})[client] = own
    return [
        {
            "name": network.name,
            "proxy": network.proxy,
            "subnets": [str(subnet) for subnet in network.subnets[:_MAX_LINES]],
            "subnet_count": len(network.subnets),
            "preference": network.preference,
            "per": network.per,
            "burst_bytes": network.burst or None,
            "client_prefix": asdict(network.client_prefix),
            "rates": describe_rates(network.rates, terms.by_network[network.name], view.now),
            "device_count": len(network.devices.clients),
            **_client_rates(network, own_terms.get(network.name, {}), view),
            "subflows": counts.live(network.name),
            "throttled_subflows": counts.throttled(network.name),
            "healthy": network.healthy.texts,
            "sick": [
                {"ailment": ailment, "text": network.healthy.broken(ailment), "subflows": number}
                for ailment in Ailment
                if (number := counts.sick[network.name, ailment])
            ],
            "sent_bps": round(8 * sent.get(network.name, 0.0)),
            "received_bps": round(8 * received.get(network.name, 0.0)),
            "totals": asdict(view.accounts.get(network.name, NetworkAccounts()).traffic),
        }
        for network in view.snapshot.networks
    ]


def _client_rates(network: AccessNetwork, own_terms: Mapping[Address, Terms], view: View) -> dict[str, Json]:
    """The clients with rates of their own: all that have them by hand, and the first others."""
    by_hand = {client for client, own in own_terms.items() if any(t.rule is RuleName.BY_HAND for t in own.values())}
    shown = [*by_hand, *islice((client for client in own_terms if client not in by_hand), _MAX_LINES)]
    of_network = view.snapshot.terms.by_network[network.name]
    return {
        "client_rates": [
            {
                "client": str(client),
                "device": view.snapshot.device(network.name, client),
                "rates": describe_rates(network.rates, {**of_network, **own_terms[client]}, view.now),
            }
            for client in sorted(shown, key=lambda each: (each.version, each))
        ],
        "more_client_rates": len(own_terms) - len(shown),
    }


def overrides(state: OperatorState, network: AccessNetwork, client: Address | None, now: float) -> list[Json]:
    """What is set by hand for a network, or for one of its clients, at `now` in monotonic seconds."""
    first = None if client is None else network.client(client)
    return [
        {
            "direction": override.kind.direction,
            "kind": override.kind.word,
            "rate": _text(override.rate),
            "seconds": None if override.end is None else override.end - now,
        }
        for override in state.overrides
        if override.network == network.name
        and first == (None if override.client is None else network.client(override.client))
        and not is_over(override, now)
    ]


def pause_status(pause: Pause | None, now: Now) -> Json:
    """`{expires_at, seconds_left}`, both null if it lasts until resumed; null if there is no pause."""
    return None if pause is None else encode_end(pause.end, now)


def _fleet(fleet: FleetState, now: Now) -> Json:
    """The exchange of totals with other proxies, in the answer to `status`; ages are in seconds."""
    exchanged_at = fleet.exchanged_at
    return {
        "name": fleet.name,
        "server": fleet.server,
        "problem": fleet.problem,
        "age": None if exchanged_at is None else round(max(now.monotonic - exchanged_at, 0.0), 3),
        "proxies": proxies(fleet, now),
        "list_problem": fleet.list_problem,
        "refused": fleet.refused,
        "refusal": fleet.refusal,
    }


def proxies(fleet: FleetState, now: Now) -> list[Json]:
    """All proxies of the fleet by name, with what each has reported of itself."""
    return [
        {
            "name": name,
            "state": proxy.presence,
            "state_age": round(max(now.monotonic - proxy.looked, 0.0), 3),
            "age": round(max(now.monotonic - proxy.heard, 0.0), 3),
            "version": proxy.version,
            **proxy.load._asdict(),
        }
        for name, proxy in sorted(fleet.proxies.items())
    ]


def _leases(leases: LeaseState) -> Json:
    """What this proxy has of shared rates, in the answer to `status`; parts are fractions of 1."""
    rates = leases.rates
    return {
        "problem": leases.problem,
        "proxies": rates.size,
        "out_of_reach": rates.is_away,
        "floor": round(rates.base / WHOLE, 6),
        "part": round(rates.each / WHOLE, 6),
        "clients": leases.leases,
    }


def _control_group(groups: ComparedGroups) -> Json:
    """The comparison of connections with caps and without, in the answer to `status`."""
    differences = groups.differences
    return {
        "share": groups.share,
        "min_connections": MIN_CONNECTIONS,
        "capped": _group(groups.capped),
        "control": _group(groups.control),
        "differences": {
            "bytes_with_cap": _interval(differences.sent_with_cap),
            "share_with_cap": _interval(differences.share_with_cap),
            "rate_bps": _interval(differences.rate, 8),
        },
    }


def _group(sums: GroupSums) -> Json:
    return {
        "connections": sums.sent.number,
        "sent": sums.sent.total,
        "sent_with_cap": sums.sent_with_cap.total,
        "bytes_with_cap": sums.sent_with_cap.mean,
        "share_with_cap": sums.share_with_cap,
        "downloads": sums.rates.number,
        "rate_bps": _bits(sums.rates.mean),
    }


def _interval(interval: Interval | None, factor: int = 1) -> Json:
    return None if interval is None else {"low": factor * interval.low, "high": factor * interval.high}


def history(account: Account, resolution: int, periods: Iterable[HistoryRow]) -> Json:
    """The answer to `history`."""
    return {
        "kind": account.kind,
        "name": account.name,
        "resolution": resolution,
        "periods": [{"start": period.start, **asdict(period.traffic)} for period in periods],
    }


def _not_enforced(view: View) -> list[str]:
    """A line per subflow, and one for all beyond the first `_MAX_LINES`."""
    differing = view.enforcement.not_enforced
    lines = [
        f"client {named(str(ends.client), view.snapshot.device_of(ends))}: {why}"
        for ends, why in islice(differing.items(), _MAX_LINES)
    ]
    omitted = len(differing) - len(lines)
    return [*lines, f"and {omitted} more subflows"] if omitted else lines


def connections(view: View) -> Json:
    """The answer to `connections`, the oldest connection first; `sniffer_problem` is why none is known."""
    snapshot = view.snapshot
    oldest_first = sorted(snapshot.connections.items(), key=_age_order)
    return {
        "sniffer_problem": snapshot.sniffer.problem,
        "connections": [
            {
                "token": format_token(token),
                "version": connection.version,
                "one_path_since": _one_path_since(token, view),
                "subflows": [describe_subflow(decision, view) for decision in snapshot.decisions[token]],
            }
            for token, connection in oldest_first
        ],
    }


def _one_path_since(token: Token, view: View) -> float | None:
    """Since when a connection has one path only, in seconds since the epoch; None: it has not.

    None, too, for the first `_ONE_PATH_SECONDS`, in which the client may be changing its network.
    """
    since = view.snapshot.one_path_since.get(token)
    return None if since is None or view.now.monotonic - since < _ONE_PATH_SECONDS else view.now.in_epoch(since)


def describe_subflow(decision: Decision, view: View) -> Json:
    """A subflow in the answer to `connections`: with what it carries, in bits of payload per second, with its RTT, null
    if that is not observed yet, and with why its rate is not enforced."""
    snapshot, enforcement, ends = view.snapshot, view.enforcement, decision.subflow.ends
    throttled = snapshot.throttled.get(ends)
    latency = None if throttled is None else throttled.latency
    downlink, uplink = (direction_status(direction, decision, view) for direction in Direction)
    socket = None if enforcement.latest is None else enforcement.latest.sockets.get(ends)
    return {
        **encode_subflow(decision.subflow),
        "device": snapshot.device(decision.network, ends.client.address),
        "opened_at": view.now.in_epoch(decision.subflow.opened_at),
        "network": decision.network,
        "downlink": downlink,
        "uplink": {**uplink, "policed": ends in snapshot.uplinks and ends in snapshot.policed},
        "class": None if throttled is None else format_classid(classid(throttled.minor)),
        "join_to_cap_ms": None if latency is None else round(latency * 1000, 3),
        "sent_bps": _bits(enforcement.rates.get(ends)),
        "received_bps": _bits(enforcement.received_rates.get(ends)),
        "rtt_ms": None if socket is None or socket.rtt is None else round(socket.rtt * 1000, 3),
        "sent_bps_10s": _bits(enforcement.long_rates.get(ends)),
        "not_enforced": enforcement.not_enforced.get(ends),
    }


def _bits(rate: float | None) -> int | None:
    return None if rate is None else round(8 * rate)


def _age_order(item: tuple[Token, Connection]) -> tuple[float, Token]:
    token, connection = item
    return min((subflow.opened_at for subflow in connection.subflows), default=0.0), token


def describe_rates(configured: Mapping[RateKind, Rate], terms: Terms, now: Now) -> Json:
    """The present rates of a network by direction and kind, and why and until when they are not the configured ones."""
    rates: dict[str, Json] = {direction: {} for direction in Direction}
    for kind in RateKind:
        term = terms.get(kind, UNLIMITED)
        rates[kind.direction][kind.word] = {
            **describe_term(term, now),
            "configured": _text(configured.get(kind)),
        }
    return rates


def describe_term(term: Term, now: Now) -> dict[str, Json]:
    """A present rate: what has decided it, why and until when."""
    return {**_rate(term.rate), "rule": term.rule, "reason": term.reason, **encode_end(term.next_change, now)}


def direction_status(direction: Direction, decision: Decision, view: View) -> dict[str, Json]:
    """The rate of a subflow in a direction, with its rule, reason and end, and why it is not enforced."""
    snapshot, ends = view.snapshot, decision.subflow.ends
    throttle = snapshot.throttle(direction, ends)
    term = None if throttle is None else snapshot.terms.term(throttle.share)
    until = None if term is None or term.next_change is None else view.now.in_epoch(term.next_change)
    return {
        "kind": None if throttle is None else throttle.share.kind.word,
        **_rate(None if throttle is None else throttle.rate),
        "rule": None if term is None else term.rule,
        "until": until,
        "reason": snapshot.reason(direction, decision),
        "not_enforced": view.enforcement.why_not(direction, ends),
    }


def _rate(rate: Rate | None) -> dict[str, Json]:
    return {"rate": _text(rate), "rate_bps": None if rate is None else rate.bits_per_second}


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)
