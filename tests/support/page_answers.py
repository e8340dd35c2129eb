"""Answers of `mptcp-throttle-web` about an invented company with three access networks. It is a Thursday afternoon."""

from __future__ import annotations

import random
from dataclasses import asdict
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import page_company as company
from page_company import BUS_14, GIGABYTE, LOSS, NETWORKS, NOW, SICK, ZONE, Held, address, at

from mptcp_throttle.units import Rate
from mptcp_throttle_web.overview import overview
from mptcp_throttled.answers import calendar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mptcp_throttle.model import AccessNetwork

IP_FACTOR: Final = 1.04
"""The bytes of IP packets, as a multiple of their payload."""

_KNOTS: Final = (1 / 7, 1 / 31, 1 / 150)
_SWINGS: Final = (0.14, 0.09, 0.05)
_QUIET: Final = 54
_MISSING: Final = "eth0: cannot attach a program: Invalid argument"
NOT_PACED: Final = "its socket is not paced"
NOT_ENFORCED: Final = f"client 10.1.0.14:44183 (bus-14): {NOT_PACED}"

Json = Any


def rate(bps: int | None, rule: str = "configured", reason: str | None = None, until: float | None = None) -> Json:
    """A present rate."""
    text = None if bps is None else str(Rate(bps))
    left = None if until is None else until - NOW
    return {"rate": text, "rate_bps": bps, "configured": text, "rule": rule, "reason": reason} | {
        "expires_at": until,
        "seconds_left": left,
    }


