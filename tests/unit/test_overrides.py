import math
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address

import pytest
from examples import ETHERNET, WIFI, cap, network

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import AccessNetwork, RateKind
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate
from mptcp_throttled.control.operator_state import objection
from mptcp_throttled.control.requests import requested_override
from mptcp_throttled.policy.current_terms import CurrentTerms
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.terms import Facts, RuleName, Term

FIVE = Rate.parse("5mbit")
LIMITED = network("lte", 4, 2, cap="1mbit", limit="8mbit").with_rates({RateKind.UPLINK_CAP: Rate.parse("250kbit")})
NETWORKS = (WIFI, ETHERNET, LIMITED)


def limit(name: str, rate: str) -> Override:
    return Override(name, RateKind.LIMIT, Rate.parse(rate), None)


def rates(network: AccessNetwork, *overrides: Override) -> Mapping[RateKind, Rate]:
    return terms_of([network], 0.0, Facts(overrides)).rates[network.name]


def test_override_replaces_the_configured_rate() -> None:
    assert rates(ETHERNET, cap("ethernet", FIVE), cap("lte", None)) == {RateKind.CAP: FIVE}
    assert rates(ETHERNET, cap("ethernet", None)) == {}
    assert rates(ETHERNET) == ETHERNET.rates


def test_override_of_an_uplink_rate_leaves_the_other_direction() -> None:
    changed = rates(LIMITED, Override("lte", RateKind.UPLINK_CAP, FIVE, None))
    assert changed == {**LIMITED.rates, RateKind.UPLINK_CAP: FIVE}


def test_override_is_the_reason_until_its_end() -> None:
    overrides = cap("lte", FIVE, 60.0), limit("lte", "9mbit")
    present = terms_of([LIMITED], 59.0, Facts(overrides))
    assert present.next_change == 60.0
    assert present.by_network["lte"] == {
        RateKind.CAP: Term(FIVE, "by hand", 60.0, RuleName.BY_HAND),
        RateKind.LIMIT: Term(Rate.parse("9mbit"), "by hand, until reset", rule=RuleName.BY_HAND),
        RateKind.UPLINK_CAP: Term(LIMITED.rates[RateKind.UPLINK_CAP]),
    }
    later = terms_of([LIMITED], 60.0, Facts(overrides))
    assert (later.by_network["lte"][RateKind.CAP], later.next_change) == (Term(LIMITED.rates[RateKind.CAP]), None)


def test_terms_are_the_same_values_until_they_change() -> None:
    current, facts = CurrentTerms(), Facts((cap("lte", FIVE, 60.0),))
    terms = current.update((WIFI, LIMITED), 0.0, facts)
    configured, effective = current.configured, current.effective
    assert effective == (WIFI, LIMITED.with_rates({RateKind.CAP: FIVE}))
    reloaded = replace(WIFI), replace(LIMITED)
    for now in (1.0, 59.9):
        assert current.update(reloaded, now, facts) is terms
        assert (current.configured is configured, current.effective is effective) == (True, True)
    assert current.update(reloaded, 60.0, facts) is not terms
    assert (current.configured is configured, current.effective) == (True, (WIFI, LIMITED))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (cap("dsl", FIVE), "dsl: no such access network; allowed: wifi, ethernet, lte"),
        (cap("wifi", FIVE), "wifi: is a most preferred network, where a cap never applies; allowed: --limit"),
        (cap("lte", Rate.parse("9mbit")), "lte: cap 9mbit would be more than limit 8mbit; allowed: up to it"),
        (limit("lte", "500kbit"), "lte: cap 1mbit would be more than limit 500kbit; allowed: up to it"),
        (
            Override("wifi", RateKind.UPLINK_CAP, FIVE, None),
            "wifi: is a most preferred network, where a cap never applies; allowed: --limit",
        ),
        (
            Override("lte", RateKind.UPLINK_LIMIT, Rate.parse("200kbit"), None),
            "lte: uplink cap 250kbit would be more than uplink limit 200kbit; allowed: up to it",
        ),
        (limit("wifi", "500kbit"), None),
        (cap("lte", Rate.parse("8mbit")), None),
    ],
)
def test_override_must_fit_its_network(override: Override, line: str | None) -> None:
    assert objection(override, [override], NETWORKS) == line


def test_override_may_fit_because_of_another() -> None:
    both = (cap("lte", Rate.parse("9mbit")), limit("lte", "12mbit"))
    assert [objection(override, both, NETWORKS) for override in both] == [None, None]


def test_set_rate_arguments_become_an_override() -> None:
    assert requested_override("lte", "downlink", "cap", "5mbit", 60, 1000.0) == cap("lte", FIVE, 1060.0)
    assert requested_override("lte", "downlink", "limit", None, None, 1000.0) == Override(
        "lte", RateKind.LIMIT, None, None
    )
    of_client = requested_override("lte", "downlink", "cap", "5mbit", 60, 1000.0, "10.4.0.2")
    assert of_client == replace(cap("lte", FIVE, 1060.0), client=ip_address("10.4.0.2"))


@pytest.mark.parametrize(
    ("argument", "value", "line"),
    [
        ("network", 5, "network: 5: allowed: the name of an access network"),
        ("direction", "up", "direction: 'up': allowed: downlink, uplink"),
        ("kind", "foo", "kind: 'foo': allowed: cap, limit"),
        ("kind", ["cap"], "kind: ['cap']: allowed: cap, limit"),
        ("rate", "fast", "rate: 'fast': is not a rate; allowed: a number with bit, kbit"),
        ("rate", 5, "rate: 5: is not text; allowed: a number with bit, kbit"),
        ("rate", int("9" * 400), f"rate: {'9' * 57}...: is not text; allowed: a number with bit"),
        ("client", 5, "client: 5: is not text; allowed: an address"),
        ("client", "phone", "client: 'phone': is not an address; allowed: such as 10.1.0.2 or fd00:1::2"),
        ("client", "10.4.0.0/24", "client: '10.4.0.0/24': is not an address; allowed: "),
        ("client", "fe80::1%eth0", "client: 'fe80::1%eth0': has a zone (%eth0), and packets never have one; allowed: "),
        *(
            ("seconds", value, f"seconds: {value!r}: allowed: a number above 0, up to 315360000; or null")
            for value in (-5, 0, 315360001, math.nan, math.inf, "5", [5])
        ),
        ("seconds", True, "seconds: true: allowed: a number above 0, up to 315360000; or null"),
        ("network", None, "network: null: allowed: the name of an access network"),
    ],
)
def test_set_rate_refusal_names_the_argument(argument: str, value: Json, line: str) -> None:
    arguments = {
        "network": "lte",
        "direction": "downlink",
        "kind": "cap",
        "rate": "5mbit",
        "seconds": 60,
        argument: value,
    }
    with pytest.raises(UserError) as refused:
        requested_override(**arguments, now=1000.0)
    assert str(refused.value).startswith(line)
