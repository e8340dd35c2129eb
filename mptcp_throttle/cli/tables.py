"""The answers of the services as tables."""

from __future__ import annotations

import csv
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mptcp_throttle.cli import fleet_tables
from mptcp_throttle.cli.budget_tables import explained_budget
from mptcp_throttle.cli.console import output_console
from mptcp_throttle.cli.times import local_time
from mptcp_throttle.devices import named
from mptcp_throttle.features import FEATURE_TEXTS
from mptcp_throttle.findings import not_captured
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import format_share, format_volume

_REFUSED: Final = ("unknown_token", "wrong_hmac", "wrong_key", "wrong_direction", "malformed")
_UPLINK: Final = "uplink"
_DIRECTIONS: Final = {"downlink": "downloads", _UPLINK: "uploads"}
_KINDS: Final = ("cap", "limit")
_RATES: Final = tuple((direction, kind) for direction in _DIRECTIONS for kind in _KINDS)
_SUMS: Final = ("ip_sent", "ip_sent_throttled", "ip_received", "held_back_ms")
_FIGURES: Final = (
    ("on networks with a cap, each", "bytes_with_cap", 1e-6, "MB"),
    ("on networks with a cap, of all bytes", "share_with_cap", 100, "%"),
    ("rate of downloads from 1 MB on", "rate_bps", 1e-6, "Mb/s"),
)
"""What the control group is compared by: name, key, and unit."""

_HOUR_SECONDS: Final = 3600
_DAY_SECONDS: Final = 86400
_LEVELS: Final = {"ok": "green", "note": "yellow", "unknown": "yellow", "problem": "red"}


def show_status(data: Json) -> None:
    """The answer to `status`."""
    console = output_console()
    daemon, sniffer = data["daemon"], data["sniffer"]
    console.print(
        f"{_interfaces(daemon['interfaces'])}: {daemon['qdisc']} qdisc, {daemon['classes']} classes,"
        f" assigned by {daemon['classifier']},"
        f" {daemon['capped_subflows']} subflows capped, {daemon['limited_subflows']} limited"
    )
    if daemon["capped_uplinks"] or daemon["limited_uplinks"]:
        console.print(f"uplinks: {daemon['capped_uplinks']} capped, {daemon['limited_uplinks']} limited")
    console.print(f"{daemon['held_subflows']} subflows held back, {daemon['paced_subflows']} paced")
    for feature, texts in FEATURE_TEXTS.items():
        problem = daemon["features"][feature]["problem"]
        if problem is not None:
            console.print(f"{feature}: {texts.drawback}: {problem}", markup=False)
    console.print(
        f"sniffer: {sniffer['connections']} connections, revision {sniffer['revision']}"
        if sniffer["connected"]
        else f"sniffer: not connected: {sniffer['problem']}"
    )
    if data["capture"] is not None:
        console.print(_capture(data["capture"]))
        unlisted = data["capture"]["kernel_view"].get("unlisted")  # missing while an earlier version runs
        if unlisted is not None:
            console.print(f"error: {unlisted}", style="red", markup=False)
    if daemon["pause"] is not None:
        console.print(_pause(daemon["pause"]))
    for problem in daemon["config"]["problems"]:
        console.print(f"reload refused: {problem}", style="red", markup=False)
    if daemon.get("policy") is not None:  # missing while an earlier version runs
        fleet_tables.show_policy(console, daemon["policy"], daemon["time_zone"])
    for line in daemon["not_enforced"]:
        console.print(f"not enforced: {line}", style="red", markup=False)
    for error in daemon["errors"]:
        console.print(f"error: {error}", style="red", markup=False)
    budget_problem = daemon.get("budget_problem")  # missing while an earlier version runs
    if budget_problem is not None:
        console.print(f"budgets: {budget_problem}", style="red", markup=False)
    fleet = daemon.get("fleet")  # as the budget problem
    if fleet is not None:
        console.print(_fleet(fleet), style="red" if fleet["problem"] else None, markup=False)
        if fleet.get("list_problem") is not None:  # missing while an earlier version runs
            console.print(f"fleet: the list of proxies {fleet['list_problem']}", style="red", markup=False)
        fleet_tables.show_proxies(console, fleet["proxies"])
    leases = daemon.get("leases")  # as the budget problem
    if leases is not None and (leases["clients"] or leases["proxies"] > 1 or leases["problem"]):
        console.print(_leases(leases), style="red" if leases["problem"] else None, markup=False)
    if daemon["control_group"] is not None:
        _show_control_group(console, daemon["control_group"])
    _show_networks(console, data["networks"])


