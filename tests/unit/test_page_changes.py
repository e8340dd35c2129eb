"""The changes of the page: what the daemon is asked, what is said of it, and what undoes it."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

import pytest

from mptcp_throttle.rpc import ChangeNotYetAppliedError, Json, RpcError
from mptcp_throttle_web.control import Control
from mptcp_throttle_web.hiding import Hider

PHONE: Final = "10.1.0.2"
CAP: Final = {"network": "lte", "direction": "downlink", "kind": "cap"}
REFUSAL: Final = "no uplink is throttled here"
NO_CHOICE: Final = {"every": None, "direction": None}
BY_HAND: Final = {"direction": "uplink", "kind": "limit", "rate": None, "seconds": 60.0}


class Daemon:
    """Answers what a test says, and keeps the changes that it is asked for."""

    def __init__(self) -> None:
        self.overrides: list[Json] = []
        self.pause: Json = None
        self.budgets: list[Json] = []
        self.asked: list[tuple[object, ...]] = []
        self.refused: set[int] = set()
        """By their places, the changes that are refused."""
        self.refusal = RpcError(REFUSAL)
        self.made_unanswered: list[Json] = []
        """Rates that are set by a change which is refused."""

    async def call(self, method: str, *parameters: Json) -> Json:
        match method:
            case "overrides":
                return {"overrides": self.overrides}
            case "budgets":
                return {"budgets": self.budgets}
            case "status":
                return {"daemon": {"pause": self.pause}}
        self.asked.append((method, *parameters))
        if len(self.asked) - 1 in self.refused:
            self.overrides += self.made_unanswered
            raise self.refusal
        return {"client": PHONE}


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


def changed(daemon: Daemon, method: str, body: Json, hider: Hider | None = None) -> Json:
    return asyncio.run(Control(daemon.call, hider or Hider()).change(method, body, "a test"))


def use(client: str | None, used: int, every: str = "month") -> Json:
    owner = {"network": "lte", "networks": ["lte"], "client": client, "device": None}
    return {**owner, "every": every, "direction": "both", "used": used}


def test_rate_of_a_client_is_undone_by_what_was_set_before(daemon: Daemon) -> None:
    daemon.overrides = [BY_HAND]
    answer = changed(daemon, "set_rate", {**CAP, "rate": "5mbit", "seconds": 600, "client": PHONE})
    assert daemon.asked == [("set_rate", "lte", "downlink", "cap", "5mbit", 600.0, PHONE)]
    assert answer["did"] == "lte for 10.1.0.2: cap 5mbit for 600 s"
    assert answer["undo"] == [
        {"method": "reset_rate", "body": {"network": "lte", "client": PHONE}},
        {"method": "set_rate", "body": {"network": "lte", "client": PHONE, **BY_HAND}},
    ]
    daemon.asked.clear()
    for step in answer["undo"]:
        changed(daemon, step["method"], step["body"])
    assert daemon.asked == [("reset_rate", "lte", PHONE), ("set_rate", "lte", "uplink", "limit", None, 60.0, PHONE)]


def test_network_is_free_for_an_hour_in_both_directions(daemon: Daemon) -> None:
    answer = changed(daemon, "free", {"network": "lte", "seconds": 3600})
    kinds = [(direction, kind) for direction in ("downlink", "uplink") for kind in ("cap", "limit")]
    assert daemon.asked == [("set_rate", "lte", *kind, None, 3600.0) for kind in kinds]
    assert (answer["did"], answer["undo"]) == (
        "lte: free for 3600 s",
        [{"method": "reset_rate", "body": {"network": "lte"}}],
    )


def test_change_of_which_a_part_is_refused_is_undone(daemon: Daemon) -> None:
    daemon.overrides, daemon.refused = [BY_HAND], {2}
    with pytest.raises(RpcError, match=rf"^{REFUSAL}; what was changed before that is undone$"):
        changed(daemon, "free", {"network": "lte", "client": PHONE, "seconds": 60})
    assert [(each[0], each[-1]) for each in daemon.asked[:3]] == [("set_rate", PHONE)] * 3
    assert daemon.asked[3:] == [("reset_rate", "lte", PHONE), ("set_rate", "lte", "uplink", "limit", None, 60.0, PHONE)]


def test_change_of_which_nothing_is_made_needs_no_undo(daemon: Daemon) -> None:
    daemon.refused = {0}
    with pytest.raises(RpcError, match=rf"^{REFUSAL}$"):
        changed(daemon, "free", {"network": "lte", "seconds": 60})
    assert len(daemon.asked) == 1


def test_part_of_a_change_that_cannot_be_undone_is_told(daemon: Daemon) -> None:
    daemon.refused = {1, 2}
    with pytest.raises(RpcError, match=f"; undoing what was changed before that failed: {REFUSAL}"):
        changed(daemon, "free", {"network": "lte", "seconds": 60})


def test_free_that_is_saved_but_late_is_made_and_can_be_undone(daemon: Daemon) -> None:
    daemon.refused, daemon.refusal = {0}, ChangeNotYetAppliedError("saved, but not applied after 5 s; see status")
    answer = changed(daemon, "free", {"network": "lte", "seconds": 60})
    assert len(daemon.asked) == 4
    assert answer["did"] == "lte: free for 60 s; saved, but not applied after 5 s; see status"
    assert answer["undo"] == [{"method": "reset_rate", "body": {"network": "lte"}}]


def test_change_without_an_answer_is_looked_for(daemon: Daemon) -> None:
    daemon.refused, daemon.refusal = {0, 1}, RpcError("no answer in 10 s", os.EX_UNAVAILABLE)
    change = {**CAP, "rate": "5mbit", "seconds": 600}
    with pytest.raises(RpcError, match=r"^no answer in 10 s; nothing of it is seen so far$"):
        changed(daemon, "set_rate", change)
    daemon.made_unanswered = [{"direction": "downlink", "kind": "cap", "rate": "5mbit", "seconds": 600.0}]
    answer = changed(daemon, "set_rate", change)
    assert answer["did"] == "lte: cap 5mbit for 600 s; no answer in 10 s"
    assert answer["undo"] == [{"method": "reset_rate", "body": {"network": "lte"}}]


def test_other_changes_are_not_taken_for_the_unanswered_one(daemon: Daemon) -> None:
    daemon.refused, daemon.refusal = {0, 1}, RpcError("no answer in 10 s", os.EX_UNAVAILABLE)
    daemon.pause = {"seconds_left": 3.0}
    with pytest.raises(RpcError, match="nothing of it is seen so far"):
        changed(daemon, "pause", {"seconds": 600})
    daemon.made_unanswered = [{"direction": "uplink", "kind": "limit", "rate": "5mbit", "seconds": 600.0}]
    with pytest.raises(RpcError, match="nothing of it is seen so far"):
        changed(daemon, "set_rate", {**CAP, "rate": "5mbit", "seconds": 600})


@pytest.mark.parametrize(("left", "is_seen"), [(None, False), (3.0, False), (595.0, True), (601.0, False)])
def test_pause_without_an_answer_is_known_by_what_is_left(daemon: Daemon, left: float | None, is_seen: bool) -> None:
    daemon.refused, daemon.refusal = {0}, RpcError("no answer in 10 s", os.EX_UNAVAILABLE)
    daemon.pause = {"seconds_left": left}
    if is_seen:
        assert changed(daemon, "pause", {"seconds": 600})["did"] == "paused for 600 s; no answer in 10 s"
    else:
        with pytest.raises(RpcError, match="nothing of it is seen so far"):
            changed(daemon, "pause", {"seconds": 600})


def test_change_of_a_budget_without_an_answer_is_not_known(daemon: Daemon) -> None:
    daemon.refused, daemon.refusal = {0}, RpcError("no answer in 10 s", os.EX_UNAVAILABLE)
    with pytest.raises(RpcError, match="whether it was done is not known"):
        changed(daemon, "budget_add", {"name": PHONE, "amount": "500MB"})


def test_reset_that_changes_nothing_has_nothing_to_undo(daemon: Daemon) -> None:
    answer = changed(daemon, "reset_rate", {"network": "lte"})
    assert (answer["undo"], answer["undo_problem"]) == (None, None)
    daemon.overrides = [BY_HAND]
    assert changed(daemon, "reset_rate", {"network": "lte"})["undo"] == [
        {"method": "set_rate", "body": {"network": "lte", **BY_HAND}}
    ]


@pytest.mark.parametrize(
    ("method", "paused", "undo"),
    [
        ("pause", None, [{"method": "resume", "body": {}}]),
        ("pause", {"seconds_left": 5.0}, [{"method": "pause", "body": {"seconds": 5.0}}]),
        ("resume", {"seconds_left": None}, [{"method": "pause", "body": {"seconds": None}}]),
        ("resume", None, None),
    ],
)
def test_pause_is_undone_by_the_pause_before(daemon: Daemon, method: str, paused: Json, undo: Json) -> None:
    daemon.pause = paused
    assert changed(daemon, method, {})["undo"] == undo


def test_what_is_added_to_a_budget_can_be_taken_back(daemon: Daemon) -> None:
    body = {"name": PHONE, "amount": "500MB", "every": "day"}
    answer = changed(daemon, "budget_add", body)
    assert daemon.asked == [("budget_add", PHONE, "500MB", None, "day", None)]
    assert (answer["did"], answer["undo"]) == (
        "10.1.0.2: 500MB added",
        [{"method": "budget_take_back", "body": body}],
    )
    assert changed(daemon, "budget_take_back", body)["undo"] == [{"method": "budget_add", "body": body}]
    assert daemon.asked[1:] == [("budget_take_back", PHONE, "500MB", None, "day", None)]


def test_budgets_of_a_network_are_set_back_after_a_reset(daemon: Daemon) -> None:
    daemon.budgets = [use(None, 12_345_678), use(PHONE, 999_999), use("10.1.0.3", 0), use(PHONE, 2_000_000, "day")]
    answer = changed(daemon, "budget_reset", {"name": "lte", "every": "month"})
    amounts = [(step["body"]["name"], step["body"]["amount"], step["body"]["every"]) for step in answer["undo"]]
    assert amounts == [("lte", "12345.678kB", "month"), (PHONE, "0", "month")]


@pytest.mark.parametrize(
    ("uses", "problem"),
    [
        ([use(f"10.1.0.{number}", 1) for number in range(51)], "more than 50 clients have used some of it"),
        ([use(PHONE, 1), use(PHONE, 2)], "a client has several such budgets"),
    ],
)
def test_reset_that_cannot_be_undone_says_why(daemon: Daemon, uses: list[Any], problem: str) -> None:
    daemon.budgets = uses
    answer = changed(daemon, "budget_reset", {"name": "lte"})
    assert (answer["undo"], answer["undo_problem"]) == (None, problem)


def test_use_that_is_set_is_undone_by_the_use_before(daemon: Daemon) -> None:
    nothing = [{"method": "budget_set_used", "body": {"name": PHONE, "amount": "0", **NO_CHOICE}}]
    assert changed(daemon, "budget_set_used", {"name": PHONE, "amount": "1GB"})["undo"] == nothing
    daemon.budgets = [use(PHONE, 5_000_000)]
    (step,) = changed(daemon, "budget_set_used", {"name": PHONE, "amount": "1GB"})["undo"]
    assert step["body"] == {"name": PHONE, "amount": "5000.000kB", "every": "month", "direction": "both"}
    daemon.budgets = [{**use(None, 3_000_000), "network": None, "networks": ["lte", "wifi"], "device": "bus-14"}]
    (step,) = changed(daemon, "budget_set_used", {"name": "bus-14", "amount": "1GB"})["undo"]
    assert (step["body"]["name"], step["body"]["amount"]) == ("bus-14", "3000.000kB")


def test_hidden_client_is_found_by_its_name_and_stays_hidden(daemon: Daemon) -> None:
    hider = Hider()
    name = hider.hidden(PHONE)
    answer = changed(daemon, "set_rate", {**CAP, "rate": None, "client": name, "hidden": True}, hider)
    assert daemon.asked[0][-1] == PHONE
    assert PHONE not in str(answer)
    assert answer["did"] == f"lte for {name}: cap unlimited"
    assert answer["undo"] == [{"method": "reset_rate", "body": {"network": "lte", "client": name}}]
