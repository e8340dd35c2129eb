"""What `top` shows, and what its keys do."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from mptcp_throttle.cli.live_view import Recent, View, render, sparkline
from mptcp_throttle.rpc import Json

DOWNLINK = {"kind": "cap", "rate": "1mbit", "rate_bps": 1_000_000, "reason": "wifi is live"}
UPLINK = {"kind": None, "rate": None, "rate_bps": None, "reason": "network has no cap", "policed": False}
FREE = {**DOWNLINK, "kind": None, "rate": None, "rate_bps": None}
SUBFLOW = {
    "state": "cap",
    "client_port": 40000,
    "downlink": DOWNLINK,
    "uplink": UPLINK,
    "sent_bps": 950_000,
    "received_bps": 10_000,
    "rtt_ms": 25.4,
    "not_enforced": None,
}
CLIENT = {
    "client": "fd00:1:2:3::",
    "sent_bps": 950_000,
    "received_bps": 10_000,
    "throttled_bps": 950_000,
    "rate_bps": 1_000_000,
    "subflows": [SUBFLOW],
    "more_subflows": 3,
}
DATA: Json = {
    "connections": 2,
    "paused": False,
    "sniffer_problem": None,
    "errors": [],
    "networks": [
        {
            "name": "ethernet",
            "sent_bps": 950_000,
            "received_bps": 10_000,
            "rates": {"downlink": {"cap": {"rate": "1mbit"}, "limit": {"rate": None}}},
            "per": "client",
            "clients": [CLIENT],
            "more_clients": 7,
        }
    ],
}

DEFAULT = View()


def screen(data: Json = DATA, view: View = DEFAULT, width: int = 80, problem: str | None = None) -> list[str]:
    recent = Recent()
    recent.add(data)
    console = Console(file=StringIO(), width=width, highlight=False)
    console.print(render(data, view, recent, width, problem=problem, ascii_only=False))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def pressed(keys: str, view: View = DEFAULT) -> View:
    for key in keys:
        view = view.pressed(key)
    return view


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = {**SUBFLOW, "downlink": {**DOWNLINK, "reason": "x" * 300}, "client_port": 65535}
    network = {**DATA["networks"][0], "name": "n" * 32, "clients": [{**CLIENT, "subflows": [long]}]}
    lines = screen({**DATA, "networks": [network], "errors": ["e" * 300]}, width=width, problem="p" * 300)
    assert max(map(len, lines)) <= width


def test_80_columns_show_rate_cap_use_rtt_state_and_reason() -> None:
    text = "\n".join(screen())
    for shown in ("ethernet", "fd00:1:2:3::", "port 40000", "0.95 M", "1mbit", "95 %", "25 ms", "cap: wifi is live"):
        assert shown in text
    assert "3 more subflows" in text
    assert "7 more clients" in text


def test_wide_terminals_have_sparklines() -> None:
    assert "█" in "\n".join(screen(width=140))
    assert sparkline([0, 1, 4]) == "▁▃█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 4], ascii_only=True) == "_#"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"paused": True}, "paused by the operator: nothing is throttled"),
        ({"sniffer_problem": "no answer"}, "sniffer: no answer"),
        ({"errors": ["tc: refused"]}, "error: tc: refused"),
    ],
)
def test_what_is_wrong_is_above_the_table(change: Json, line: str) -> None:
    assert line in [shown.rstrip() for shown in screen({**DATA, **change})]
    assert "not up to date: gone" in "\n".join(screen(problem="gone"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"not_enforced": "marks"}, "cap: not enforced: marks"),
        ({"downlink": FREE, "uplink": {**UPLINK, "kind": "cap", "reason": "in debt"}}, "cap: in debt"),
        ({"uplink": {**UPLINK, "kind": "cap", "reason": "in debt", "policed": True}}, "policed: in debt"),
    ],
)
def test_reason_is_that_of_what_is_done(change: Json, text: str) -> None:
    network = {**DATA["networks"][0], "clients": [{**CLIENT, "subflows": [{**SUBFLOW, **change}]}]}
    assert text in "\n".join(screen({**DATA, "networks": [network]}, width=120))


def test_keys_change_what_is_shown() -> None:
    assert pressed("q").ended
    assert pressed("p").paused
    assert not pressed("pp").paused
    assert pressed("s").order == "received"
    assert pressed("ssss").order == "sent"
    assert pressed("+").number == 15
    assert pressed("----").number == 5
    assert pressed("x\x00é") == View()


def test_filter_is_typed_erased_and_left() -> None:
    assert pressed("/10.1q\r").pattern == "10.1q"
    assert pressed("/10.x\x7f1\n").pattern == "10.1"
    left = pressed("/abc\x1b", View(pattern="before"))
    assert (left.pattern, left.typed) == ("before", None)
    assert pressed("\x1b", View(pattern="before")).pattern == ""


def test_those_no_longer_shown_are_forgotten() -> None:
    recent = Recent()
    recent.add(DATA)
    assert len(recent.rates) == 2
    recent.add({**DATA, "networks": []})
    assert not recent.rates


def proxy(number: int, state: str = "reachable", sent: int = 0) -> Json:
    figures = {"sent_bps": sent, "received_bps": 1_000_000, "connections": 10, "throttled": 3}
    return {"name": f"proxy-{number}", "state": state, "age": 35.0 + number, "version": "1.0.0", **figures}


def test_proxies_are_above_networks_those_out_of_reach_first() -> None:
    proxies = [proxy(1, sent=5_000_000), proxy(2, "late", 9_000_000), proxy(3, sent=8_000_000)]
    lines = screen({**DATA, "proxies": proxies}, width=140)
    place = next(number for number, line in enumerate(lines) if "2 of 3 proxies" in line)
    assert "13.00 M" in lines[place]
    assert "20 connections" in lines[place]
    assert [line.split()[0] for line in lines[place + 1 : place + 4]] == ["proxy-2", "proxy-3", "proxy-1"]
    assert "late: heard of 37 s ago" in lines[place + 1]
    assert "9.00 M" not in lines[place + 1]
    assert "10 connections, 3 subflows throttled" in lines[place + 2]
    assert lines[place + 4].split()[0] == "ethernet"


def test_proxy_whose_state_was_seen_long_ago_is_not_counted() -> None:
    lines = screen({**DATA, "proxies": [proxy(1), {**proxy(2, sent=9_000_000), "state_age": 35.0}]}, width=140)
    place = next(number for number, line in enumerate(lines) if "1 of 2 proxies" in line)
    assert "reachable 35 s ago: heard of 37 s ago" in lines[place + 1]
    assert "9.00 M" not in "".join(lines)


def test_proxies_of_a_large_fleet_leave_room_for_networks() -> None:
    lines = screen({**DATA, "proxies": [proxy(number) for number in range(50)]}, width=140)
    assert sum("proxy-" in line for line in lines) == 5
    assert any("45 more proxies" in line for line in lines)
    assert any("ethernet" in line for line in lines)