def _fleet(fleet: Json) -> str:
    """What this proxy shares with others, and how old what it knows of them is."""
    age = "never" if fleet["age"] is None else f"{fleet['age']:.0f} s ago"
    if fleet["problem"] is not None:
        return f"fleet: {fleet['problem']}; the totals of others are known as of {age}"
    refused = f"; {fleet['refused']} values refused, such as: {fleet['refusal']}" if fleet["refused"] else ""
    names = ", ".join(proxy["name"] for proxy in fleet["proxies"])
    return f"fleet: {fleet['name']} shares totals by {fleet['server']}, {age}, with: {names or 'none yet'}{refused}"


def _leases(leases: Json) -> str:
    """What this proxy has of rates that several share."""
    held = f"{leases['clients']} clients have leases, all others {100 * (leases['floor'] + leases['part']):.3g} %"
    text = f"shared rates: divided among {leases['proxies']} proxies; {held}"
    return text if leases["problem"] is None else f"{text}; {leases['problem']}"


def _show_control_group(console: Console, compared: Json) -> None:
    """What caps change, by the connections that have ended: mean of each group, and the difference."""
    groups, differences = (compared["capped"], compared["control"]), compared["differences"]
    table = Table(
        f"control group ({format_share(compared['share'])})",
        "with caps",
        "without",
        "difference (95 % confidence)",
        box=None,
    )
    table.add_row("ended connections", *(str(group["connections"]) for group in groups))
    for name, key, scale, unit in _FIGURES:
        means = ("-" if group[key] is None else f"{scale * group[key]:.2f} {unit}" for group in groups)
        difference = differences[key]
        table.add_row(
            name,
            *means,
            f"not enough connections yet: {compared['min_connections']} in each group"
            if difference is None
            else f"{scale * difference['low']:+.2f} to {scale * difference['high']:+.2f} {unit}",
        )
    console.print(table)


def _capture(capture: Json) -> str:
    counters, view = capture["counters"], capture["kernel_view"]
    refused = sum(counters.get(name, 0) for name in _REFUSED)
    kernel = view["problem"] or (
        f"{view['subflows']} subflows in the kernel list" if view["enabled"] else "kernel list not in use"
    )
    on_missing = not_captured(capture)
    if not capture["captured"]:
        return f"capture: {on_missing}"
    counts = f"{capture['dropped']} frames dropped, {refused} segments refused; {kernel}"
    return "; ".join(filter(None, (f"capture: {counts}", on_missing)))


def _interfaces(names: Sequence[str]) -> str:
    return f"{'interface' if len(names) == 1 else 'interfaces'} {', '.join(names)}"


def _pause(pause: Json) -> str:
    left = pause["seconds_left"]
    return f"paused by the operator, {'until resumed' if left is None else f'for {left:.0f} s'}: nothing is throttled"


def show_pause(data: Json) -> None:
    """The answer to `pause`."""
    output_console().print(_pause(data["pause"]))


def show_resume(data: Json) -> None:
    """The answer to `resume`."""
    output_console().print("resumed: the rates apply again" if data["was_paused"] else "nothing was paused")


