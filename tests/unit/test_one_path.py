"""Since when a connection has had one access network only: it had several, and those subflows have ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from examples import ETHERNET, WIFI, connection, subflow
from immutables import Map
from policy_oracle import decision_table, reconfigure

from mptcp_throttle.model import Subflow, Token
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.one_path import update_one_path
from mptcp_throttled.vocabulary.decision import Previous

ON_ETHERNET = subflow("10.1.0.1")
ON_WIFI = subflow("10.2.0.1")
IN_NO_NETWORK = subflow("10.9.0.1")


@dataclass
class Followed:
    """A table with at most one connection, and since when that has had one path."""

    table: DecisionTable = field(default_factory=lambda: decision_table((WIFI, ETHERNET)))
    since: Map[Token, float] = field(default_factory=Map)

    def show(self, now: float, *subflows: Subflow) -> float | None:
        """Since when, with these subflows at `now`; without any, the connection has ended."""
        return self.update(now, self.table.replace({Token(1): connection(1, *subflows)} if subflows else {}))

    def update(self, now: float, previous: Previous) -> float | None:
        self.since = update_one_path(self.since, previous, self.table.decisions, now)
        return self.since.get(Token(1))


def test_lost_path_counts_from_its_end_to_the_next_join() -> None:
    followed = Followed()
    assert followed.show(1, ON_ETHERNET, ON_WIFI) is None
    assert followed.show(2, ON_ETHERNET) == 2
    assert followed.show(3, ON_ETHERNET, subflow("10.1.0.1", 40001)) == 2
    assert followed.show(4, ON_ETHERNET, subflow("10.2.0.1", 40001)) is None
    assert followed.show(5, subflow("10.2.0.1", 40001)) == 5


def test_path_counts_until_its_last_subflow_has_ended() -> None:
    followed = Followed()
    second = subflow("10.2.0.1", 40001)
    followed.show(1, ON_ETHERNET, ON_WIFI, second)
    assert followed.show(2, ON_ETHERNET, second) is None
    assert followed.show(3, ON_ETHERNET) == 3


def test_connection_that_was_not_seen_with_two_paths_has_lost_none() -> None:
    followed = Followed()
    assert followed.show(1, ON_ETHERNET) is None
    assert followed.show(2, ON_ETHERNET, subflow("10.1.0.1", 40001)) is None
    assert followed.show(3, ON_ETHERNET) is None
    assert followed.show(4, ON_WIFI) is None


def test_stalled_path_is_not_lost() -> None:
    followed = Followed()
    followed.show(1, ON_ETHERNET, ON_WIFI)
    assert followed.show(2, ON_ETHERNET, replace(ON_WIFI, stalled=True)) is None


def test_connection_that_has_ended_is_forgotten() -> None:
    followed = Followed()
    followed.show(1, ON_ETHERNET, ON_WIFI)
    followed.show(2, ON_ETHERNET)
    followed.show(3)
    assert followed.since == Map()
    assert followed.show(4, ON_ETHERNET) is None


def test_address_in_no_network_is_neither_a_lost_path_nor_the_only_path() -> None:
    followed = Followed()
    followed.show(1, ON_WIFI, IN_NO_NETWORK)
    assert followed.show(2, ON_WIFI) is None
    followed.show(3, ON_WIFI, ON_ETHERNET, IN_NO_NETWORK)
    assert followed.show(4, ON_WIFI, IN_NO_NETWORK) is None
    followed.show(5, ON_WIFI, ON_ETHERNET, IN_NO_NETWORK)
    assert followed.show(6, IN_NO_NETWORK) is None


def test_reload_that_joins_networks_loses_no_path() -> None:
    followed = Followed()
    followed.show(1, ON_ETHERNET, ON_WIFI)
    joined = replace(WIFI, subnets=(*WIFI.subnets, *ETHERNET.subnets))
    assert followed.update(2, reconfigure(followed.table, (joined,))) is None
