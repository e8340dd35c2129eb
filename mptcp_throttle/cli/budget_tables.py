"""The answers about budgets as tables and lines."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from mptcp_throttle.cli.console import output_console
from mptcp_throttle.cli.times import local_time, shown_time
from mptcp_throttle.devices import named
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import format_percentage, format_volume

_ALL: Final = {"network": "all", "client": ""}
_ROLLING_SPANS: Final = {"day": "in 24 hours", "week": "in 7 days", "month": "in 30 days"}
_OVERDUE: Final = "overdue"


def show_budgets(data: Json) -> None:
    """The answer to `budgets`."""
    console = output_console()
    if not data["budgets"]:
        console.print("no budget is configured, or no client has used any")
        return
    zone = data.get("time_zone")  # this and others are missing while an earlier version runs
    ends = "period ends" if zone is None else f"period ends ({zone})"
    # Of budgets that no other proxy has counted, there is nothing to tell.
    by_proxy = ("by proxy",) if any(budget.get("used_elsewhere") for budget in data["budgets"]) else ()
    columns = (
        "network",
        "client",
        "used",
        *by_proxy,
        "of",
        "",
        "left",
        "spent",
        "without MPTCP",
        ends,
        "allowed at most",
    )
    table = Table(*columns, box=None)
    for budget in data["budgets"]:
        table.add_row(
            Text(", ".join(budget.get("networks", (budget["network"],)))),
            Text(_whose(budget)),
            format_volume(budget["used"]),
            *((_by_proxy(budget) or "-",) if by_proxy else ()),
            _of(budget),
            format_percentage(budget["used"] / budget["amount"]),
            format_volume(budget["left"]),
            _forecast(budget, zone),
            format_volume(budget["used_without_mptcp"]),
            _end(budget, zone),
            _allowed(budget),
        )
    console.print(table)
    if data["omitted"]:
        console.print(f"and {data['omitted']} more")
    if data.get("problem") is not None:
        console.print(data["problem"], style="red", markup=False)


def explained_budget(budget: Json, zone: str | None) -> str:
    """What is used of a budget, in words."""
    whose = {"client": "of this client", "device": "of this device"}.get(budget["per"], "of the network")
    if budget["per"] == "device" and len(budget["networks"]) > 1:
        whose = f"of this device in {' and '.join(budget['networks'])}"
    used = f"{format_volume(budget['used'])} of {format_volume(budget['amount'])}"
    ends = _OVERDUE if budget.get("overdue") else f"until {shown_time(budget['period']['end'], zone)}"
    if budget.get("rolling"):
        ends = _ROLLING_SPANS[budget["every"]]
    elsewhere = budget.get("used_elsewhere")
    parts = _by_proxy(budget)
    by_proxy = f" (by proxy: {parts})" if parts else ""
    at_others = f", {format_volume(elsewhere)} of it at other proxies{by_proxy}" if elsewhere else ""
    text = f"{used} {whose} used ({format_percentage(budget['used'] / budget['amount'])}){at_others}, {ends}"
    free = budget.get("free_window")
    return text if free is None else f"{text}; in the window {free} nothing is used, and no rate is lower"


def _by_proxy(budget: Json) -> str:
    """The part of each proxy of what is used of a budget that several share."""
    parts = budget.get("used_by_proxy") or ()
    return ", ".join(f"{part['name']} {format_volume(part['used'])}" for part in parts)


def _whose(budget: Json) -> str:
    if budget["client"] is not None:
        return named(budget["client"], budget.get("device"))
    return str(budget["device"]) if budget["per"] == "device" else _ALL[budget["per"]]


def _forecast(budget: Json, zone: str | None) -> str:
    """When a budget will be spent, by days, but by hours if it is for a day."""
    foreseen = budget.get("forecast")
    if foreseen is None:
        return "-"
    form = "%H:%M" if budget["every"] == "day" else "%m-%d"
    spent_at, earliest, latest = (
        None if foreseen[key] is None else local_time(foreseen[key], zone).strftime(form)
        for key in ("spent_at", "earliest", "latest")
    )
    if earliest is None:
        return "not in this period"
    return f"{spent_at or 'later'} ({earliest} to {latest or 'later'})"


def _of(budget: Json) -> str:
    direction = "" if budget["direction"] == "both" else f" {budget['direction']}"
    span = _ROLLING_SPANS[budget["every"]] if budget.get("rolling") else f"a {budget['every']}"
    return f"{format_volume(budget['amount'])}{direction} {span}"


def _end(budget: Json, zone: str | None) -> str:
    if budget.get("rolling"):
        return "rolling"
    end = budget["period"]["end"]
    text = f"{local_time(end, zone):%Y-%m-%d %H:%M}" if zone else shown_time(end, zone)
    return f"{text} ({_OVERDUE})" if budget.get("overdue") else text


def _allowed(budget: Json) -> str:
    uplink = {"uplink": "uplink "}
    rates = [f"{uplink.get(each['direction'], '')}{each['kind']} {each['rate']}" for each in budget["allowed"]]
    if rates and budget.get("free_window") is not None:
        return f"not now (window {budget['free_window']}); then {', '.join(rates)}"
    return ", ".join(rates) or "-"