def show_reload(data: Json) -> None:
    """The answer to a `reload` that was not refused."""
    lines = [*data["changes"], *data["dropped_overrides"]]
    output_console().print(f"reloaded: {'; '.join(lines)}" if lines else "reloaded: nothing changed", markup=False)
    _show_notes(data)


def _show_notes(data: Json) -> None:
    for line in data["notes"]:
        output_console().print(f"note: {line}", markup=False)


def show_findings(data: Json) -> None:
    """The findings of `doctor`."""
    console = output_console()
    for finding in data["findings"]:
        level, text = _judgement(finding)
        line = f"{level:7}  {finding['subject']}" + (f": {text}" if text else "")
        # Names of interfaces and of firewall chains may come from a container.
        line = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
        console.print(line, style=_LEVELS[level], markup=False)


def _judgement(finding: Json) -> tuple[str, str]:
    if finding["unchecked"]:
        return "unknown", f"not checked: {finding['unchecked']}"
    if finding["problem"] is None:
        return "ok", finding["remark"] or ""
    level = "problem" if finding["harm"] else "note"
    return level, "; ".join(text for text in (finding["problem"], finding["remedy"]) if text)


def show_network(data: Json) -> None:
    """The answer to `set_rate` and `reset_rate`."""
    _show_networks(output_console(), [data])


def _show_networks(console: Console, networks: Json) -> None:
    clients = [(network["name"], client) for network in networks for client in network["client_rates"]]
    statuses = [*networks, *(client for _, client in clients)]
    uplinks = [rate for status in statuses for rate in status["rates"][_UPLINK].values()]
    has_uplinks = any(rate["rate"] or rate["configured"] for rate in uplinks)
    rates = [(direction, kind) for direction, kind in _RATES if has_uplinks or direction != _UPLINK]
    names = [f"{direction} {kind}" if direction == _UPLINK else kind for direction, kind in rates]
    flows = ("subflows", "throttled", "sends", "receives", "sent throttled", "held back")
    has_proxies = any(network["proxy"] for network in networks)
    proxy = ["proxy"] if has_proxies else []
    table = Table("network", *proxy, "preference", *names, "per", *flows, "subnets", box=None)
    for network in networks:
        table.add_row(
            network["name"],
            *([network["proxy"] or "all"] if has_proxies else []),
            str(network["preference"]),
            *(_rate(network["rates"][direction][kind]) for direction, kind in rates),
            network["per"],
            str(network["subflows"]),
            str(network["throttled_subflows"]),
            _mbps(network["sent_bps"]),
            _mbps(network["received_bps"]),
            format_volume(network["totals"]["ip_sent_throttled"]),
            _seconds(network["totals"]["held_back_ms"]),
            _subnets(network["subnets"], network["subnet_count"]),
        )
    console.print(table)
    if clients:
        of_clients = Table("client", "network", *names, box=None)
        for name, client in clients:
            present = (_rate(client["rates"][direction][kind]) for direction, kind in rates)
            of_clients.add_row(Text(named(client["client"], client.get("device"))), name, *present)
        console.print(of_clients)
    for network in networks:
        if network.get("more_client_rates"):
            console.print(f"{network['name']}: {network['more_client_rates']} more clients have rates of their own")


def _subnets(subnets: list[str], count: int) -> str:
    """The subnets of a network, of which the daemon names only the first."""
    return ", ".join(subnets) if count == len(subnets) else f"{subnets[0]}, and {count - 1} more"


def _mbps(bits_per_second: float | None) -> str:
    return "-" if bits_per_second is None else f"{bits_per_second / 1e6:.2f} Mb/s"


def _applied_rate(applied: Json) -> str:
    not_enforced = applied.get("not_enforced")  # missing while an earlier version runs
    return f"{applied['rate']} ({'not enforced' if not_enforced else applied['kind']})" if applied["kind"] else "-"


def _reason(subflow: Json) -> str:
    return str(subflow["not_enforced"] or shown_reason(subflow))


