"""Recorded traces: what the rules make of them, and which traces are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from examples import ETHERNET, WIFI
from worlds import configuration

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.control.overflow_simulation import simulate
from mptcp_throttled.control.trace import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_throttle.config.schema import Config
    from mptcp_throttle.rpc import Json

CONFIG: Final = configuration((WIFI, replace(ETHERNET, overflow=Rate(10_000_000))))
BEGAN: Final = 1_800_000_000.0


def rows(
    seconds: float, wifi: float, ethernet: float, since: float = 0.0, lte: float | None = None, **more: object
) -> Iterator[dict[str, object]]:
    """The rows of a client that carries data over these networks for `seconds`; rates in bits/s."""
    rates = {"wifi": wifi, "ethernet": ethernet} if lte is None else {"wifi": wifi, "ethernet": ethernet, "lte": lte}
    for number in range(1, round(seconds * 4) + 1):
        for network, rate in rates.items():
            at = BEGAN + since + number / 4
            yield {"at": at, "client": "10.1.0.1", "network": network, "sent_bps": rate, **more}


def simulated(tmp_path: Path, *lines: object, config: Config = CONFIG) -> Json:
    file = tmp_path / "trace.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return simulate(config, read_trace(file, [network.name for network in config.networks]))


def test_cap_is_what_wifi_lacks_while_it_is_slow(tmp_path: Path) -> None:
    fast, slow, again = rows(10, 56e6, 1e6), rows(20, 3e6, 1e6, 10), rows(10, 56e6, 1e6, 30)
    (client,) = simulated(tmp_path, *fast, *slow, *again)["clients"]
    assert (client["network"], client["client"]) == ("ethernet", "10.1.0.1")
    assert [each["cap"] for each in client["changes"]][-2:] == ["6.752mbit", "1mbit"]
    assert client["changes"][-2]["reason"] == "overflow: preferred paths carry less than 10mbit"
    assert 0 < client["changes"][0]["at"] - (BEGAN + 10) <= 1
    assert 1 <= client["changes"][-1]["at"] - (BEGAN + 30) <= 3
    assert client["bytes"] == pytest.approx((20 * 6.752e6 + 20 * 1e6) / 8, rel=0.05)
    assert client["bytes_with_cap_alone"] == pytest.approx(40 * 1e6 / 8, rel=0.02)


def test_client_that_asks_for_no_more_has_what_it_carried(tmp_path: Path) -> None:
    (client,) = simulated(tmp_path, *rows(10, 3e6, 2e5))["clients"]
    assert (client["changes"], client["bytes"]) == ([], client["bytes_with_cap_alone"])
    assert client["bytes"] == pytest.approx(9.75 * 2e5 / 8, rel=0.02)
    (client,) = simulated(tmp_path, *rows(10, 8e6, 1e6, unsent_bytes=4000))["clients"]
    assert client["changes"] == []


def test_gap_in_a_trace_counts_as_nothing(tmp_path: Path) -> None:
    (client,) = simulated(tmp_path, *rows(1, 3e6, 1e6), *rows(1, 3e6, 1e6, 1000))["clients"]
    assert client["bytes_with_cap_alone"] <= 2 * 1e6 / 8


@pytest.mark.parametrize(("unsent", "caps"), [(32 << 10, ["3.512mbit"]), (0, [])])
def test_third_network_has_what_is_lacking_once_the_second_is_used_up(
    tmp_path: Path, unsent: int, caps: list[str]
) -> None:
    """The third carries less than its cap, since few pulses are left for it."""
    cap = {RateKind.CAP: Rate(1_000_000)}
    lte = replace(ETHERNET, name="lte", subnets=(), preference=3, rates=cap, overflow=Rate(11_000_000))
    config = configuration((WIFI, replace(ETHERNET, overflow=Rate(8_000_000)), lte))
    clients = simulated(tmp_path, *rows(20, 4e6, 1e6, lte=4e5, unsent_bytes=unsent), config=config)["clients"]
    (of_lte,) = [client for client in clients if client["network"] == "lte"]
    assert [change["cap"] for change in of_lte["changes"]] == caps


GOOD: Final = {"at": BEGAN, "client": "10.1.0.1", "network": "wifi", "sent_bps": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "'nonsense'; allowed: a JSON object with at, client, network, sent_bps, unsent_bytes"),
        ({**GOOD, "rate": 1}, "'rate': unknown key; allowed: at, client, network, sent_bps, unsent_bytes"),
        (
            {key: value for key, value in GOOD.items() if key != "network"},
            "network: is required; allowed: at, client, network, sent_bps, and perhaps unsent_bytes",
        ),
        ({**GOOD, "network": "dsl"}, "network: 'dsl'; allowed: wifi, ethernet"),
        ({**GOOD, "client": "phone"}, "client: 'phone'; allowed: an IP address, such as 10.1.0.17"),
        ({**GOOD, "sent_bps": -1}, "sent_bps: -1; allowed: a number from 0 to 1e15"),
        ({**GOOD, "sent_bps": True}, "sent_bps: true; allowed: a number from 0 to 1e15"),
        ({**GOOD, "unsent_bytes": "x"}, "unsent_bytes: 'x'; allowed: a number from 0 to 1e15"),
        ({**GOOD, "at": BEGAN - 5}, "at: 1799999995.000; allowed: no earlier than the line before, 1800000000.000"),
    ],
)
def test_bad_line_is_refused_in_one_line(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(UserError) as refused:
        simulated(tmp_path, GOOD, line)
    assert str(refused.value) == f"{tmp_path}/trace.jsonl:2: {message}"


def test_trace_without_a_line_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        simulated(tmp_path)
    allowed = "allowed: lines of which each is a JSON object with at, client, network, sent_bps, unsent_bytes"
    assert str(refused.value) == f"{tmp_path}/trace.jsonl: no line was read; {allowed}"
    assert refused.value.status == 1


def test_trace_that_cannot_be_read_and_rules_without_overflow_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/none: cannot be read: No such file or directory"):
        list(read_trace(tmp_path / "none", ["wifi"]))
    with pytest.raises(UserError, match="no access network has an overflow"):
        simulate(configuration((WIFI, ETHERNET)), ())