def network(name: str, preference: int, sent: int, **changed: Json) -> Json:
    """An access network without rates, with what is `changed`."""
    free = {"cap": rate(None), "limit": rate(None)}
    answer: Json = {"name": name, "proxy": None, "preference": preference, "per": "client", "sent_bps": sent}
    answer |= {"received_bps": sent // 15, "rates": {"downlink": free, "uplink": free}}
    answer |= {"subflows": 143, "throttled_subflows": 0, "sick": []}
    return answer | {"healthy": {"rtt": None, "loss": None, "rate": None}} | changed


def networks(rows: Sequence[Json], *, is_sick: bool) -> list[Json]:
    """What these clients have in Wi-Fi, by a satellite, whose paths may be sick, and in LTE."""
    return [_network(each, rows, is_sick=is_sick) for each in NETWORKS]


def _network(given: AccessNetwork, rows: Sequence[Json], *, is_sick: bool) -> Json:
    paths = [shown for row in rows for shown in row["networks"] if shown["name"] == given.name]
    subflows = sum(shown["subflows"] for shown in paths)
    sick = [{"ailment": "loss", "text": LOSS, "subflows": subflows}] if is_sick and given.healthy.loss else []
    return network(given.name, given.preference, sum(shown["sent_bps"] for shown in paths), per=given.per) | {
        "rates": company.rates_of(given),
        "received_bps": sum(shown["received_bps"] for shown in paths),
        "subflows": subflows,
        "throttled_subflows": sum(shown["subflows"] for shown in paths if shown["kind"] is not None),
        "healthy": given.healthy.texts,
        "sick": sick,
    }


def event(
    changed: Json | None = None,
    rows: Sequence[Json] | None = None,
    *,
    is_missing: bool = True,
    is_sick: bool = True,
    pause: Json | None = None,
    not_enforced: Sequence[str] = (),
) -> Json:
    """An event of the stream, with these clients; a feature may be missing, and the satellite sick."""
    known = clients() if rows is None else rows
    daemon: Json = {"version": "1.0", "interfaces": ["eth0"], "classifier": "socket", "pause": pause}
    daemon |= {"errors": [], "not_enforced": list(not_enforced), "time_zone": str(ZONE), "observed_at": NOW}
    daemon |= {"config": {"problems": []}, "budget_problem": None}
    fine: Json = {"problem": None, "switched_off": None}
    daemon["features"] = dict.fromkeys(("steering", "pacing", "uplinks"), fine)
    daemon["features"]["discards"] = {**fine, "problem": _MISSING if is_missing else None}
    answers: Json = {
        "status": {"daemon": daemon, "sniffer": {"connected": True, "problem": None}}
        | {"networks": networks(known, is_sick=is_sick)},
        "clients": {"total": len(known), "on_networks": _on_networks(known)},
        "decisions": {"decisions": []},
    }
    return {"problem": None, **overview(lambda name, *_: answers[name], lambda: NOW + 0.4)} | (changed or {})


def _on_networks(rows: Sequence[Json]) -> list[Json]:
    used = [{shown["name"] for shown in row["networks"]} for row in rows]
    return [{"name": each.name, "clients": sum(each.name in names for names in used)} for each in NETWORKS]


def path(name: str, number: int, sent: int, held: Held | str) -> Json:
    """What a client has on a network: what holds it, or why it is free."""
    answer: Json = {"name": name, "client": str(address(name, number)), "subflows": 1, "sent_bps": sent}
    answer |= {"received_bps": sent // 20, "not_enforced": None}
    if isinstance(held, str):
        return answer | {"kind": None, "rate": None, "rate_bps": None, "rule": None, "reason": held, "until": None}
    term = held.term
    assert term.rate is not None
    answer |= {"kind": held.kind, "rate": str(term.rate), "rate_bps": term.rate.bits_per_second}
    return answer | {"rule": str(term.rule), "reason": held.reason, "until": term.next_change}


def client(number: int, name: str | None, waits: int = 0, /, **sent: int | tuple[int, str]) -> Json:
    """A client by what it is sent on networks: capped in LTE, limited by the satellite, or free for a given reason."""
    paths = []
    for key, value in sent.items():
        bps, why = value if isinstance(value, tuple) else (value, None)
        paths.append(path(key, number, bps, why or _present(key, number, next(iter(sent)))))
    total = sum(shown["sent_bps"] for shown in paths)
    throttled = sum(shown["kind"] is not None for shown in paths)
    answer: Json = {"client": paths[0]["client"], "device": name, "sent_bps": total, "received_bps": total // 20}
    answer |= {"subflows": len(paths), "throttled_subflows": throttled, "connections": 1, "held_back_ms": waits}
    return answer | {"networks": paths}


def _present(name: str, number: int, preferred: str) -> Held | str:
    match name:
        case "lte":
            return company.capped(number, preferred)
        case "satellite":
            return company.limited()
    return company.NO_CAP


def clients(*, is_sick: bool = True) -> list[Json]:
    """Some of each kind, and many that are sent little."""
    chance = random.Random(64)  # noqa: S311
    quiet = [
        client(number, f"bus-{number}", wifi=chance.randrange(20_000, 700_000), lte=chance.randrange(0, 40_000))
        for number in range(40, 40 + _QUIET)
    ]
    return [
        client(14, "bus-14", 38, wifi=3_150_000, lte=245_000),
        client(2, "depot-office", wifi=41_200_000),
        client(3, "bus-03", wifi=22_800_000, lte=490_000),
        client(22, "bus-22", wifi=18_400_000, lte=480_000),
        client(5, "kiosk-central", wifi=14_900_000, satellite=2_200_000, lte=120_000),
        client(6, "workshop", wifi=4_400_000, satellite=6_100_000),
        client(31, "bus-31", wifi=6_900_000, lte=2_900_000),
        client(11, "bus-11", wifi=5_200_000, lte=2_600_000),
        client(7, "bus-07", satellite=2_400_000, lte=(1_900_000, SICK))
        if is_sick
        else client(7, "bus-07", satellite=3_800_000, lte=460_000),
        client(26, None, lte=(900_000, company.NO_PREFERRED)),
        *quiet,
    ]


def number_of(row: Json) -> int:
    """What the addresses of a client have in common."""
    return int(ip_address(row["client"])) & 0xFFFF


def paused_clients() -> list[Json]:
    """The same clients, all free."""
    return [
        client(
            number_of(row),
            row["device"],
            **{shown["name"]: (shown["sent_bps"], _reason_in_a_pause(shown)) for shown in row["networks"]},
        )
        for row in clients()
    ]


def _reason_in_a_pause(shown: Json) -> str:
    return str(shown["reason"]) if shown["kind"] is None else company.PAUSED


def many_clients(number: int) -> list[Json]:
    """So many, with rates that differ."""
    return [client(place, f"bus-{place:05}", wifi=20_000 * place, lte=50 * place) for place in range(number)]


def history(key: str, bps: int, seconds: int, now: float, most: Sequence[tuple[float, int]] = ()) -> Json:
    """IP packets that wander about what `bps` of payload are now, never above a rate that holds from a moment on.

    Each `key` wanders by itself.
    """
    step = 1 if seconds <= 600 else 10 if seconds <= 3600 else 60 if seconds <= 86_400 else 3600
    start = list(range(int(now - seconds) // step * step, int(now) // step * step, step))
    swing = [_wander(key, moment, seconds) for moment in start]
    base = IP_FACTOR * bps
    sent = [round(max(0.0, base * (1 + each - swing[-1]))) for each in swing]
    sent = [min([value, *_held_then(most, moment)]) for value, moment in zip(sent, start, strict=True)]
    zeros: list[Json] = [0] * len(start)
    answer: Json = {"kind": "network", "resolution": step, "start": start, "sent": sent, "held": zeros}
    answer |= {"throttled": zeros, "received": [value // 15 for value in sent], "loss": zeros, "rtt_ms": zeros}
    return answer | {"ip_sent_throttled": 0, "held_back_ms": 0}


def _wander(key: str, moment: float, seconds: int) -> float:
    """About 0: smooth noise of several lengths, the same whenever it is asked."""
    total = 0.0
    for length, swing in zip(_KNOTS, _SWINGS, strict=True):
        knot, part = divmod(moment / (length * seconds), 1)
        before, after = (_chance(f"{key} {length} {knot + more}") for more in (0, 1))
        total += swing * (before + (after - before) * part * part * (3 - 2 * part))
    return total


def _chance(seed: str) -> float:
    return random.Random(seed).uniform(-1, 1)  # noqa: S311


def _held_then(most: Sequence[tuple[float, int]], moment: float) -> list[int]:
    return [bps for since, bps in most if since <= moment][-1:]


def client_history(row: Json, name: str | None, seconds: int) -> Json:
    """The history of a client, over all networks with its waiting, or on one."""
    bps = row["sent_bps"] if name is None else {shown["name"]: shown["sent_bps"] for shown in row["networks"]}[name]
    most = [(step["at"], step["rate_bps"]) for step in caps(row)] if name == "lte" else []
    answer = history(f"{row['client']} {name}", bps, seconds, NOW, most)
    if name is None and row["held_back_ms"]:
        answer["held"] = [0] * len(answer["start"])
        answer["held"][round(0.8 * len(answer["start"]))] = answer["held_back_ms"] = row["held_back_ms"]
    return answer


def budget(name: str, client_name: str | None, amount: float, used: float, **changed: Json) -> Json:
    """A budget of a network or of a client; amounts are in gigabytes."""
    answer: Json = {
        "network": name,
        "networks": [name],
        "client": client_name,
        "device": None,
        "direction": "both",
        "every": "month",
    }
    answer |= {"per": "network" if client_name is None else "client", "added": [], "warn_at": 0.8, "forecast": None}
    answer |= {
        "amount": round(amount * GIGABYTE),
        "used": round(used * GIGABYTE),
        "used_without_mptcp": 0,
        "rolling": False,
    }
    answer |= {"left": round(max(0, amount - used) * GIGABYTE), "stages_reached": 0, "allowed": [], "rollover": False}
    answer |= {"period": {"start": at(15, 0), "end": at(15, 0, month=12)}, "starts": 15}
    then = [{"direction": "downlink", "kind": "cap", "rate": "256kbit"}]
    return answer | {"stages": [{"at": 1.0, "rates": then}]} | changed


def budgets() -> Json:
    """A budget that will be spent tomorrow, one that a client has spent, and one that lasts."""
    day = {"every": "day", "period": {"start": at(26, 0), "end": at(27, 0)}}
    allowed = [{"direction": "downlink", "kind": "cap", "rate": "256kbit"}]
    forecast = {"spent_at": at(27, 22), "earliest": at(27, 15), "latest": at(28, 16)}
    lasts = {"spent_at": None, "earliest": None, "latest": None}
    week = {"every": "week", "period": {"start": at(23, 0), "end": at(30, 0)}}
    return {
        "problem": None,
        "omitted": 0,
        "budgets": [
            budget("lte", str(BUS_14), 1, 1.004, **day, device="bus-14", allowed=allowed, stages_reached=1),
            budget("lte", None, 50, 41.2, forecast=forecast, used_without_mptcp=2_900_000_000),
            *(budget("lte", f"10.1.0.{number}", 1, 0.05 * number, **day) for number in range(17, 1, -1)),
            budget("satellite", None, 300, 118, **week, forecast=lasts),
        ],
    }


def week(moment: float | None) -> Json:
    """LTE is slower at work and free at night; the satellite has a limit at the weekend."""
    return calendar.week(NETWORKS, moment or NOW, NOW, ZONE)


def timeline() -> Json:
    """The time line of a day."""
    said = company.happened()
    events = [
        {**asdict(each.event), "at": each.at, "device": each.device, "number": len(said) - place}
        for place, each in enumerate(said)
    ]
    return {"instance": "a", "latest": len(said), "events": events}


def saved() -> Json:
    """The comparison with the control group."""

    def period(name: str, start: float, carried: float, without: float, low: float, high: float, number: int) -> Json:
        group = {"connections": number, "sent": 0, "sent_with_cap": 0}
        figures = {"carried": carried, "without": without, "saved": without - carried, "low": low, "high": high}
        counted = {key: round(value * GIGABYTE) for key, value in figures.items()}
        groups = {"capped": group | {"connections": 19 * number}, "control": group}
        return {"name": name, "start": start, "fraction": 1 - carried / without} | groups | counted

    periods = [
        period("today", at(26, 0), 4.2, 14.6, 8.8, 12.0, 206),
        period("month", at(1, 0), 78.4, 246, 152.6, 182.6, 4118),
    ]
    return {"problem": None, "share": 0.05, "min_connections": 30, "networks": ["lte"], "periods": periods}


def waiting(now: float) -> Json:
    """The waiting of a day in which one client waited."""
    first = int(now) // 3600 * 3600 - 23 * 3600
    worst = [0] * 17 + [6, 0, 0, 0, 0, 3, 38]
    hours = [
        {
            "start": first + 3600 * place,
            "clients": len(clients()),
            "waiting": int(ms > 0),
            "held_back_ms": ms,
            "p99_ms": 0,
        }
        | {"worst_ms": ms}
        for place, ms in enumerate(worst)
    ]
    waited: Json = {"client": str(address("wifi", 14)), "device": "bus-14", "held_back_ms": 38}
    capped = path("lte", 14, 0, company.capped(14))
    waited |= {key: capped[key] for key in ("rate_bps", "rule", "reason", "until")} | {"network": "lte"}
    return {"hours": hours, "clients": [waited]}


def caps(row: Json) -> list[Json]:
    """What a client of LTE was capped to in the last hours."""
    *_, shown = row["networks"]
    if shown["kind"] != "cap":
        return []
    kept = ("rule", "rate_bps", "reason")
    began = {"schedule": at(26, 8), "budget": at(26, 13, 47), "by hand": at(26, 14, 5)}
    steps = company.cap_steps(address("lte", number_of(row)))
    held = [
        {"at": began.get(step["rule"], NOW - 900), "kind": "cap"} | {key: step[key] for key in kept} for step in steps
    ]
    return held[1:]


def fleet(*, is_late: bool = True) -> Json:
    """A fleet of three proxies, of which one may be silent."""
    load = {"version": "1.0.0", "received_bps": 5_000_000, "connections": 120, "throttled": 31}
    heard = {**load, "state": "reachable", "state_age": 0.4, "age": 1.2}
    proxies = [
        {**heard, "name": "proxy-1", "sent_bps": 60_000_000},
        {**heard, "name": "proxy-2", "sent_bps": 20_000_000},
        {**heard, "name": "proxy-3", "sent_bps": 9_000_000} | ({"state": "late", "age": 35.0} if is_late else {}),
    ]
    exchange = {"name": "proxy-1", "server": "valkey.example.net:6379", "problem": None, "age": 0.4}
    return {**exchange, "proxies": proxies, "list_problem": None, "refused": 0, "refusal": None}


def of_several_proxies(client: Json) -> Json:
    """The page of a client that has used its budgets at two proxies, where 34 % of its rates are this one's."""
    for network in client["explain"]["networks"]:
        network["downlink"] = {**network["downlink"], "fleet_part": 0.34}
        for budget in network["budgets"]:
            elsewhere = budget["used"] // 4
            parts = {"proxy-1": budget["used"] - elsewhere, "proxy-2": elsewhere}
            budget["used_elsewhere"] = elsewhere
            budget["used_by_proxy"] = [{"name": name, "used": used} for name, used in parts.items()]
    return client


def one_client(row: Json) -> Json:
    """The page of a client."""
    none: Json = {"subflows": [], "cap": [rate(None)], "limit": []}
    number = number_of(row)
    explained = [
        {"name": shown["name"], "prefixes": [f"{shown['client']}/32"], "downlink": none, "uplink": none, "budgets": []}
        for shown in row["networks"]
    ]
    if row["networks"][-1]["name"] == "lte":
        uses = [used for used in budgets()["budgets"] if used["client"] == str(address("lte", number))]
        steps = company.cap_steps(address("lte", number))
        explained[-1] |= {"downlink": {**none, "cap": steps}, "budgets": uses}
    free = {"kind": None, "rate": None, "rate_bps": None, "rule": None, "until": None, "not_enforced": None}
    subflows = [
        {"network": shown["name"], "client": shown["client"], "client_port": 44_182 + place, "proxy": "192.0.2.1"}
        | {"proxy_port": 8080, "sent_bps": shown["sent_bps"], "received_bps": shown["received_bps"], "rtt_ms": 11.4}
        | {"state": shown["kind"] or "free", "stalled": False, "opened_at": at(26, 14, 2), "uplink": free}
        | {"downlink": shown}
        for place, shown in enumerate(row["networks"])
    ]
    mine = [shown for shown in timeline()["events"] if shown["client"] == str(address("lte", number))]
    explain = {"client": row["client"], "device": row["device"], "paused": False, "networks": explained}
    answer: Json = {"client": row, "name": row["client"], "explain": explain, "subflows": subflows, "more_subflows": 0}
    answer |= {"decisions": [], "decisions_since": at(26, 8), "events": mine}
    return answer | {"caps": [{"network": "lte", "steps": caps(row)}]}