def shown_reason(subflow: Json) -> str:
    """Of a subflow's uplink if only that is throttled, or does not obey; else of its downlink."""
    downlink, uplink = subflow["downlink"], subflow["uplink"]
    is_of_uplink = uplink["policed"] or (uplink["kind"] and not downlink["kind"])
    return str((uplink if is_of_uplink else downlink)["reason"])


def _rate(rate: Json) -> str:
    if rate["reason"] is None:
        return (rate["rate"] or "-") + (f" ({until})" if (until := _until(rate)) else "")
    reason = ", ".join(filter(None, (rate["reason"], _until(rate))))
    return f"{rate['rate'] or 'unlimited'} ({reason}; configured {rate['configured'] or '-'})"


def _until(end: Json, zone: str | None = None) -> str:
    """Until when something lasts, in this time zone, None being that of this process; empty if it has no end."""
    left = end["seconds_left"]
    if left is None:
        return ""
    if left < _HOUR_SECONDS:
        return f"for {left:.0f} s"
    form = "until %H:%M" if left < _DAY_SECONDS else "until %a %Y-%m-%d %H:%M"
    return local_time(end["expires_at"], zone).strftime(form) + (f" ({zone})" if zone else "")


def show_connections(data: Json) -> None:
    """The answer to `connections`."""
    has_uplinks = any(subflow["uplink"]["kind"] for entry in data["connections"] for subflow in entry["subflows"])
    rates = ("rate", "uplink") if has_uplinks else ("rate",)
    table = Table(
        "token", "client", "network", "id", "backup", *rates, "class", "sends", "since join", "reason", box=None
    )
    for connection in data["connections"]:
        for index, subflow in enumerate(connection["subflows"]):
            latency = subflow["join_to_cap_ms"]
            table.add_row(
                "" if index else connection["token"],
                Text(named(f"{subflow['client']} {subflow['client_port']}", subflow.get("device"))),
                subflow["network"] or "-",
                str(subflow["address_id"]),
                "yes" if subflow["backup"] else "no",
                _applied_rate(subflow["downlink"]),
                *((_applied_rate(subflow["uplink"]),) if has_uplinks else ()),
                subflow["class"] or "-",
                _mbps(subflow["sent_bps"]),
                "-" if latency is None else f"{latency:.1f} ms",
                _reason(subflow),
            )
        since = connection["one_path_since"]
        if since is not None:
            hint = f"one path since {_moment(since)}: the client must open a new subflow"
            table.add_row(*[""] * (len(table.columns) - 1), hint)
    console = output_console()
    if data["connections"]:
        console.print(table)
    elif data["sniffer_problem"] is None:
        console.print("no MPTCP connections")
    else:
        console.print(f"no connection is known: the sniffer does not answer: {data['sniffer_problem']}", markup=False)


def show_explanation(data: Json) -> None:
    """The answer to `explain`."""
    console, zone = output_console(), data.get("time_zone")  # missing while an earlier version runs
    if data["paused"]:
        console.print("paused by the operator: nothing is throttled")
    for network in data["networks"]:
        if data.get("device") is not None:
            prefixes = ", ".join(network["prefixes"])
            console.print(f"{data['device']} in {network['name']}: {prefixes}", markup=False)
        for direction, name in _DIRECTIONS.items():
            explained = network[direction]
            has_rate = any(step["rate"] for kind in _KINDS for step in explained[kind])
            if direction == _UPLINK and not has_rate:
                continue
            console.print(f"{network['name']}, {name}: {_explained_subflows(explained['subflows'])}", markup=False)
            for kind in _KINDS:
                console.print(f"  {kind}: {_explained_rate(explained[kind], zone)}", markup=False)
            part = explained.get("fleet_part")  # missing while an earlier version runs
            if part is not None and has_rate:
                console.print(f"  of this client's shared rates, this proxy has {100 * part:.3g} %")
        for budget in network["budgets"]:
            console.print(f"  budget: {explained_budget(budget, zone)}", markup=False)


