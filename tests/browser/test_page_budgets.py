"""The page beside transfers with a budget: its figures are those of the CLI, and its changes act on the wire."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
from page_in_browser import PageInBrowser
from polling import eventually
from proxy_world import MEGABYTE, WITHOUT_CAP, receive_rates

from mptcp_throttle.model import AccessNetwork, Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser
    from proxy_world import ProxyWorld

CAP: Final = Rate(1_000_000)
AMOUNT: Final = 60 * MEGABYTE
# No period ends while the tests run.
STARTS: Final = (date.today().weekday() + 3) % 7
SLOW: Final = (Stage(1.0, {RateKind.CAP: CAP}),)
BUDGET: Final = Budget(AMOUNT, Per.NETWORK, Counting.BOTH, Every.WEEK, STARTS, 0.8, SLOW)
ENGLISH: Final[dict[str, Any]] = {"locale": "en-GB"}
of_each_client: Final = pytest.mark.parametrize("networks", [Per.CLIENT], indirect=True)


@pytest.fixture
def networks(request: pytest.FixtureRequest) -> Sequence[AccessNetwork]:
    """Ethernet has no cap, but a budget: of the network, or as the test says."""
    wifi, ethernet = WITHOUT_CAP
    return wifi, replace(ethernet, budgets=(replace(BUDGET, per=getattr(request, "param", Per.NETWORK)),))


def use(world: ProxyWorld, name: str, amount: str) -> None:
    """Let so much of a budget be used."""
    world.services.cli("budget", "set-used", name, amount)


def the_budget(world: ProxyWorld) -> Any:  # noqa: ANN401
    """The only one, as the CLI shows it."""
    (budget,) = world.services.cli_json("budgets")["budgets"]
    return budget


def megabytes(count: int) -> str:
    """As the page writes 10 MB and more."""
    return f"{count / MEGABYTE:.1f} MB"


def midnight(budget: Any) -> str:  # noqa: ANN401
    """The end of its period, as the page writes it."""
    end = datetime.fromtimestamp(budget["period"]["end"]).astimezone()
    month = f"{end:%b}".replace("Sep", "Sept")  # in en-GB
    return f"{end:%a} {end.day} {month}, 00:00"


def ethernet_rate(world: ProxyWorld) -> float:
    """What the client receives over Ethernet, which carries 10 Mb/s, in the next two seconds."""
    return receive_rates(world.lab.client, 2)["eth0"]


def wait_narrow(world: ProxyWorld) -> None:
    """Wait until the client is capped, and receives no more."""
    world.wait_settled()
    eventually(lambda: ethernet_rate(world) < 1.25e6, "the cap holds")


def wait_wide(world: ProxyWorld) -> None:
    """Wait until the client receives more than the cap allows."""
    eventually(lambda: ethernet_rate(world) > 3e6, "more than the cap")
    assert world.capped() == []


def confirm(page: PageInBrowser, word: str, done: str) -> None:
    """Press the button of the dialog. What was done is shown for as long as the pointer is there."""
    page.button(word).last.click()
    eventually(lambda: page.shows(done, "#done"), done)
    page.tab.locator("#done").hover()


def undo(page: PageInBrowser) -> None:
    page.button("Undo").click()
    eventually(lambda: page.shows("It is as before.", "#done"), "it is taken back")


def test_budget_on_the_page_is_that_of_the_cli(world: ProxyWorld, browser: Browser) -> None:
    use(world, "ethernet", "33MB")
    world.download(2 * MEGABYTE).wait()
    world.abort()
    eventually(lambda: world.services.subflows() == (), "all subflows ended")
    with PageInBrowser.open(browser, **ENGLISH) as page:
        eventually(lambda: page.shows("60.0 MB", "#budgets"), "the budget")
        budget = the_budget(world)
        assert 33 * MEGABYTE < budget["used"] < 36 * MEGABYTE
        shown = f"{budget['used'] / AMOUNT:.0%} {megabytes(budget['used'])} of 60.0 MB, warns at 80 %"
        eventually(lambda: page.shows(shown.replace("% ", " % ", 1), "#budgets"), shown)
        assert page.shows(f"ends {midnight(budget)}", "#budgets")
        assert page.shows("From 100 % on: cap 1.0 Mb/s.", "#budgets")


@of_each_client
def test_what_a_client_has_left_is_that_of_the_cli(world: ProxyWorld, browser: Browser) -> None:
    use(world, "10.1.0.2", "33MB")
    world.download(2 * MEGABYTE).wait()
    world.abort()
    eventually(lambda: world.services.subflows() == (), "all subflows ended")
    with PageInBrowser.open(browser, "#client=10.1.0.2", **ENGLISH) as page:
        page.log_in()
        eventually(lambda: page.shows(" left until ", "#client-facts"), "what is left")
        budget = the_budget(world)
        assert 24 * MEGABYTE < budget["left"] == AMOUNT - budget["used"] < 27 * MEGABYTE
        shown = f"{megabytes(budget['left'])} left until {midnight(budget)}"
        eventually(lambda: page.shows(shown, "#client-facts"), shown)


@of_each_client
def test_volume_for_a_client_is_felt_on_the_wire_until_undone(world: ProxyWorld, page: PageInBrowser) -> None:
    use(world, "10.1.0.2", "70MB")
    world.download()
    wait_narrow(world)
    page.open_client("10.2.0.2")
    eventually(lambda: page.shows("Throttled to 1.0 Mb/s on ethernet by budget", "#client-answer"), "the rule")
    page.button("Add to budget").click()
    page.tab.get_by_label("Amount").fill("500MB")
    confirm(page, "Add", "500MB added")
    wait_wide(world)
    eventually(lambda: page.shows("Free on ethernet", "#client-answer"), "that it is free")
    undo(page)
    wait_narrow(world)


def test_reset_of_a_budget_is_felt_on_the_wire_until_undone(world: ProxyWorld, page: PageInBrowser) -> None:
    use(world, "ethernet", "70MB")
    world.download()
    wait_narrow(world)
    page.button("Reset: budget of ethernet").click()
    assert page.shows("That becomes 0", "#confirm-preview")
    confirm(page, "Reset", "ethernet: nothing of its budget is used")
    wait_wide(world)
    assert the_budget(world)["used"] < AMOUNT
    undo(page)
    wait_narrow(world)
    assert the_budget(world)["used"] > AMOUNT
