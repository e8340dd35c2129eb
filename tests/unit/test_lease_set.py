"""A round looks only at leases that anything may have changed, and at each of those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from mptcp_throttled.fleet.lease_set import LeaseSet
from mptcp_throttled.fleet.leases import Statement, pool
from mptcp_throttled.fleet.members import HEARD_SECONDS, OVERSTAY_SECONDS, PARTS, Member, Phase, Standing

WHOLE: Final = 3200
POOL: Final = pool(WHOLE)
STANDING: Final = Standing(
    "one", 1, PARTS // 2, Phase.IN_CONTACT, True, 0, {"two": Member(2, PARTS // 2, heard=True, surely=True)}
)
KEYS: Final = ("a", "b", "c")


class Rounds:
    """Rounds of the proxy `one`, whose kernel has at once what it holds unless it is `stuck`.

    `own` is what it has stated, `two` what the other proxy states; `looked_at` are the leases that the last round
    looked at before it was sent.
    """

    def __init__(self, standing: Standing = STANDING) -> None:
        self.now = 0.0
        self.standing = standing
        self.wanted = dict.fromkeys(KEYS, WHOLE)
        self.leases = LeaseSet[str](WHOLE, {}, standing, self.now)
        self.stuck: dict[str, int] = {}
        self.two: dict[str, Statement] = {}
        self.looked_at: list[str] = []
        self.own: dict[str, Statement] = {}
        self._read: dict[str, dict[str, Statement]] = {}

    def round(self) -> bool:
        self.now += 1.0
        self.looked_at.clear()
        self.leases.want(dict(self.wanted), self.now)
        self.leases.follow(self.standing, self.now)
        changes = self.leases.compose(0, self._applied, self.now)
        self.own |= changes.writes
        for key in changes.deletes:
            del self.own[key], self._read[key]
        statements = {key: {"one": own} for key, own in self.own.items()}
        for key in self.two.keys() & statements.keys():
            statements[key]["two"] = self.two[key]
        changed = [key for key, each in statements.items() if self._read.get(key) != each]
        self._read = statements
        return self.leases.take(statements, changed, self.standing, self.now)

    def _applied(self, key: str) -> int:
        self.looked_at.append(key)
        return max(self.stuck.get(key, 0), self.leases.amounts.get(key, 0))

    def lose_own(self, key: str) -> None:
        self.own[key] = self.own[key]._replace(claim=0)


@pytest.fixture
def rounds() -> Rounds:
    """All of whose leases are settled."""
    made = Rounds()
    for _ in range(3):
        assert made.round()
    assert made.looked_at == []
    assert made.leases.amounts == dict.fromkeys(KEYS, POOL)
    return made


def less_is_wanted(rounds: Rounds) -> None:
    rounds.wanted["b"] = WHOLE // 4


def nothing_is_wanted(rounds: Rounds) -> None:
    del rounds.wanted["b"]


def other_proxy_wants_it(rounds: Rounds) -> None:
    rounds.two["b"] = Statement(2, 0, WHOLE)


@pytest.mark.parametrize(
    ("change", "then"),
    [(less_is_wanted, WHOLE // 4), (nothing_is_wanted, 0), (other_proxy_wants_it, POOL // 2)],
)
def test_lease_at_rest_follows_what_changes_and_rests_again(
    rounds: Rounds, change: Callable[[Rounds], None], then: int
) -> None:
    change(rounds)
    assert rounds.round()
    assert rounds.looked_at in ([], ["b"])
    assert rounds.leases.amounts.get("b", 0) == then
    for _ in range(3):
        assert rounds.round()
        assert {*rounds.looked_at} <= {"b"}
    assert rounds.looked_at == []
    assert (rounds.own["b"].claim if then else rounds.own.get("b", 0)) == then


def test_lease_at_rest_is_looked_at_in_another_fleet_and_session(rounds: Rounds) -> None:
    rounds.standing = STANDING._replace(part=PARTS // 3)
    rounds.round()
    assert rounds.looked_at == [*KEYS]
    rounds.round()
    assert rounds.looked_at == []
    rounds.leases.begin()
    rounds.standing = STANDING._replace(session=2)
    rounds.round()
    assert rounds.looked_at == [*KEYS]


def test_own_statement_that_is_another_ends_the_session_of_a_lease_at_rest(rounds: Rounds) -> None:
    rounds.lose_own("b")
    assert not rounds.round()


def test_lease_does_not_rest_while_the_kernel_may_give_more(rounds: Rounds) -> None:
    rounds.stuck["b"] = POOL
    rounds.wanted["b"] = WHOLE // 4
    for _ in range(4):
        rounds.round()
    assert rounds.looked_at == ["b"]
    rounds.stuck.clear()
    for _ in range(3):
        rounds.round()
    assert rounds.looked_at == []


def test_lease_takes_room_once_others_state_less(rounds: Rounds) -> None:
    rounds.two["b"] = Statement(2, POOL // 2, WHOLE)
    for _ in range(4):
        rounds.round()
    assert (rounds.looked_at, rounds.leases.amounts["b"]) == ([], POOL // 2)
    rounds.two["b"] = Statement(2, POOL // 2, 0)
    for _ in range(4):
        rounds.round()
    assert rounds.leases.amounts["b"] == POOL // 2
    rounds.two["b"] = Statement(2, 0, 0)
    rounds.round()
    assert rounds.leases.amounts["b"] == POOL


def test_lease_does_not_rest_while_a_claim_of_an_earlier_session_counts(rounds: Rounds) -> None:
    rounds.wanted["b"] = 0
    rounds.round()
    rounds.two["b"] = Statement(3, POOL, WHOLE)
    rounds.wanted["b"] = WHOLE
    for _ in range(int(HEARD_SECONDS)):
        rounds.round()
        assert "b" not in rounds.leases.amounts
    rounds.round()
    assert rounds.leases.amounts["b"] == POOL
    for _ in range(2):
        rounds.round()
    assert rounds.looked_at == []


def test_lease_does_not_rest_while_another_claims_more_than_it_is_due(rounds: Rounds) -> None:
    rounds.wanted["b"] = 0
    rounds.round()
    rounds.two["b"] = Statement(2, POOL, WHOLE)
    rounds.wanted["b"] = WHOLE
    for _ in range(int(OVERSTAY_SECONDS)):
        rounds.round()
        assert "b" not in rounds.leases.amounts
    rounds.round()
    assert rounds.leases.amounts["b"] == POOL // 2


def test_rate_of_which_less_than_the_floor_is_wanted_is_not_looked_at() -> None:
    rounds = Rounds()
    rounds.wanted = dict.fromkeys(KEYS, 0)
    rounds.round()
    rounds.round()
    assert (rounds.looked_at, rounds.leases.amounts) == ([], {})
