"""What flows, compared with what is applied: differences that last are reported, rates are those of the sockets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from examples import ETHERNET, WIFI, connection, ends, kernel_plan, subflow
from immutables import Map
from policy_oracle import decision_table

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import Direction, FourTuple, RateKind, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.observing.enforcement import GRACE_SECONDS, Enforcement
from mptcp_throttled.vocabulary.decision import Share, Throttle
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.observation import Observation, SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot, Throttled
from mptcp_throttled.vocabulary.traffic import SocketTotals

CAPPED, FREE, STRANGER = ends("10.1.0.2"), ends("10.2.0.2"), ends("192.0.2.1")
CAP = Rate.parse("1mbit")
PACE = 117_500


@pytest.fixture
def snapshot() -> Snapshot:
    """A capped subflow and its free sibling, with the kernel program that paces."""
    table = decision_table((WIFI, ETHERNET))
    table.replace({Token(1): connection(1, subflow("10.1.0.2"), subflow("10.2.0.2"))})
    plan = kernel_plan({2: CAP}, {CAPPED: 2}, {CAPPED: PACE})
    features: dict[str, FeatureState] = {FeatureName.STEERING: FeatureState("daemon.steering is false")}
    return Snapshot(decisions=table.decisions, applied=plan, classifier="socket", features=features)


def state(minor: int, pace: int | None, sent: int) -> SocketState:
    return SocketState(minor, pace, SocketTotals(sent))


def observe(
    snapshot: Snapshot,
    sent_per_second: dict[FourTuple, int],
    minor: int = 2,
    *,
    paced: bool = True,
    counted: float = 1.1,
) -> Enforcement:
    """The enforcement after one observation a second, until a difference would have lasted for long enough."""
    enforcement = Enforcement()
    for second in range(round(GRACE_SECONDS) + 3):
        sockets = {
            end: state(minor if end == CAPPED else 0, PACE if paced and end == CAPPED else None, sent * second)
            for end, sent in sent_per_second.items()
        }
        classes = {2: round(counted * sent_per_second.get(CAPPED, 0) * second)}
        enforcement = enforcement.after(Observation(float(second), sockets, classes), snapshot)
    return enforcement


def test_held_subflow_needs_no_pace(snapshot: Snapshot) -> None:
    steered = replace(snapshot, features={FeatureName.STEERING: FeatureState()})
    assert observe(steered, {CAPPED: 100_000}, paced=False).not_enforced == {}
    assert observe(snapshot, {CAPPED: 100_000}, paced=False).not_enforced == {CAPPED: "its socket is not paced"}


def test_cap_without_a_qdisc_is_compared_with_its_rate(snapshot: Snapshot) -> None:
    (decision, _) = snapshot.decisions[Token(1)]
    assert decision.downlink.share is not None
    throttled = Throttled(decision, Throttle(decision.downlink.share, CAP), 2, None)
    unheld = replace(snapshot, without_qdisc=True, throttled=Map({CAPPED: throttled}))
    assert observe(unheld, {CAPPED: 110_000}, minor=0, counted=0).not_enforced == {}
    too_fast = {CAPPED: "it carries more than its rate, and there is no HTB that could hold it"}
    assert observe(unheld, {CAPPED: 300_000}, minor=0, counted=0).not_enforced == too_fast


def test_burst_is_tolerated_once_and_what_it_lacks_is_refilled(snapshot: Snapshot) -> None:
    (decision, _) = snapshot.decisions[Token(1)]
    assert decision.downlink.share is not None
    throttle = Throttle(decision.downlink.share, replace(CAP, burst=1_000_000))
    unheld = replace(snapshot, without_qdisc=True, throttled=Map({CAPPED: Throttled(decision, throttle, 2, None)}))
    assert observe(unheld, {CAPPED: 300_000}, minor=0, counted=0).not_enforced == {}, "within the burst"
    assert observe(unheld, {CAPPED: 700_000}, minor=0, counted=0).not_enforced != {}
    # Bursts with a second of quiet between them: 240 kB a second, where 118 are allowed.
    enforcement, sent = Enforcement(), 0
    for second in range(30):
        sent += 480_000 * (second % 2)
        enforcement = enforcement.after(Observation(float(second), {CAPPED: state(0, None, sent)}, {}), unheld)
    assert enforcement.not_enforced != {}


def test_rates_are_what_sockets_send(snapshot: Snapshot) -> None:
    enforcement = observe(snapshot, {CAPPED: 100_000, FREE: 5_000_000})
    assert (enforcement.rates[CAPPED], enforcement.long_rates[FREE]) == (100_000, 5_000_000)
    assert enforcement.network_rates == {"ethernet": 100_000, "wifi": 5_000_000}
    assert enforcement.not_enforced == {}


@pytest.mark.parametrize(
    ("sent_per_second", "minor", "counted", "is_proof"),
    [(0, 0, 1.1, False), (2_900, 2, 0.0, False), (10_000, 2, 0.0, True)],
)
def test_idle_subflow_and_few_bytes_prove_nothing(
    snapshot: Snapshot, sent_per_second: int, minor: int, counted: float, is_proof: bool
) -> None:
    assert bool(observe(snapshot, {CAPPED: sent_per_second}, minor, counted=counted).not_enforced) == is_proof


@pytest.mark.parametrize(
    ("minor", "paced", "counted", "why"),
    [
        (0, True, 1.1, "its socket is not in its class"),
        (3, True, 1.1, "its socket is not in its class"),
        (2, False, 1.1, "its socket is not paced"),
        (2, True, 0.4, "its packets do not reach its class, only its pace limits it"),
        (2, False, 0.4, "its packets do not reach its class"),
    ],
)
def test_difference_that_lasts_is_reported(
    snapshot: Snapshot, minor: int, paced: bool, counted: float, why: str
) -> None:
    enforcement = observe(snapshot, {CAPPED: 100_000}, minor, paced=paced, counted=counted)
    assert enforcement.not_enforced == {CAPPED: why}


def test_free_subflow_that_the_kernel_throttles_is_reported(snapshot: Snapshot) -> None:
    free = replace(snapshot, applied=kernel_plan({}))
    assert observe(free, {CAPPED: 100_000}).not_enforced == {CAPPED: "its socket has a class, but no rate applies"}
    assert observe(free, {CAPPED: 100_000}, minor=0).not_enforced == {
        CAPPED: "its socket has a pace, but no rate applies"
    }


def test_difference_that_has_just_begun_is_not_reported_yet(snapshot: Snapshot) -> None:
    enforcement = observe(snapshot, {CAPPED: 100_000})
    assert enforcement.latest is not None
    later = Observation(6.0, {CAPPED: state(0, PACE, 700_000)}, {2: 700_000})
    enforcement = enforcement.after(later, snapshot)
    assert CAPPED in enforcement.differences[Direction.DOWNLINK]
    assert enforcement.not_enforced == {}


def test_difference_seen_once_is_not_reported_if_observations_are_rare(snapshot: Snapshot) -> None:
    rare = 2 * GRACE_SECONDS
    enforcement = Enforcement()
    for number in range(2):
        sockets = {CAPPED: state(0, PACE, 600_000 * number)}
        enforcement = enforcement.after(Observation(rare * number, sockets, {2: 660_000 * number}), snapshot)
    assert CAPPED in enforcement.differences[Direction.DOWNLINK]
    assert enforcement.not_enforced == {}


def test_sockets_of_no_known_subflow_are_not_reported(snapshot: Snapshot) -> None:
    enforcement = Enforcement()
    for second in range(6):
        sockets = {STRANGER: state(9, PACE, 100_000 * second)}
        enforcement = enforcement.after(Observation(float(second), sockets, {}), snapshot)
    assert enforcement.not_enforced == {}


def test_long_rates_cover_the_last_ten_to_twenty_seconds(snapshot: Snapshot) -> None:
    enforcement = Enforcement()
    for second in range(31):
        sent = 1000 * second if second <= 10 else 10_000
        observation = Observation(float(second), {FREE: state(0, None, sent)}, {})
        enforcement = enforcement.after(observation, snapshot)
        if second == 10:
            assert enforcement.long_rates[FREE] == 1000
    assert enforcement.long_rates[FREE] == 0


SHARE = Share("ethernet", RateKind.UPLINK_CAP, "10.1.0.2")
UNSEEN = "its ACKs do not reach the program that throttles uplinks"
NOT_POLICED = "its uplink carries more than its rate: its data do not reach the program that drops the excess"


def uploading(rate: str = "1mbit", *, policed: bool = False) -> Snapshot:
    """The uplink of `CAPPED` is capped."""
    uplinks: Map[FourTuple, Throttle] = Map({CAPPED: Throttle(SHARE, Rate.parse(rate))})
    return Snapshot(classifier="socket", uplinks=uplinks, policed=frozenset({CAPPED} if policed else ()))


def upload(snapshot: Snapshot, received_each_second: Iterable[int], seen: float = 1.0) -> Enforcement:
    """The enforcement after an observation before each number and behind the last.

    Of what was received, the program has seen a part acknowledged.
    """
    enforcement, received = Enforcement(), 0
    for second, added in enumerate((0, *received_each_second)):
        received += added
        sockets = {CAPPED: SocketState(0, None, SocketTotals(received=received))}
        observation = Observation(float(second), sockets, {}, {CAPPED: round(seen * received)})
        enforcement = enforcement.after(observation, snapshot)
    return enforcement


@pytest.mark.parametrize(
    ("received", "seen", "is_reported"),
    [(400_000, 0, True), (10_000, 0.4, True), (400_000, 0.6, False), (2_900, 0, False)],
)
def test_uplink_whose_acks_the_program_does_not_see_is_reported(received: int, seen: float, is_reported: bool) -> None:
    enforcement = upload(uploading(), [received] * 4, seen)
    assert enforcement.not_enforced == ({CAPPED: UNSEEN} if is_reported else {})
    assert (enforcement.why_not(Direction.UPLINK, CAPPED) == UNSEEN) == is_reported
    assert enforcement.why_not(Direction.DOWNLINK, CAPPED) is None


def test_free_uplink_is_not_compared() -> None:
    assert upload(replace(uploading(), uplinks=Map()), [400_000] * 4, seen=0).not_enforced == {}


@pytest.mark.parametrize("rate", ["8kbit", "250kbit", "1mbit"])
@pytest.mark.parametrize("policed", [False, True])
def test_pulses_of_a_slow_uplink_are_not_reported(rate: str, policed: bool) -> None:
    second = Rate.parse(rate).bits_per_second // 8
    pulses = [64 << 10 if number % (1 + (64 << 10) // second) == 0 else 0 for number in range(40)]
    assert upload(uploading(rate, policed=policed), pulses).not_enforced == {}


def test_client_that_has_not_been_policed_yet_is_not_reported() -> None:
    assert upload(uploading(), [400_000] * 5).not_enforced == {}


@pytest.mark.parametrize(("rate", "received"), [("250kbit", 60_000), ("1mbit", 200_000), ("1mbit", 5_000_000)])
def test_policed_uplink_that_exceeds_its_rate_is_reported(rate: str, received: int) -> None:
    # In the first second the program that drops the excess may not have been attached yet.
    enforcement = upload(uploading(rate, policed=True), [received] * 5)
    assert enforcement.not_enforced == {CAPPED: NOT_POLICED}


def test_policed_uplink_may_have_exceeded_its_rate_before() -> None:
    assert upload(uploading(policed=True), [5_000_000, *[115_000, 120_000] * 10]).not_enforced == {}


def test_uplink_that_obeys_again_is_enforced_at_once() -> None:
    assert upload(uploading(policed=True), [*[1_000_000] * 6, 100_000]).not_enforced == {}
    assert upload(uploading(), [*[1_000_000] * 6, 0], seen=0).not_enforced == {}


def test_both_directions_of_a_subflow_may_be_reported(snapshot: Snapshot) -> None:
    both, enforcement = replace(snapshot, uplinks=uploading().uplinks), Enforcement()
    for second in range(round(GRACE_SECONDS) + 3):
        totals = SocketTotals(100_000 * second, received=100_000 * second)
        sockets = {CAPPED: SocketState(0, PACE, totals)}
        enforcement = enforcement.after(Observation(float(second), sockets, {2: 110_000 * second}), both)
    assert enforcement.not_enforced == {CAPPED: f"its socket is not in its class; {UNSEEN}"}
    assert enforcement.why_not(Direction.DOWNLINK, CAPPED) == "its socket is not in its class"
