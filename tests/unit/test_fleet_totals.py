"""What is believed of the totals that proxies have published, and the names under which they are."""

import random
from ipaddress import ip_address

import pytest

from mptcp_throttle.periods import Period
from mptcp_throttled.fleet.keys import MAX_FIELDS, PREFIX, checked_secret, field_of, name_of
from mptcp_throttled.fleet.totals import (
    LOWER_SECONDS,
    BelievedTotal,
    first_believed,
    is_settled,
    later_believed,
    merged,
)
from mptcp_throttled.vocabulary.budgets import AccountKey
from mptcp_throttled.vocabulary.fleet import OwnTotal, proxy_of

LINK = 1e6
MONTH = Period(1_700_000_000.0, 1_702_592_000.0)
TOTAL = OwnTotal(AccountKey("lte", "client both month"), ip_address("192.0.2.1"), MONTH, 5, 1.0)
SECRET = checked_secret("sixteen or more!")


def used(believed: dict[str, BelievedTotal]) -> int:
    return sum(each.total for each in believed.values())


def test_total_is_believed_as_far_as_its_link_has_carried_it() -> None:
    assert first_believed(400, 1000.0, 60.0, LINK).total == 400
    believed = first_believed(10**17, 1000.0, 60.0, LINK)
    assert believed.total == 60 * LINK
    assert later_believed(believed, 10**17, 1001.0, LINK).total == pytest.approx(61 * LINK, abs=1)


def test_growth_is_bounded_by_the_link_however_often_it_is_read() -> None:
    believed, now = first_believed(0, 0.0, 0.0, LINK), 0.0
    for _ in range(400):
        now += 0.25
        believed = later_believed(believed, 10**17, now, LINK)
    assert believed.total == pytest.approx(100 * LINK, abs=400)


def test_what_a_link_has_carried_while_the_server_was_away_is_believed() -> None:
    believed = later_believed(first_believed(0, 0.0, 0.0, LINK), int(500 * LINK), 500.0, LINK)
    assert believed.total == 500 * LINK


def test_time_without_reading_is_no_credit_for_later() -> None:
    believed = first_believed(0, 0.0, 0.0, LINK)
    for second in range(1, 1001):
        believed = later_believed(believed, 0, float(second), LINK)
    assert later_believed(believed, 10**17, 1001.0, LINK).total <= 6 * LINK


def test_lower_total_is_believed_once_it_has_stayed() -> None:
    believed = first_believed(900, 0.0, 60.0, LINK)
    believed = later_believed(believed, 300, 1.0, LINK)
    assert believed.total == 900
    assert later_believed(believed, 950, 2.0, LINK).total == 950
    believed = later_believed(later_believed(believed, 300, 2.0, LINK), 300, 1.0 + LOWER_SECONDS, LINK)
    assert believed.total == 300
    assert later_believed(believed, 301, 12.0, LINK).total == 301


def test_totals_are_the_same_in_any_order_and_however_often() -> None:
    history = [{"a": 100}, {"b": 50}, {"a": 200, "b": 80}, {}, {"c": 7}]
    for seed in range(20):
        chance, believed = random.Random(seed), dict[str, BelievedTotal]()  # noqa: S311
        for position, totals in enumerate(chance.choices(history, k=30) + chance.sample(history, len(history))):
            believed = merged(believed, totals, position / 10, 60.0, LINK)
        assert used(believed) == 287
        assert is_settled(believed, history[2])


def test_proxy_whose_total_is_missing_keeps_what_is_believed() -> None:
    believed = merged({}, {"a": 100, "b": 50}, 0.0, 60.0, LINK)
    assert used(merged(believed, {"b": 60}, 1.0, 61.0, LINK)) == 160


def test_totals_of_ever_other_proxies_are_bounded_and_hide_none() -> None:
    believed, earlier = merged({}, {"idle": 5, "gone": 10**6}, 0.0, 60.0, LINK), 0
    for second in range(1, 100):
        false = {f"false-{second}-{number}": 9 for number in range(100)}
        believed = merged(believed, {"idle": 5, **false}, float(second), 60.0 + second, LINK)
        assert believed["idle"].total == 5
        assert used(believed) >= earlier
        earlier = used(believed)
    assert believed["gone"].total == 10**6
    assert len(believed) == MAX_FIELDS


def test_name_of_a_hash_tells_whose_it_is_only_to_who_has_the_secret() -> None:
    plain, hashed = name_of(TOTAL, None), name_of(TOTAL, SECRET)
    assert plain == f"{PREFIX}:used:1700000000:lte:client-both-month:192.0.2.1".encode()
    assert hashed.startswith(f"{PREFIX}:used:1700000000:".encode())
    assert b"192" not in hashed.rpartition(b":")[2]
    assert hashed == name_of(TOTAL._replace(used=9, seconds=2.0), SECRET)


def test_hashes_of_different_totals_have_different_names() -> None:
    different = [
        TOTAL,
        TOTAL._replace(subject=None),
        TOTAL._replace(subject=ip_address("192.0.2.2")),
        TOTAL._replace(key=AccountKey("dsl", "client both month")),
        TOTAL._replace(key=AccountKey("lte", "client both day")),
        TOTAL._replace(period=Period(MONTH.end, MONTH.end + 1)),
    ]
    for secret in (None, SECRET):
        assert len({name_of(total, secret) for total in different}) == len(different)
    # The digest itself differs, too: the server cannot tell that two periods have the same client.
    digests = {name_of(total, SECRET).rpartition(b":")[2] for total in different}
    assert len(digests) == len(different)


@pytest.mark.parametrize("text", ["", "x" * 15, "x" * 65])
def test_secret_of_another_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"has {len(text)} characters; allowed: 16 to 64"):
        checked_secret(text)


def test_field_names_its_proxy() -> None:
    assert proxy_of(field_of("proxy-3", "0123abcd")) == "proxy-3"
    for wrong in ("proxy-3", "proxy-3.", "Proxy.0123abcd", "proxy.0123ABCD", ".0123abcd", f"{'x' * 33}.0123abcd"):
        with pytest.raises(ValueError, match="no field"):
            proxy_of(wrong)
