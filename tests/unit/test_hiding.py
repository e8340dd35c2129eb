"""Addresses in what the page shows, replaced by names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle_web.hiding import Hider

NAME = re.compile(r"host-[0-9a-f]{8}")


@pytest.mark.parametrize(
    "text",
    [
        "10.1.0.2",
        "client 10.1.0.2:4711: not enforced",
        "[fd00:1::2]:4711",
        "fd00:1::2",
        "::ffff:10.1.0.2",
        "10.1.0.2 and 10.1.0.2.",
        "from 10.1.0.2,to fd00:1::2;",
        "fd00:1::/64",
    ],
)
def test_no_address_is_left_wherever_it_is_in_a_text(text: str) -> None:
    hidden = Hider().hidden(text)
    assert NAME.search(hidden)
    assert "10.1.0" not in hidden
    assert "fd00" not in hidden
    assert "4711" not in hidden


@given(st.ip_addresses().map(str), st.text(alphabet="abcdef:.0123456789 []-", max_size=8))
def test_random_address_is_hidden_whatever_is_around_it(address: str, around: str) -> None:
    assert address not in Hider().hidden(f"x {around} {address} {around} x")


@pytest.mark.parametrize(
    "text",
    ["1mbit (cap)", "wifi is live", "0.94 Mb/s", "4d50:2", "since 12:30", "dead beef", ""],
)
def test_texts_without_an_address_stay_as_they_are(text: str) -> None:
    assert Hider().hidden(text) == text


def test_name_stays_the_same_and_leads_back_to_the_address() -> None:
    hider = Hider()
    name = hider.hidden("10.1.0.2")
    assert hider.hidden("client 10.1.0.2") == f"client {name}"
    assert hider.address(name) == "10.1.0.2"
    assert Hider().hidden("10.1.0.2") != name
    assert Hider().address(name) is None


def test_tokens_and_ports_are_left_out_at_any_depth() -> None:
    data = {"connections": [{"token": "613a7ed5", "subflows": [{"client_port": 4711, "rate": 5}]}]}
    assert Hider().hidden(data) == {"connections": [{"token": None, "subflows": [{"client_port": None, "rate": 5}]}]}


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("device phone: 1.1 kB used", "a device: 1.1 kB used"),
        ("reloaded: device a-b added, device c_d removed", "reloaded: a device added, a device removed"),
        ("device phone: lte.cap 1mbit -> 2mbit", "a device: lte.cap 1mbit -> 2mbit"),
    ],
)
def test_device_that_is_named_without_an_address_is_hidden(text: str, hidden: str) -> None:
    assert Hider().hidden(text) == hidden


def test_word_device_of_the_kernel_stays() -> None:
    text = "eth0: No such device or address"
    assert Hider().hidden(text) == text


def test_device_is_hidden_in_the_form_of_the_log_too() -> None:
    hider = Hider()
    assert hider.hidden("client=10.1.0.2:40000 device=phone: late") == f"client={hider.hidden('10.1.0.2')}: late"


def test_names_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_throttle_web.hiding._KEPT", 2)
    hider = Hider()
    first, *_ = [hider.hidden(f"10.1.0.{number}") for number in range(1, 4)]
    assert hider.address(first) is None


def test_very_long_run_is_hidden_as_a_whole() -> None:
    assert Hider().hidden("1:" * 5000) == "(hidden)"
