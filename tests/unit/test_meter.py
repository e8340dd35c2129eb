"""What subflows have carried: every byte once, over the end of a subflow and the restart of the daemon."""

from __future__ import annotations

from itertools import pairwise

from examples import ends

from mptcp_throttle.model import FourTuple, Token
from mptcp_throttled.accounting.meter import FORGET_SECONDS, LiveSubflow, Meter
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals, SteeredTotals, Traffic

CLIENT = ends("10.1.0.2")


def live(sent: int, cookie: int = 1, *, throttled: bool = False) -> dict[FourTuple, LiveSubflow]:
    return {CLIENT: LiveSubflow(cookie, SocketTotals(sent), None, throttled)}


def closed(sent: int, cookie: int = 1) -> ClosedSubflow:
    return ClosedSubflow(Token(1), CLIENT, cookie, SocketTotals(sent))


def sent(meter: Meter, at: float, now: dict, ended: tuple[ClosedSubflow, ...] = ()) -> list[int]:  # type: ignore[type-arg]
    return [each.traffic.sent for each in meter.count(at, now, ended)]


def test_live_subflow_counts_what_it_has_carried_since_the_last_look() -> None:
    meter = Meter({}, {})
    assert sent(meter, 1, live(100)) == [100]
    assert sent(meter, 2, live(350)) == [250]
    assert sent(meter, 3, live(350)) == []


def test_what_was_carried_before_the_first_instance_does_not_count() -> None:
    other = {ends("10.1.0.3"): LiveSubflow(2, SocketTotals(70), None, throttled=False)}
    meter = Meter({}, {1: SocketTotals(100), 3: SocketTotals(30)})
    assert sent(meter, 1, live(100)) == []
    assert sent(meter, 2, live(150)) == [50]
    assert sent(meter, 3, live(150) | other, (closed(45, cookie=3),)) == [15, 70]


def test_end_of_a_subflow_counts_the_rest_or_all_of_it() -> None:
    assert sent(Meter({}, {}), 1, {}, (closed(500),)) == [500]
    meter = Meter({}, {})
    sent(meter, 1, live(100))
    assert sent(meter, 2, {}, (closed(180),)) == [80]
    assert meter.counted == {}


def test_subflow_that_closes_while_it_is_listed_counts_once() -> None:
    meter = Meter({}, {})
    sent(meter, 1, live(100))
    assert sent(meter, 2, live(150), (closed(180),)) == [80]
    assert sent(meter, 3, {}) == []


def test_end_that_is_reported_twice_counts_once() -> None:
    meter = Meter({}, {})
    assert sent(meter, 1, {}, (closed(180), closed(180))) == [180]
    assert sent(meter, 2, {}, (closed(180),)) == []


def test_end_that_is_reported_late_counts_the_rest_only() -> None:
    meter = Meter({}, {})
    sent(meter, 1, live(100))
    assert sent(meter, 2, {}) == []
    assert sent(meter, FORGET_SECONDS, {}, (closed(180),)) == [80]


def test_socket_whose_end_is_never_reported_is_forgotten() -> None:
    meter = Meter({}, {})
    sent(meter, 1, live(100))
    sent(meter, 2 + FORGET_SECONDS, {})
    assert meter.counted == {}


def test_socket_that_takes_long_to_close_counts_once() -> None:
    closing: set[int] | None = {1}
    meter = Meter({}, {}, lambda: closing)
    sent(meter, 1, live(100))
    sent(meter, 2 + FORGET_SECONDS, {})
    assert sent(meter, 3 + FORGET_SECONDS, {}, (closed(180),)) == [80]
    sent(meter, 4, live(100, cookie=2))
    closing = None
    sent(meter, 5 + FORGET_SECONDS, {})
    assert sent(meter, 6 + FORGET_SECONDS, {}, (closed(180, cookie=2),)) == [80]


