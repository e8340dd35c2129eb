"""What the page answers to visitors who have not logged in: no name of a device is in it, and no address."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest
from examples import ETHERNET, WIFI, connection, ends, subflow
from loops import LoopOnModels
from worlds import configuration

from mptcp_throttle.config.changes import changes
from mptcp_throttle.model import Budget, Counting, Device, Devices, Direction, Every, NamedClient, Per, RateKind, Stage
from mptcp_throttle.periods import Period
from mptcp_throttle.units import Rate
from mptcp_throttle_web.feed import Feed
from mptcp_throttle_web.hiding import Hider
from mptcp_throttle_web.questions import EXPORTS, KINDS, Question
from mptcp_throttle_web.tables import TABLES, as_json
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import Account, Kind
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.answers.api import Api
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.inbox import Inbox
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.observing.enforcement import Difference, Enforcement
from mptcp_throttled.reporting.budget_events import budget_events
from mptcp_throttled.reporting.step_events import reloaded
from mptcp_throttled.reporting.step_log import enforcement_event
from mptcp_throttled.vocabulary.budgets import AccountKey, BudgetChange, LevelReached, PeriodBegun, StagesEnded, Use
from mptcp_throttled.vocabulary.clock import Clock, Now
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.traffic import Traffic

if TYPE_CHECKING:
    from pathlib import Path

    from mptcp_throttle.rpc import Json
    from mptcp_throttled.vocabulary.events import Event

PHONE: Final = "alices-phone"
GONE: Final = "bobs-laptop"
ADDRESS: Final = "10.1.0.9"
CAPPED: Final = ends(ADDRESS)
SLOW: Final = {RateKind.CAP: Rate(256_000)}
OF_CLIENTS: Final = Budget(1000, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, 0.8, (Stage(1.0, SLOW),))
OF_PHONE: Final = replace(OF_CLIENTS, networks=("wifi", "ethernet"))
NETWORKS: Final = (
    replace(WIFI, devices=Devices((NamedClient(PHONE, (ip_network("10.2.0.9/32"),), {}, (OF_PHONE,)),))),
    replace(
        ETHERNET,
        devices=Devices((NamedClient(PHONE, (ip_network(f"{ADDRESS}/32"),), SLOW, (OF_PHONE,)),)),
        budgets=(OF_CLIENTS,),
    ),
)


def told(running: LoopOnModels) -> list[Event]:
    """All kinds of events about a device or its budgets."""
    of_client, of_phone, address = AccountKey("ethernet", "x"), AccountKey(PHONE, "x"), ip_address(ADDRESS)
    changes_of_budgets: list[BudgetChange] = [
        *(LevelReached(of_client, OF_CLIENTS, address, Use(1000), stages) for stages in (0, 1)),
        *(LevelReached(of_phone, OF_PHONE, None, Use(1000), stages) for stages in (0, 1)),
        StagesEnded(of_client, OF_CLIENTS, address, Use(10), 0),
        StagesEnded(of_phone, OF_PHONE, None, Use(10), 0),
        PeriodBegun(of_client, OF_CLIENTS, Period(1, 2), 1),
        PeriodBegun(of_phone, OF_PHONE, Period(1, 2), 1),
    ]
    phone = Device(PHONE, {"ethernet": (ip_network(f"{ADDRESS}/32"),)}, {}, ())
    configs = [
        replace(configuration(), devices=devices)
        for devices in ((Device(GONE, {}, {}, ()), phone), (replace(phone, rates={"ethernet": SLOW}),), ())
    ]
    reloads = [reloaded(changes(*pair), []) for pair in pairwise([*configs, configs[0]])]
    not_enforced = enforcement_event({}, {CAPPED: "sends more"}, running.loop.snapshot)
    assert not_enforced is not None
    return [*budget_events(changes_of_budgets, running.loop.snapshot), *reloads, not_enforced]


@pytest.fixture
def api(tmp_path: Path) -> Api:
    """With a device that has subflows, rates, budgets and a history, and one that was removed a moment ago."""
    running = LoopOnModels(tmp_path, NETWORKS)
    running.show(connection(1, subflow(ADDRESS), subflow("10.2.0.9")))
    running.operator.set(Override("ethernet", RateKind.CAP, Rate(2_000_000), None, ip_address(ADDRESS)))
    running.loop.step()
    for event in told(running):
        running.loop.events.keep(event)
    history, now = History(tmp_path / "history.sqlite", "boot"), Clock().time()
    history.add(now, [(Account(Kind.CLIENT, name), Traffic(sent=1, held_back_ms=5)) for name in (PHONE, GONE)])
    history.flush(now, 0.0, {})
    ledger = Ledger({}, lambda: True)
    accounts = Accounts(history, ledger, Clock())
    accounts.observe({}, running.loop.snapshot, {})
    enforcement = Enforcement(differences={Direction.DOWNLINK: {CAPPED: Difference("sends more", -100.0)}})
    view = View(running.loop.snapshot, enforcement, {}, Now.of(running.clock))
    config, reports = configuration(NETWORKS), (running.loop.recent_decisions, running.loop.events)
    return Api(RunningConfig(config, now), Inbox(), lambda: view, history, accounts, *reports, lambda: config)


class Page:
    """The page as strangers see it."""

    def __init__(self, api: Api) -> None:
        self._methods = api.methods()
        self._hider = Hider()

    def _ask(self, method: str, *parameters: Json) -> Json:
        return self._methods[method](*parameters)

    def answer(self, name: str, form: str) -> str:
        """What this path answers, about the client if it is about one."""
        kinds = KINDS if form == "shown" else EXPORTS
        parameters = {"name": self._hider.hidden(ADDRESS), "seconds": "3600"}
        asked = kinds[name].parse(Question(parameters, sees_addresses=False, hider=self._hider))
        write = TABLES.get(name, as_json) if form == "csv" else as_json
        feed = Feed(self._ask, self._hider)
        return asyncio.run(feed.answer(kinds[name], asked, write, hidden=True, is_stranger=True)).decode()

    def first_event(self) -> str:
        """Of the stream."""

        async def first() -> bytes:
            viewer = Feed(self._ask, self._hider).open(hidden=True, is_stranger=True)
            async for answer in viewer.events(lambda: True):
                return answer
            raise AssertionError

        return asyncio.run(first()).decode()


def assert_hidden(answer: str) -> None:
    assert not [secret for secret in (PHONE, GONE, ADDRESS, "10.2.0.9") if secret in answer]


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, "shown") for name in KINDS), *((name, form) for name in EXPORTS for form in ("csv", "json"))],
)
def test_answer_to_a_stranger_names_no_device(api: Api, name: str, form: str) -> None:
    assert_hidden(Page(api).answer(name, form))


def test_stream_to_a_stranger_names_no_device(api: Api) -> None:
    answer = Page(api).first_event()
    assert '"problem":null' in answer
    assert "not_enforced" in answer
    assert_hidden(answer)


def test_timeline_that_is_not_hidden_names_devices(api: Api) -> None:
    """So that the tests above look at answers in which there is something to hide."""
    texts = [event["text"] for event in api.events()["events"]]
    assert sum(PHONE in text for text in texts) >= 10
    assert any(GONE in text for text in texts)
    assert f"ethernet {ADDRESS} ({PHONE}): " in "\n".join(texts)