def _explained_subflows(subflows: Json) -> str:
    texts = (
        f"{each['rate'] or 'unlimited'}{_burst(each)} for {each['number']} subflow{'s' * (each['number'] > 1)}"
        f" ({each['reason']})"
        for each in subflows
    )
    return ", ".join(texts) or "no subflow now"


def _burst(subflow: Json) -> str:
    if subflow.get("burst_bytes") is None:
        return ""
    return f" with {format_volume(subflow['burst_bytes'])} beyond it after {subflow['burst_seconds']:.3g} s of quiet"


def _explained_rate(steps: Json, zone: str | None) -> str:
    """What the last rule has made of a rate, and what it would be without that."""
    *earlier, last = steps
    why = ", ".join(filter(None, (last["reason"] or "as configured", _until(last, zone))))
    otherwise = f"; otherwise {earlier[-1]['rate'] or 'none'}" if earlier else ""
    return f"{last['rate'] or 'none'} ({why}){otherwise}"


def _moment(at: float) -> str:
    """A past time, in seconds since the epoch: hours and minutes, with the date where these are ambiguous."""
    form = "%H:%M" if time.time() - at < _DAY_SECONDS else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(at))


def show_history(data: Json) -> None:
    """The answer to `history`."""
    rates = ("rate sent", "rate received")
    table = Table("begin", "sent", "received", *rates, "throttled", "held back", "retransmitted", "RTT", box=None)
    resolution, sums = data["resolution"], Counter[str]()
    for period in data["periods"]:
        sums.update({key: period[key] for key in _SUMS})
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(period["start"])),
            format_volume(period["ip_sent"]),
            format_volume(period["ip_received"]),
            _mbps(8 * period["ip_sent"] / resolution),
            _mbps(8 * period["ip_received"] / resolution),
            _percent(period["ip_sent_throttled"], period["ip_sent"]),
            _seconds(period["held_back_ms"]),
            _percent(period["retransmitted"], period["sent"]),
            f"{1000 * period['rtt_seconds'] / period['rtt_samples']:.1f} ms" if period["rtt_samples"] else "-",
        )
    console = output_console()
    if not data["periods"]:
        console.print(f"no history of {data['kind']} {data['name']} in that time", markup=False)
        return
    console.print(table)
    sent = f"{format_volume(sums['ip_sent'])} sent ({format_volume(sums['ip_sent_throttled'])} throttled)"
    console.print(f"total IP bytes: {sent}, {format_volume(sums['ip_received'])} received")
    console.print(f"total time held back: {_seconds(sums['held_back_ms'])}")


def write_history_csv(data: Json) -> None:
    """The answer to `history` as CSV, a line per period."""
    periods = data["periods"]
    if periods:
        writer = csv.DictWriter(sys.stdout, list(periods[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(periods)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def show_plan(data: Json) -> None:
    """The answer to `plan`."""
    console = output_console()
    if not data["operations"]:
        console.print("nothing is throttled: HTB is not installed")
        return
    for operation in data["operations"]:
        for command in operation["commands"]:
            console.print(command, markup=False)
    console.print("# applied" if data["applied"] else "# not completely applied: see status", markup=False)


def _devices(number: int) -> str:
    return f", {number} device{'s' * (number > 1)}" if number else ""


def show_check(data: Json) -> None:
    """The result of `check-config`."""
    proxies = f" proxies {', '.join(data['proxies'])}," if data["proxies"] else ""
    output_console().print(
        f"{data['file']}: valid: {_interfaces(data['interfaces'])}, ports [{', '.join(map(str, data['ports']))}],"
        f"{proxies} networks {', '.join(data['networks'])}{_devices(data['devices'])}",
        markup=False,
    )
    _show_notes(data)