def test_same_four_tuple_with_another_socket_is_another_subflow() -> None:
    meter = Meter({}, {})
    sent(meter, 1, live(100))
    assert sent(meter, 2, live(30, cookie=2), (closed(120),)) == [20, 30]


def test_next_instance_goes_on_from_what_was_counted() -> None:
    meter = Meter({}, {})
    sent(meter, 1, live(100))
    after = Meter(meter.counted, {})
    assert sent(after, 5, live(160)) == [60]
    opened_meanwhile = {ends("10.1.0.3"): LiveSubflow(2, SocketTotals(70), None, throttled=False)}
    assert sent(Meter(meter.counted, {}), 5, opened_meanwhile) == [70]


def test_subflow_counts_as_throttled_if_it_was_so_at_both_looks() -> None:
    meter = Meter({}, {})
    for at, now, expected in (
        (1, live(100), 0),
        (2, live(200, throttled=True), 0),
        (3, live(300, throttled=True), 100),
    ):
        ((_, traffic, _),) = meter.count(at, now, ())
        assert traffic.ip_sent_throttled == expected
    ((_, traffic, _),) = meter.count(4, {}, [closed(350)])
    assert (traffic.ip_sent_throttled, traffic.closed) == (50, 1)


def test_segments_wrap_around_at_32_bits() -> None:
    added = SocketTotals(segments_out=5, data_in=1).since(SocketTotals(segments_out=2**32 - 5, data_in=2**32 - 1))
    assert (added.segments_out, added.data_in) == (10, 2)


def test_acks_that_steering_has_made_are_no_ip_bytes_of_the_client() -> None:
    before = SocketTotals(segments_in=10, steered=SteeredTotals(own_acks=4))
    added = SocketTotals(segments_in=15, steered=SteeredTotals(own_acks=5)).since(before)
    assert added == SocketTotals(segments_in=5, steered=SteeredTotals(own_acks=1))
    assert Traffic.of(added, 4, throttled=False, closed=False, rtt=None).ip_received == 4 * 64


def test_steering_counts_from_0_when_its_programs_are_loaded_again() -> None:
    before = SteeredTotals(own_acks=4, held_back_ms=300)
    assert SteeredTotals(7, 500).since(before) == SteeredTotals(3, 200)
    for loaded_again in (SteeredTotals(7, 200), SteeredTotals(1, 500)):
        assert loaded_again.since(before) == loaded_again


def test_parts_of_milliseconds_add_up() -> None:
    looks = [SteeredTotals.of(0, 400_000 * number) for number in range(11)]
    assert sum(after.since(before).held_back_ms for before, after in pairwise(looks)) == 4


def test_time_held_back_counts_once_over_looks_and_the_end() -> None:
    def totals(held_back_ms: int) -> SocketTotals:
        return SocketTotals(steered=SteeredTotals(1, held_back_ms))

    def held_back(at: float, *ended: ClosedSubflow, live_ms: int | None = None) -> list[int]:
        now = {} if live_ms is None else {CLIENT: LiveSubflow(1, totals(live_ms), None, throttled=True)}
        return [each.traffic.held_back_ms for each in meter.count(at, now, ended)]

    meter = Meter({}, {})
    assert held_back(1, live_ms=30) == [30]
    assert held_back(2, live_ms=100) == [70]
    assert held_back(3, ClosedSubflow(Token(1), CLIENT, 1, totals(120))) == [20]


def test_ip_bytes_have_the_headers_of_every_segment() -> None:
    totals = SocketTotals(sent=1420, received=0, segments_out=2, segments_in=1, data_out=1)
    v4 = Traffic.of(totals, 4, throttled=False, closed=False, rtt=0.1)
    assert (v4.ip_sent, v4.ip_received) == (1500 + 64, 64)
    v6 = Traffic.of(totals, 6, throttled=False, closed=False, rtt=None)
    assert (v6.ip_sent, v6.ip_received) == (1520 + 84, 84)
    total = v4.plus(v6)
    assert (total.sent, total.rtt_seconds, total.rtt_samples) == (2840, 0.1, 1)
