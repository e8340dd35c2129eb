import pytest
from examples import ETHERNET, WIFI, connection, subflow
from policy_oracle import as_configured, decision_table, reconfigure

from mptcp_throttle.model import Connection, Direction, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.enforcing.share_changes import caps_of, share_changes
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.vocabulary.decision import Previous

NETWORKS = (WIFI, ETHERNET.with_rates({RateKind.CAP: None, RateKind.UPLINK_CAP: Rate.parse("250kbit")}))
BOTH = connection(1, subflow("10.1.0.1"), subflow("10.2.0.1"))
LONE = connection(1, subflow("10.1.0.1"))
OTHER = connection(2, subflow("10.1.0.1"), subflow("10.2.0.1"))


@pytest.fixture
def table() -> DecisionTable:
    return decision_table(NETWORKS)


def take(table: DecisionTable, *connections: Connection) -> dict[str, str | None]:
    """Give the table these connections. The changes: client address -> kind, "free", None for one that has ended."""
    return changes(table, table.replace({one.token: one for one in connections}))


def changes(table: DecisionTable, previous: Previous) -> dict[str, str | None]:
    shown: dict[str, str | None] = {}
    for ends, decision in share_changes(previous, table.decisions, Direction.UPLINK).items():
        share = None if decision is None else decision.uplink.share
        shown[str(ends.client.address)] = None if decision is None else "free" if share is None else share.kind
    return shown


def test_only_subflows_with_another_share_are_named(table: DecisionTable) -> None:
    assert take(table, LONE) == {}
    assert take(table, BOTH) == {"10.1.0.1": "uplink cap"}
    assert take(table, connection(1, *BOTH.subflows, subflow("10.2.0.1", 40001))) == {}
    assert take(table, LONE) == {"10.1.0.1": "free"}


def test_ended_subflow_is_named_if_it_was_throttled(table: DecisionTable) -> None:
    take(table, BOTH)
    assert take(table) == {"10.1.0.1": None}
    take(table, LONE)
    assert take(table) == {}


def test_subflow_of_a_new_connection_on_the_same_ends_is_not_named(table: DecisionTable) -> None:
    take(table, BOTH)
    assert take(table, OTHER) == {}


def test_pause_is_a_change_and_a_new_rate_of_the_same_share_is_none(table: DecisionTable) -> None:
    take(table, BOTH)
    faster = (WIFI, NETWORKS[1].with_rates({RateKind.UPLINK_CAP: Rate.parse("1mbit")}))
    assert changes(table, reconfigure(table, faster)) == {}
    assert changes(table, reconfigure(table, faster, paused=True)) == {"10.1.0.1": "free"}


def caps(*connections: Connection, rates: dict[RateKind, Rate | None]) -> dict[str, str | None]:
    """What steering gets for the subflows of these connections: client address -> rate, None for one without a cap."""
    networks = (WIFI, ETHERNET.with_rates(rates))
    table, terms = decision_table(networks), as_configured(networks)
    table.replace({one.token: one for one in connections})
    decisions = {d.subflow.ends: d for each in table.decisions.values() for d in each}
    return {
        str(ends.client.address): None if throttle is None else str(throttle.rate)
        for ends, throttle in caps_of(decisions, terms).items()
    }


def test_caps_of_downloads_alone_are_for_steering() -> None:
    slow, fast = Rate.parse("1mbit"), Rate.parse("4mbit")
    assert caps(BOTH, rates={RateKind.CAP: slow}) == {"10.1.0.1": "1mbit", "10.2.0.1": None}
    assert caps(LONE, rates={RateKind.CAP: slow}) == {"10.1.0.1": None}
    assert caps(LONE, rates={RateKind.CAP: slow, RateKind.LIMIT: fast}) == {"10.1.0.1": None}, "a limit is no cap"
    assert caps(BOTH, rates={RateKind.CAP: None, RateKind.UPLINK_CAP: slow}) == {"10.1.0.1": None, "10.2.0.1": None}


def test_subflow_that_has_ended_has_no_cap() -> None:
    ends = BOTH.subflows[0].ends
    assert caps_of({ends: None}, as_configured(NETWORKS)) == {ends: None}
