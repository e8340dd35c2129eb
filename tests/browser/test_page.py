"""The page in a real browser, beside real transfers: what it shows is what flows."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from matplotlib.image import imread
from page_in_browser import PageInBrowser, violations
from polling import eventually

from mptcp_throttled.accounting.history import Account, History, Kind
from mptcp_throttled.vocabulary.traffic import Traffic

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect
    from proxy_world import ProxyWorld

DAY: Final = 86_400
TELEPHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
}


@pytest.fixture
def capped(world: ProxyWorld) -> ProxyWorld:
    """A download runs, and its subflow over Ethernet is capped."""
    world.begin_capped()
    return world


def open_first_client(page: PageInBrowser, network: str) -> None:
    """Show the subflows of its first client."""
    button = page.client_button(network)
    button.click()
    eventually(lambda: button.get_attribute("aria-expanded") == "true", "the client is open")
    eventually(lambda: len(page.subflows()) >= 2, "its subflows are shown")


def test_rates_on_the_page_are_those_that_ss_shows(world: ProxyWorld, page: PageInBrowser) -> None:
    world.begin_settled()
    eventually(lambda: 0.7e6 < page.sends("ethernet") < 1.3e6, "what the cap allows")
    open_first_client(page, "wifi")
    port = next(subflow.client_port for subflow in world.services.subflows() if subflow.network == "wifi")
    eventually(lambda: any(f"port {port}" in row for row in page.subflows()), "the subflow")

    eventually(lambda: abs(page.sends("wifi") / world.acked_rate(port, 2) - 1) < 0.1, "the rate that ss shows")


def test_cap_is_on_the_page_within_two_seconds(world: ProxyWorld, page: PageInBrowser) -> None:
    page.wait_live()
    world.begin_capped()
    seconds = eventually(lambda: page.network("ethernet")["throttled"] == "1", "the capped subflow")
    assert seconds < 2
    open_first_client(page, "ethernet")
    eventually(lambda: any("cap" in row and "wifi is live" in row for row in page.subflows()), "the reason")
    eventually(lambda: page.shows("wifi is live", "#decision-rows"), "the decision")


def test_restart_of_the_daemon_shows_and_heals(world: ProxyWorld, page: PageInBrowser) -> None:
    page.wait_live()
    world.daemon.stop()
    eventually(lambda: page.shows("not up to date", "#connection"), "the daemon is missed")
    world.start_daemon()
    page.wait_live()
    assert world.services.web is not None
    world.services.web.stop()
    eventually(lambda: page.shows("mptcp-throttle-web does not answer", "#connection"), "the service is missed")
    world.services.start_web()
    page.wait_live()


def test_day_of_history_is_drawn_within_a_second(world: ProxyWorld, browser: Browser) -> None:
    world.daemon.stop()
    fill_a_day(world.services.directory / "state/history.sqlite")
    world.start_daemon()
    with PageInBrowser.open(browser) as page:
        page.wait_live()
        page.wait_drawn(600)
        milliseconds = page.evaluate(
            """async () => {
                const began = performance.now();
                const range = document.getElementById("range");
                range.value = "86400";
                range.dispatchEvent(new Event("change"));
                while (document.body.dataset.drawn !== "86400") await new Promise(requestAnimationFrame);
                return performance.now() - began;
            }"""
        )
        assert int(page.tab.locator("#network-chart").get_attribute("data-points") or 0) > 1400
        assert milliseconds < 1000


def fill_a_day(path: Path) -> None:
    """24 hours of two networks, by minute."""
    history = History(path, "another boot")
    now = time.time()
    for minute in range(DAY // 60):
        at = now - 60 * minute
        for name, sent in (("wifi", 300_000_000), ("ethernet", 7_000_000)):
            history.add(at, [(Account(Kind.NETWORK, name), Traffic(ip_sent=sent + minute * 1000))])
    history.flush(now, time.monotonic(), {})
    history.close()


@pytest.mark.usefixtures("capped")
def test_choices_survive_a_reload_of_the_page(page: PageInBrowser) -> None:
    open_first_client(page, "ethernet")
    page.choose("range", "1 hour")
    page.choose("order", "name")
    page.choose("theme", "dark")
    page.wait_drawn(3600)
    page.tab.reload()
    page.wait_drawn(3600)
    eventually(lambda: len(page.subflows()) >= 2, "the client is open")
    values = [page.tab.locator(f"#{control}").input_value() for control in ("range", "order", "theme")]
    assert values == ["3600", "name", "dark"]


@pytest.mark.usefixtures("capped")
def test_hidden_addresses_are_nowhere_on_the_page(page: PageInBrowser) -> None:
    eventually(lambda: page.shows("10.1.0.2", "#clients"), "the address")
    page.tab.get_by_label("hide addresses").check()
    eventually(lambda: page.shows("host-", "#clients") and not page.shows("10.1.0.2"), "a name in its place")
    open_first_client(page, "wifi")
    eventually(lambda: page.shows("host-", "#decision-rows"), "decisions without addresses")
    assert "10.2.0.2" not in page.tab.content()
    assert "10.1.0.2" not in page.tab.content()


@pytest.mark.usefixtures("capped")
def test_strangers_see_no_address_until_they_log_in(browser: Browser) -> None:
    with PageInBrowser.open(browser) as page:
        eventually(lambda: page.shows("host-", "#clients"), "a name in place of the address")
        assert page.tab.get_by_label("search").is_disabled()
        assert page.tab.get_by_role("button", name="pause for 10 minutes").count() == 0
        page.log_in()
        eventually(lambda: page.shows("10.1.0.2", "#clients"), "the address")


def test_rate_set_on_the_page_is_applied_and_reset(capped: ProxyWorld, page: PageInBrowser) -> None:
    page.tab.get_by_role("button", name="set rate of ethernet").click()
    page.tab.get_by_label("rate", exact=True).fill("3 apples")
    page.tab.get_by_role("button", name="Set", exact=True).click()
    eventually(lambda: page.shows("is not a rate", "#set-rate .problem"), "refused")
    page.tab.get_by_label("rate", exact=True).fill("3mbit")
    page.tab.get_by_role("button", name="Set", exact=True).click()
    eventually(lambda: [subflow.rate for subflow in capped.capped()] == [3_000_000], "the rate is applied")
    eventually(lambda: page.network("ethernet")["cap"].startswith("3mbit per client (by hand, for "), "it is shown")
    page.tab.get_by_role("button", name="reset rates of ethernet").click()
    eventually(lambda: [subflow.rate for subflow in capped.capped()] == [1_000_000], "the configured rate")
    page.tab.get_by_role("button", name="pause for 10 minutes").click()
    eventually(lambda: page.shows("Paused by the operator", "#notice"), "paused")
    assert capped.capped() == []
    page.tab.get_by_role("button", name="resume").click()
    capped.wait_capped()


@pytest.mark.usefixtures("capped")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", ["desktop", "telephone"])
def test_page_has_no_violation_that_axe_core_finds(browser: Browser, theme: str, screen: str) -> None:
    options: dict[str, Any] = TELEPHONE if screen == "telephone" else {}
    with PageInBrowser.open(browser, color_scheme=theme, **options) as page:
        page.log_in()
        page.wait_drawn(600)
        open_first_client(page, "ethernet")
        eventually(lambda: page.shows("wifi is live", "#decision-rows"), "the decision")
        assert not violations(Axe().run(page.tab).response)
        page.tab.get_by_role("button", name="set rate of ethernet").click()
        assert not violations(Axe().run(page.tab).response)
        page.tab.get_by_role("button", name="Cancel").last.click()
        width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 0


def test_axe_core_finds_what_is_wrong(page: PageInBrowser) -> None:
    page.wait_live()
    page.evaluate("document.querySelector('#pattern').closest('label').replaceWith(document.querySelector('#pattern'))")
    page.evaluate("document.querySelector('#pattern').removeAttribute('placeholder')")
    assert violations(Axe().run(page.tab).response)


@pytest.mark.usefixtures("capped")
def test_client_is_opened_by_the_keyboard_and_keeps_the_focus(page: PageInBrowser) -> None:
    eventually(lambda: page.client_button("ethernet").count() == 1, "a client")
    page.evaluate("document.querySelector('.skip').focus()")
    for _ in range(60):
        page.tab.keyboard.press("Tab")
        if (
            page.evaluate("document.activeElement.closest('#client-tables') && document.activeElement.tagName")
            == "BUTTON"
        ):
            break
    page.tab.keyboard.press("Enter")
    eventually(lambda: len(page.subflows()) >= 2, "the client is open")
    before = page.text("#client-tables")
    eventually(lambda: page.text("#client-tables") != before, "the next answer")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"


@pytest.mark.usefixtures("capped")
def test_search_shows_only_what_matches(page: PageInBrowser) -> None:
    eventually(lambda: page.tab.locator("#client-tables h3").count() == 2, "both networks")
    page.tab.get_by_label("search").fill("cap")
    eventually(lambda: page.tab.locator("#client-tables h3").all_inner_texts() == ["ethernet"], "the capped one")
    page.tab.get_by_label("search").fill("nothing like that")
    eventually(lambda: page.tab.locator("#client-tables h3").count() == 0, "none")


def test_pictures_of_the_page(world: ProxyWorld, browser: Browser, tmp_path: Path) -> None:
    """`PICTURES=docs/pictures ./run-tests tests/browser -k pictures` draws the pictures of the documents again."""
    directory = Path(os.environ.get("PICTURES", tmp_path)).absolute()
    download = world.download()
    world.wait_settled()
    began = time.monotonic()
    if "PICTURES" in os.environ:  # a minute of history
        eventually(lambda: time.monotonic() > began + 75, "some history", within=120)
    screens: dict[str, dict[str, Any]] = {
        "page": {"viewport": {"width": 1200, "height": 900}},
        "page-telephone": TELEPHONE,
    }
    for name, options in screens.items():
        with PageInBrowser.open(browser, "#theme=dark" if options is TELEPHONE else "", **options) as page:
            page.wait_drawn(600)
            open_first_client(page, "ethernet")
            page.wait_points(10)
            for network in ("ethernet", "wifi"):
                assert re.search(rf"Latest: .*{network} \d+\.\d+ [kMG]b/s", page.chart_label())
            page.evaluate("scrollTo(0, 0)")  # where the chart is, counts from the top of the picture
            page.picture(directory / f"{name}.png")
            # The canvas is replaced whenever the chart is drawn, its parent is not.
            place = page.tab.locator("#network-chart").bounding_box()
            check_picture(directory / f"{name}.png", options, place)
    assert download.running


def check_picture(path: Path, options: dict[str, Any], chart: FloatRect | None) -> None:
    """It has the width of the screen, the colours of the theme, and in the chart the colours of two networks."""
    picture, scale = imread(path), options.get("device_scale_factor", 1)
    height, width, _ = picture.shape
    assert width == scale * options["viewport"]["width"]
    assert height >= scale * options["viewport"]["height"]
    is_dark = options is TELEPHONE
    back = [0x12, 0x16, 0x1D] if is_dark else [0xFF, 0xFF, 0xFF]
    assert [round(255 * part) for part in picture[0, 0, :3]] == back
    assert chart is not None
    left, top, right, bottom = (
        round(scale * edge)
        for edge in (chart["x"], chart["y"], chart["x"] + chart["width"], chart["y"] + chart["height"])
    )
    red, green, blue = (picture[top:bottom, left:right, part] for part in range(3))
    # Axes and their texts are nearly grey: any other pixel is of a line. Ten seconds of ten minutes are a few.
    blues, oranges = blue - red > 0.2, red - blue > 0.2
    assert (blues & (blue > green)).any()
    assert (oranges & (red > green)).any()
