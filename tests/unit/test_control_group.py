"""The control group: which connections are in it, what applies to them, and how they are compared with the others."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from struct import Struct

import pytest
from examples import ETHERNET, WIFI, connection, ends, network, subflow
from hypothesis import given
from hypothesis import strategies as st
from loops import LoopOnModels
from policy_oracle import as_configured

from mptcp_throttle.model import Direction, RateKind, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting import control_group as accounting
from mptcp_throttled.accounting.control_group import Comparison, GroupSums, Interval, Sums
from mptcp_throttled.kernel.sockets.program import ended_connection
from mptcp_throttled.lifecycle.control_key import control_group
from mptcp_throttled.policy.decide import decide
from mptcp_throttled.vocabulary.control_group import (
    NO_CONTROL_GROUP,
    ControlGroup,
    EndedConnection,
    siphash,
)
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.locator import Locator
from mptcp_throttled.vocabulary.operator import Pause

KEY = bytes(range(16))
HALF = ControlGroup(0.5, KEY)
IN_GROUP = next(token for token in map(Token, range(1, 100)) if HALF.has(token))
OUTSIDE = next(token for token in map(Token, range(1, 100)) if not HALF.has(token))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        # vectors_sip64 of the reference implementation, and appendix A of the paper (length 15)
        (0, "310e0edd47db6f72"),
        (1, "fd67dc93c539f874"),
        (2, "5a4fa9d909806c0d"),
        (3, "2d7efbd796666785"),
        (4, "b7877127e09427cf"),
        (5, "8da699cd64557618"),
        (6, "cee3fe586e46c9cb"),
        (7, "37d1018bf50002ab"),
        (8, "6224939a79f5f593"),
        (15, "e545be4961ca29a1"),
    ],
)
def test_hash_has_the_published_values(length: int, expected: str) -> None:
    assert siphash(KEY, bytes(range(length))).to_bytes(8, "little").hex() == expected


def test_token_is_hashed_with_its_lowest_byte_first() -> None:
    lowest = int.from_bytes(bytes.fromhex("b7877127"), "little")
    token = Token(0x03020100)
    assert ControlGroup((lowest + 1) / 2**32, KEY).has(token)
    assert not ControlGroup(lowest / 2**32, KEY).has(token)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5])
def test_group_has_its_share_of_connections(share: float) -> None:
    found = sum(ControlGroup(share, KEY).has(Token(number)) for number in range(10_000))
    assert found == pytest.approx(10_000 * share, abs=4 * math.sqrt(10_000 * share))


@given(token=st.integers(0, 2**32 - 1).map(Token), key=st.binary(min_size=16, max_size=16))
def test_larger_group_has_what_the_smaller_one_has(token: Token, key: bytes) -> None:
    assert ControlGroup(0.5, key).has(token) or not ControlGroup(0.01, key).has(token)
    assert not ControlGroup(0.0, key).has(token)


def test_no_text_shows_the_key() -> None:
    assert KEY.hex() not in repr(HALF)
    assert repr(KEY) not in repr(HALF)


def test_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    made = control_group(0.01, tmp_path)
    assert made == control_group(0.01, tmp_path)
    assert made.key == control_group(0.5, tmp_path).key
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_key_may_follow_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "control-group.key").write_text(f"\ufeff{'5a' * 16}\n")
    assert control_group(0.01, tmp_path).key == b"Z" * 16


def test_each_host_has_a_key_of_its_own(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert control_group(0.01, tmp_path).key != control_group(0.01, other).key


@pytest.mark.parametrize("share", [None, 0.0])
def test_without_a_share_there_is_neither_a_group_nor_a_key(tmp_path: Path, share: float | None) -> None:
    assert control_group(share, tmp_path) is NO_CONTROL_GROUP
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "00", "no key", "\udcff"])
def test_damaged_key_is_replaced_and_logged(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "control-group.key").write_bytes(text.encode(errors="surrogateescape"))
    made = control_group(0.01, tmp_path)
    assert "control-group.key: is no key" in caplog.text
    assert made == control_group(0.01, tmp_path)


def test_key_that_cannot_be_kept_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert control_group(0.01, tmp_path / "missing").share == 0.01
    assert "the next start chooses another control group" in caplog.text


def decided(token: Token, ethernet_rates: dict[RateKind, str]) -> Decision:
    """The decision for a subflow on Ethernet beside one on Wi-Fi."""
    ethernet = replace(ETHERNET, rates={kind: Rate.parse(text) for kind, text in ethernet_rates.items()})
    networks = (WIFI, ethernet)
    both = replace(connection(1, subflow("10.1.0.2"), subflow("10.2.0.2")), token=token)
    capped, _ = decide(
        both, Locator(networks), lambda _, a: a, as_configured(networks), paused=False, control_group=HALF
    )
    return capped


CAPS = {RateKind.CAP: "1mbit", RateKind.UPLINK_CAP: "500kbit"}


def test_connection_in_the_group_has_no_cap_of_downloads() -> None:
    free = decided(IN_GROUP, CAPS)
    assert (free.downlink.share, free.downlink.reason) == (None, "in the control group")
    assert free.of(Direction.UPLINK) == decided(OUTSIDE, CAPS).uplink
    capped = decided(OUTSIDE, CAPS).downlink.share
    assert capped is not None
    assert capped.kind is RateKind.CAP


def test_limit_holds_in_the_group() -> None:
    limited = decided(IN_GROUP, {RateKind.CAP: "1mbit", RateKind.LIMIT: "5mbit"}).downlink
    assert limited.share is not None
    assert (limited.share.kind, limited.reason) == (RateKind.LIMIT, "limit of the network")


def test_reason_names_the_group_only_where_a_cap_would_apply(tmp_path: Path) -> None:
    running = LoopOnModels(tmp_path, control_group=HALF)
    alone = replace(connection(1, subflow("10.1.0.3")), token=IN_GROUP)
    (decision,) = running.show(alone).decisions[IN_GROUP]
    assert decision.downlink.reason == "no live subflow on a more preferred network"


def test_loop_caps_only_connections_outside_the_group(tmp_path: Path) -> None:
    running = LoopOnModels(tmp_path, control_group=HALF)
    snapshot = running.show(
        replace(connection(1, subflow("10.1.0.2"), subflow("10.2.0.2")), token=IN_GROUP),
        replace(connection(2, subflow("10.1.0.3"), subflow("10.2.0.3")), token=OUTSIDE),
    )
    assert list(snapshot.throttled) == [ends("10.1.0.3")]


def ended(*, is_control: bool = False, seconds: float = 1.0, sent: int = 1, with_cap: int = 0) -> EndedConnection:
    return EndedConnection(Token(1), is_control, seconds, sent, with_cap)


def test_loop_compares_what_ends_while_caps_are_applied(tmp_path: Path) -> None:
    running = LoopOnModels(tmp_path, control_group=HALF)
    running.kernel.ended = [ended(sent=5), ended(is_control=True, sent=7)]
    running.show()
    groups = running.comparison.groups
    assert (groups.capped.sent, groups.control.sent) == (Sums(1, 5, 25), Sums(1, 7, 49))
    running.operator.pause(Pause(None))
    running.kernel.ended = [ended(sent=5)]
    running.loop.step()
    assert running.comparison.groups == groups
    assert not running.kernel.ended


def test_record_of_the_kernel_is_read() -> None:
    record = Struct("=QQQII").pack(1_500_000_000, 10, 4, 77, 1)
    assert ended_connection(record) == EndedConnection(Token(77), True, 1.5, 10, 4)


def sums(values: Iterable[int]) -> Sums:
    total = Sums()
    for value in values:
        total = total.plus(value)
    return total


def group(pairs: Iterable[tuple[int, int]]) -> GroupSums:
    """Of connections that sent so much, with a cap and in all."""
    total = GroupSums()
    for with_cap, sent in pairs:
        total = total.plus(ended(sent=sent, with_cap=with_cap))
    return total


def test_difference_of_means_is_that_of_welch() -> None:
    # 1 to 30: mean 15.5, variance 30 * 31 / 12. Ten times 12, 12, 102: mean 42, variance 10 * 5400 / 29.
    first, second = 77.5 / 30, 54_000 / 29 / 30
    degrees = (first + second) ** 2 / (first**2 / 29 + second**2 / 29)
    interval = accounting.difference_of_means(sums(range(1, 31)), sums([12, 12, 102] * 10))
    assert interval is not None
    assert sum(interval) / 2 == pytest.approx(15.5 - 42)
    assert (interval.high - interval.low) / 2 == pytest.approx(student(degrees) * math.sqrt(first + second), abs=1e-3)


def student(degrees: float) -> float:
    """The quantile for 95 %, both sides, by integration of the density: slow, and independent of the product."""
    factor = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    step, x, inside = 1e-4, 0.0, 0.0
    while inside < 0.475:
        inside += step * factor * (1 + (x + step / 2) ** 2 / degrees) ** (-(degrees + 1) / 2)
        x += step
    return x


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # Tables of Student's distribution, 0.975.
    [(29, 2.04523), (30, 2.04227), (40, 2.02108), (60, 2.00030), (120, 1.97993), (1e9, 1.95996)],
)
def test_quantile_is_that_of_the_tables(degrees: float, quantile: float) -> None:
    assert accounting._student(degrees) == pytest.approx(quantile, abs=2e-5)


def test_difference_of_shares_by_hand() -> None:
    # Half of the connections sent 10 of 20 bytes with a cap, half 30 of 40: the share is 2/3. The residuals
    # 10 - 40/3 and 30 - 80/3 are -10/3 and 10/3, so their variance is 40 / 39 * 100 / 9, and that of the share
    # this / 40 / 30^2. The other group has no variance.
    capped, control = group([(10, 20), (30, 40)] * 20), group([(20, 20)] * 30)
    interval = accounting.difference_of_shares(capped, control)
    error = math.sqrt(40 / 39 * 100 / 9 / 40) / 30
    assert interval is not None
    assert sum(interval) / 2 == pytest.approx(2 / 3 - 1)
    assert (interval.high - interval.low) / 2 == pytest.approx(student(39) * error, abs=1e-5)


def test_groups_without_variance_differ_exactly() -> None:
    assert accounting.difference_of_means(sums([7] * 30), sums([5] * 30)) == Interval(2.0, 2.0)


@pytest.mark.parametrize(("capped", "control", "is_enough"), [(29, 1000, False), (1000, 29, False), (30, 30, True)])
def test_small_groups_are_not_compared(capped: int, control: int, is_enough: bool) -> None:
    comparison = Comparison(0.5)
    download = ended(sent=2_000_000, with_cap=1_000_000)
    comparison.note([download] * capped + [download._replace(is_control=True)] * control)
    assert [each is not None for each in comparison.groups.differences] == [is_enough] * 3


def test_groups_that_sent_nothing_have_no_share() -> None:
    empty = group([(0, 0)] * 40)
    assert empty.share_with_cap is None
    assert accounting.difference_of_shares(empty, empty) is None


def test_rate_is_that_of_large_connections_with_a_duration() -> None:
    sent = GroupSums()
    for each in (ended(sent=3_000_000, seconds=2.0), ended(sent=999_999), ended(sent=3_000_000, seconds=0.0)):
        sent = sent.plus(each)
    assert sent.rates == Sums(1, 1_500_000, 1_500_000**2)
    assert sent.sent.number == 3


@given(st.lists(st.integers(0, 2), min_size=30, max_size=40))
def test_sums_of_large_numbers_stay_exact(values: list[int]) -> None:
    """Variances from sums lose all digits in floating point where values are large and close together."""
    base = 2**50
    interval = accounting.difference_of_means(sums(base + value for value in values), sums([base] * 30))
    error = math.sqrt(statistics.variance(values) / len(values))
    assert interval is not None
    assert interval.high - interval.low == pytest.approx(2 * accounting._student(len(values) - 1) * error, abs=1e-6)


def test_network_without_a_cap_is_as_before() -> None:
    uncapped = network("lte", 3, 3)
    networks = (WIFI, uncapped)
    both = replace(connection(1, subflow("10.3.0.2"), subflow("10.2.0.2")), token=IN_GROUP)
    decisions = decide(
        both, Locator(networks), lambda _, a: a, as_configured(networks), paused=False, control_group=HALF
    )
    assert decisions[0].downlink.reason == "network has no cap"
