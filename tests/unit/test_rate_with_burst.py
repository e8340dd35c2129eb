"""Bursts: how large they are at each rate, what configurations may say, and what the kernel's objects get."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from config_files import SERVICE, write_config
from examples import ETHERNET, WIFI, cap, connection, subflow
from loops import LoopOnModels

from mptcp_throttle.config.changes import changes
from mptcp_throttle.config.load import load_config
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import MAX_BURST_SECONDS, Rate, parse_burst
from mptcp_throttled.control.source import haste
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.kernel.program_layout import CREDIT_NS, OBJECTS, Bucket
from mptcp_throttled.kernel.share_numbers import ShareNumbers
from mptcp_throttled.kernel.steering.program import bucket_for
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.decision import Share, Throttle
from mptcp_throttled.vocabulary.terms import Facts

SLOW, FAST = Rate.parse("1mbit"), Rate.parse("8mbit")
BURST: Final = 2_000_000
NETWORK: Final = "name: ethernet\nsubnets: [10.1.0.0/24]\npreference: 2\ncap: 1mbit\n"
PREFERRED: Final = "name: wifi\nsubnets: [10.2.0.0/24]\npreference: 1\n"
SECOND: Final = 10**9


def seconds_left(bucket: Bucket, now: int) -> float:
    """How long the rate takes for what is left of the burst; negative: for the debt."""
    return min(now - bucket.paid_at, bucket.credit_ns) / SECOND


@pytest.mark.parametrize(
    ("rate", "burst"),
    [("1mbit", 2_000_000), ("1kbit", 7_000), ("256kbit", 1_920_000), ("300mbit", 2_000_000), ("400mbit", 0)],
)
def test_burst_is_bounded_by_what_the_rate_carries(rate: str, burst: int) -> None:
    assert Rate.parse(rate).with_burst(BURST).burst == burst


def test_rates_of_shares_have_the_burst_of_their_network() -> None:
    rates = {RateKind.CAP: SLOW, RateKind.LIMIT: FAST, RateKind.UPLINK_CAP: SLOW, RateKind.UPLINK_LIMIT: FAST}
    terms = terms_of((replace(ETHERNET, burst=BURST).with_rates(rates), WIFI), 0.0, Facts())
    found = {kind: terms.rate(Share("ethernet", kind, "")) for kind in RateKind}
    assert found == {**rates, RateKind.CAP: replace(SLOW, burst=BURST), RateKind.LIMIT: replace(FAST, burst=BURST)}
    assert str(found[RateKind.CAP]) == "1mbit"


# Configuration


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "",
            "burst: 2mbit",
            "burst: '2mbit': is not a burst; allowed: a number with kB or MB (or KiB, MiB), from 10kB",
        ),
        ("", "burst: 9kB", "burst: '9kB': is not a usable burst; allowed: a number with kB or MB"),
        ("", "burst: 1GB", "burst: '1GB': is not a usable burst; allowed: a number with kB or MB"),
        ("cap: 1mbit", "burst: 2MB", "burst: 2 MB: needs a cap or limit of downloads; allowed: null, or one of these"),
        ("cap: 1mbit", "uplink: {cap: 1mbit}\nburst: 2MB", "burst: 2 MB: needs a cap or limit of downloads; allowed: "),
        ("", "burst: 8MB", "burst: 8 MB: is more than 1mbit carries in 60 s; allowed: up to 7.5 MB"),
        (
            "cap: 1mbit",
            "limit: 80mbit\nburst: 200kB",
            "burst: 200 kB: is no more than 80mbit carries in 0.04 s; allowed",
        ),
        (
            "",
            "per: subflow\nburst: 2MB",
            "burst: 2 MB: each new subflow would have its own; allowed: null, or per: cli",
        ),
        ("", "provisional: 1s\nburst: 2MB", "burst: 2 MB: has no effect on connections that begin at the pace of prov"),
    ],
)
def test_burst_with_an_error_is_refused_in_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    text = NETWORK.replace(old, new) if old else f"{NETWORK}{new}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write_config(tmp_path, SERVICE, e=text, wifi=PREFERRED))
    (problem,) = caught.value.problems
    assert line in problem
    assert re.search(r"e\.yaml:\d+: burst", problem)


def test_cap_with_a_burst_needs_steering_unless_nothing_is_paced(tmp_path: Path) -> None:
    files = {"e": f"{NETWORK}burst: 2MB\n", "wifi": PREFERRED}
    assert load_config(write_config(tmp_path, f"{SERVICE}daemon: {{pacing: false}}\n", **files)).networks[1].burst
    with pytest.raises(ConfigError, match=r"burst: 2 MB: needs daemon.steering: true, or daemon.pacing: false, as the"):
        load_config(write_config(tmp_path, f"{SERVICE}daemon: {{steering: false}}\n", **files))
    files["e"] = files["e"].replace("cap:", "limit:")
    assert load_config(write_config(tmp_path, f"{SERVICE}daemon: {{steering: false}}\n", **files)).networks[1].burst


@pytest.mark.parametrize(("text", "burst"), [("10kB", 10_000), ("2 MB", BURST), ("1.5MB", 1_500_000), ("2MiB", 2**21)])
def test_burst_is_read_in_bytes(text: str, burst: int) -> None:
    assert parse_burst(text) == burst


def test_burst_is_a_change_that_a_reload_applies(tmp_path: Path) -> None:
    before, after = (
        load_config(write_config(tmp_path, SERVICE, e=f"{NETWORK}{added}", wifi=PREFERRED))
        for added in ("", "burst: 2MB\n")
    )
    (change,) = changes(before, after)
    assert str(change) == "network ethernet: burst null -> 2 MB"


# Kernel


@pytest.mark.parametrize("text", ["1kbit", "256kbit", "1mbit", "937mbit", "40gbit"])
@pytest.mark.parametrize("burst", [16_000, BURST, 10**8])
def test_class_has_the_burst_and_is_recognised(text: str, burst: int) -> None:
    rate = Rate.parse(text).with_burst(burst)
    assert htb.rate_of(htb.class_options(rate)) == rate
    without = replace(rate, burst=0)
    assert (htb.rate_of(htb.class_options(without)) == rate) == (rate.burst == 0)


def test_credit_without_a_burst_is_that_of_the_program() -> None:
    text = (OBJECTS / "token_bucket.h").read_text(encoding="utf-8")
    assert re.findall(r"#define CREDIT_NS (\d+)ULL", text) == [str(CREDIT_NS)]
    assert bucket_for(SLOW, None, SECOND).credit_ns == CREDIT_NS


def test_new_share_has_its_whole_burst() -> None:
    now = 1000 * SECOND
    assert seconds_left(bucket_for(replace(SLOW, burst=BURST), None, now), now) == pytest.approx(16, rel=0.001)


@pytest.mark.parametrize(("left", "expected"), [(8.0, 1.0), (-0.8, -0.1), (900.0, 2.0)])
def test_bytes_left_of_a_burst_survive_other_rates(left: float, expected: float) -> None:
    now = 1000 * SECOND
    before = bucket_for(replace(SLOW, burst=BURST), None, now)._replace(paid_at=now - int(left * SECOND), is_bursting=1)
    raised = bucket_for(replace(FAST, burst=BURST), before, now)
    assert seconds_left(raised, now) == pytest.approx(expected, rel=0.001)
    assert raised.is_bursting
    again = bucket_for(replace(SLOW, burst=BURST), raised, now)
    assert seconds_left(again, now) == pytest.approx(min(left, 16), rel=0.001)


def test_terms_of_its_own_bring_a_client_no_other_burst() -> None:
    shares = ShareNumbers()
    of_network = Throttle(Share("ethernet", RateKind.CAP, "fd00:1::/64"), replace(SLOW, burst=BURST))
    client = ETHERNET.client(subflow("fd00:1::2").ends.client.address)
    own = Throttle(Share("ethernet", RateKind.CAP, "fd00:1::", client), replace(FAST, burst=BURST))
    shares.new_rates([of_network])
    assert shares.new_rates([own]) == {1: own.rate}
    without_burst = [replace(each, rate=replace(each.rate, burst=0)) for each in (of_network, own)]
    assert {*shares.new_rates(without_burst)} == {2, 3}


# The loop


def test_share_with_a_burst_is_kept_until_that_is_refilled(tmp_path: Path) -> None:
    running = LoopOnModels(tmp_path, (WIFI, replace(ETHERNET, burst=BURST)))
    running.show(connection(1, subflow("10.1.0.2"), subflow("10.2.0.2")))
    (rate,) = running.loop.snapshot.plan.classes.values()
    assert rate == replace(SLOW, burst=BURST)
    assert haste(running.loop.snapshot).patience == 0.0
    running.show()
    for seconds, is_kept in ((MAX_BURST_SECONDS - 1, True), (2, False)):
        running.clock.now += seconds
        running.loop.step()
        assert bool(running.loop.snapshot.plan.htb) == is_kept


def test_cap_set_by_hand_has_the_burst(tmp_path: Path) -> None:
    running = LoopOnModels(tmp_path, (WIFI, replace(ETHERNET, burst=BURST)))
    running.operator.set(cap("ethernet", FAST))
    running.show(connection(1, subflow("10.1.0.2"), subflow("10.2.0.2")))
    assert set(running.loop.snapshot.plan.classes.values()) == {replace(FAST, burst=BURST)}
