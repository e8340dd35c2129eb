"""Each state of the page, with answers of an invented company. The clock of the page stands at that of the answers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import page_answers as answers
import pytest
from canned_page import CannedPage, canned_page
from matplotlib.image import imread
from page_company import NOW, at
from page_in_browser import PageInBrowser
from PIL import Image
from polling import eventually

from mptcp_throttle.config.schema import Sockets

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDTHS: Final = {"telephone": 390, "tablet": 768, "desktop": 1440}
SHOWN: Final[tuple[tuple[str, Literal["dark", "light"]], ...]] = (
    ("telephone", "dark"),
    ("tablet", "light"),
    ("desktop", "dark"),
    ("desktop", "light"),
)
DAEMON: Final = Sockets.below(Path("/run/mptcp-throttle")).daemon
EVENT: Final = {"at": NOW, "network": "lte", "device": None, "reason": None, "until": None, "more_events": 0}
BUS: Final = "#client=10.2.0.14"


@pytest.fixture
def canned() -> Iterator[CannedPage]:
    with canned_page() as canned:
        yield canned


@contextmanager
def opened(browser: Browser, canned: CannedPage, fragment: str = "", **options: Any) -> Iterator[PageInBrowser]:  # noqa: ANN401
    """In English, and at the time of the answers."""
    given = {"locale": "en-GB", "timezone_id": "Europe/Berlin", "viewport": {"width": 1440, "height": 900}, **options}
    with PageInBrowser.open(browser, fragment, f"{canned.origin}/", now=NOW, **given) as page:
        yield page


def well(canned: CannedPage) -> None:
    canned.clients = answers.clients(is_sick=False)
    canned.event = answers.event(rows=canned.clients, is_missing=False, is_sick=False)


def problem(canned: CannedPage) -> None:
    canned.clients[0] = answers.client(14, "bus-14", 38, wifi=3_150_000, lte=5_000_000)
    canned.clients[0]["networks"][1]["not_enforced"] = answers.NOT_PACED
    canned.event = answers.event(rows=canned.clients, not_enforced=[answers.NOT_ENFORCED])


def paused(canned: CannedPage) -> None:
    canned.clients = answers.paused_clients()
    pause = {"expires_at": NOW + 600, "seconds_left": 600}
    canned.event = answers.event(rows=canned.clients, pause=pause)


def away(canned: CannedPage) -> None:
    canned.event = {"problem": f"{DAEMON}: no service answers ([Errno 111] Connection refused)"}


def loading(canned: CannedPage) -> None:
    canned.silent = True


def empty(canned: CannedPage) -> None:
    """Nothing is configured but networks, and nobody is connected."""
    canned.clients = []
    canned.event = answers.event(rows=[], is_missing=False, is_sick=False)
    canned.parts = {
        "budgets": {"problem": None, "budgets": [], "omitted": 0},
        "saved": {"problem": "there is no control group: daemon.control_group is 0"},
        "timeline": {"instance": "a", "latest": 0, "events": []},
        "waiting": {"hours": [], "clients": []},
        "week": {**answers.week(None), "networks": []},
    }


def of_a_fleet(canned: CannedPage) -> None:
    """One of three proxies is not heard. A client has used its budgets at two of them."""
    canned.event["daemon"]["fleet"] = answers.fleet()
    (row,) = (row for row in canned.clients if row["device"] == "bus-14")
    canned.parts["client"] = answers.of_several_proxies(answers.one_client(row))


def unchanged(_: CannedPage) -> None:
    """As `page_answers` has it: it works, with one note."""


STATES: Final = {
    "page": (unchanged, "", "It works, with one note"),
    "page-well": (well, "", "All is well"),
    "page-problem": (problem, "", "One rate is not enforced"),
    "page-paused": (paused, "", "Paused: nothing is throttled"),
    "page-away": (away, "", "systemctl status mptcp-throttled on the proxy says why"),
    "page-loading": (loading, "", "Asking the daemon"),
    "page-empty": (empty, "", "No client is connected"),
    "page-client": (unchanged, BUS, "Throttled to 256 kb/s on lte by budget"),
    "page-fleet": (of_a_fleet, "", "2 of 3 in reach send 80.0 Mb/s, for 240 connections"),
    "page-client-fleet": (of_a_fleet, BUS, "Over several proxies"),
}


def wait_shown(page: PageInBrowser, words: str) -> None:
    """Wait until all that the state has is there."""
    eventually(lambda: page.shows(words, "main"), words)
    if page.shows("live: ", "#connection"):
        page.wait_drawn(600)
        if page.evaluate("document.querySelector('#client-page').hidden"):
            eventually(lambda: not page.evaluate("document.querySelector('#clients').hidden"), "the clients")


@pytest.mark.parametrize("state", STATES)
def test_state_has_its_words_and_no_violation(own_browser: Browser, canned: CannedPage, state: str) -> None:
    prepare, fragment, words = STATES[state]
    prepare(canned)
    with opened(own_browser, canned, fragment) as page:
        for width, theme in SHOWN:
            page.tab.set_viewport_size({"width": WIDTHS[width], "height": 900})
            page.tab.emulate_media(color_scheme=theme)
            wait_shown(page, words)
            assert page.violations() == [], (width, theme)
            assert page.overflow() <= 0, (width, theme)


@pytest.mark.parametrize("width", [360, 2560])
def test_page_fits_the_narrowest_and_the_widest_window(own_browser: Browser, canned: CannedPage, width: int) -> None:
    for state in ("page", "page-client"):
        _, fragment, words = STATES[state]
        with opened(own_browser, canned, fragment, viewport={"width": width, "height": 900}) as page:
            wait_shown(page, words)
            assert page.overflow() <= 0


def test_pictures_have_the_width_and_the_theme(own_browser: Browser, canned: CannedPage, tmp_path: Path) -> None:
    """`PICTURES=docs/pictures ./run-tests tests/browser -k pictures` draws all pictures of the documents again."""
    shots = [("page", "telephone", "dark"), ("page-client", "telephone", "dark"), ("page", "tablet", "light")]
    if "PICTURES" in os.environ:
        shots += [(state, "desktop", "light") for state in STATES]
    directory = Path(os.environ.get("PICTURES", tmp_path)).absolute()
    for state, width, theme in shots:
        prepare, fragment, words = STATES[state]
        canned.event, canned.parts, canned.silent = answers.event(), {}, False
        canned.clients = answers.clients()
        prepare(canned)
        viewport = {"width": WIDTHS[width], "height": 800}
        name = state if width == "desktop" else f"{state}-{width}"
        with opened(own_browser, canned, fragment, color_scheme=theme, viewport=viewport) as page:
            wait_shown(page, words)
            page.picture(directory / f"{name}.png")
        picture = imread(directory / f"{name}.png")
        # 256 colours are enough, and a third of the size.
        Image.open(directory / f"{name}.png").quantize().save(directory / f"{name}.png", optimize=True)
        assert picture.shape[1] == WIDTHS[width]
        back = [0x0E, 0x11, 0x16] if theme == "dark" else [0xF6, 0xF7, 0xF9]
        assert [round(255 * part) for part in picture[-1, 0, :3]] == back


def test_figures_are_those_of_the_answers(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        assert page.shows("168 GB 68 % less", "#saved")
        assert page.shows("nothing for 99 % of 64 clients this hour", "#waiting")
        assert page.shows("bus-14 38 ms now 256 kb/s on lte, budget: wifi is live; cap: 1 GB per day used", "#waiting")
        assert page.shows("82 % 41.2 GB of 50.0 GB, warns at 80 %", "#budgets")
        assert page.shows("Will be spent on Fri 27 Nov, 22:00", "#budgets")
        assert page.shows("Spent by 1 of 17: bus-14. 2 more are near it.", "#budgets")
        assert page.shows(
            "cap 512 kb/s per client schedule Mon..Fri 08:00-18:00, until 18:00", ".card[aria-label='lte']"
        )
        assert page.counts("satellite") == {"clients": "3", "subflows": "3", "throttled": "3"}
        assert page.shows("18:00 lte cap 1.0 Mb/s, as the window ends", "#week")
        assert page.clients()[0] == "bus-14"


def test_proxies_of_a_fleet_are_listed_with_what_each_carries(own_browser: Browser, canned: CannedPage) -> None:
    of_a_fleet(canned)
    with opened(own_browser, canned) as page:
        wait_shown(page, "2 of 3 in reach send 80.0 Mb/s, for 240 connections")
        assert page.shows("proxy-1 (this one) reachable 1 s ago 1.0.0 60.0 Mb/s 5.0 Mb/s 120 31", "#proxies")
        assert page.shows("proxy-3 late 35 s ago 1.0.0 \u2013 \u2013 \u2013 \u2013", "#proxies")
        # Once it is heard, what it carries counts.
        canned.event = {**canned.event, "daemon": {**canned.event["daemon"], "fleet": answers.fleet(is_late=False)}}
    with opened(own_browser, canned) as page:
        wait_shown(page, "3 of 3 in reach send 89.0 Mb/s, for 360 connections")


def test_state_of_a_proxy_that_was_seen_long_ago_has_its_age(own_browser: Browser, canned: CannedPage) -> None:
    of_a_fleet(canned)
    fleet = canned.event["daemon"]["fleet"]
    fleet["proxies"] = [{**proxy, "state_age": 35.0} for proxy in fleet["proxies"]]
    with opened(own_browser, canned) as page:
        wait_shown(page, "0 of 3 in reach")
        assert page.shows("proxy-2 reachable 35 s ago 1 s ago 1.0.0 \u2013 \u2013 \u2013 \u2013", "#proxies")


def test_client_of_several_proxies_has_the_part_of_each(own_browser: Browser, canned: CannedPage) -> None:
    of_a_fleet(canned)
    with opened(own_browser, canned, BUS) as page:
        wait_shown(page, "Over several proxies")
        assert page.shows("proxy-1 525 MB 75 % proxy-2 175 MB 25 %", "#ladders")
        assert page.shows("Of its shared rates on lte for downloads, this proxy has 34 %.", "#ladders")


def test_week_of_the_clock_change_is_shown(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        canned.parts["week"] = answers.week(at(26, 12, month=10))
        page.button("The week before").click()
        eventually(lambda: page.shows("Sunday 1 November", "#week"), "that week")
        canned.parts["week"] = answers.week(at(20, 12, month=10))
        page.button("The week before").click()
        eventually(lambda: page.shows("clocks go back by 60 minutes", "#week"), "the change")
        page.button("This week").wait_for()


@pytest.mark.parametrize(
    ("locale", "shown"),
    [("de-DE", ("3,4 Mb/s", "27. Nov", "10.000 clients")), ("el-GR", ("3,4 Mb/s", "27 Νοε", "10.000 clients"))],
)
def test_numbers_and_dates_are_those_of_the_locale(
    own_browser: Browser, canned: CannedPage, locale: str, shown: tuple[str, ...]
) -> None:
    canned.clients += answers.many_clients(10_000 - len(canned.clients))
    with opened(own_browser, canned, locale=locale) as page:
        wait_shown(page, "It works, with one note")
        for text in shown:
            assert page.shows(text), text


def test_ten_thousand_clients_have_rows_only_where_they_are_seen(own_browser: Browser, canned: CannedPage) -> None:
    canned.clients = answers.many_clients(10_000)
    with PageInBrowser.open(own_browser, "#order=name", f"{canned.origin}/") as page:
        eventually(lambda: page.shows("10,000 clients", "#clients-count"), "all clients")
        assert page.clients()[0] == "bus-00000"
        scroll = page.tab.locator("#client-scroll")
        scroll.scroll_into_view_if_needed()
        scroll.evaluate("box => box.scrollTo(0, box.scrollHeight)")
        eventually(lambda: "bus-09999" in page.clients(), "the last client")
        assert page.tab.locator("#client-rows tr").count() < 120
        page.tab.get_by_role("searchbox").fill("bus-00777")
        eventually(lambda: page.clients() == ["bus-00777"], "the only one")


def test_client_has_an_address_that_survives_a_reload(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        page.client_link("bus-14").click()
        wait_shown(page, "Throttled to 256 kb/s on lte by budget")
        page.wait_points(100, "client-chart")
        assert page.evaluate("location.hash") == "#client=10.2.0.14"
        page.tab.reload()
        wait_shown(page, "Throttled to 256 kb/s on lte by budget")
        decides = page.tab.locator(".ladder .decides").inner_text()
        assert decides.split("\n")[0] == "budget"
        page.tab.go_back()
        wait_shown(page, "It works, with one note")
        page.tab.go_forward()
        wait_shown(page, "Throttled to 256 kb/s on lte by budget")


def test_charts_are_read_out_at_the_pointer_and_by_keys(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        chart = page.tab.locator("#network-chart")
        chart.hover()
        readout = chart.locator(".readout")
        eventually(lambda: all(name in readout.inner_text() for name in ("wifi", "satellite", "lte", "14:2")), "rates")
        page.tab.mouse.move(0, 0)
        eventually(readout.is_hidden, "no more")
        chart.focus()
        page.tab.keyboard.press("ArrowLeft")
        eventually(readout.is_visible, "the latest moment")


def test_keys_do_what_the_list_says(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        focused = "document.activeElement.id || document.activeElement.textContent"
        press = page.tab.keyboard.press
        press("/")
        eventually(lambda: page.evaluate(focused) == "pattern", "the search")
        page.tab.keyboard.type("bus")
        assert page.tab.locator("#pattern").input_value() == "bus"
        press("Escape")
        eventually(lambda: "depot-office" not in page.clients(), "what was searched")
        press("j")
        press("j")
        eventually(lambda: page.evaluate(focused) == page.clients()[1], "the second client")
        press("k")
        press("Enter")
        wait_shown(page, "Throttled to 256 kb/s on lte by budget")
        press("r")
        dialog = page.tab.get_by_role("dialog", name="Rate of bus-14")
        dialog.wait_for()
        press("Escape")
        dialog.wait_for(state="hidden")
        press("Escape")
        eventually(lambda: page.evaluate("location.hash") == "#pattern=bus", "all clients")
        press("g")
        press("b")
        eventually(lambda: page.evaluate(focused) == "budgets", "the budgets")
        press("?")
        page.tab.get_by_role("checkbox").uncheck()
        press("Escape")
        press("?")
        assert page.tab.get_by_role("dialog").count() == 0


def test_change_says_what_it_will_do_has_done_and_takes_it_back(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned, BUS) as page:
        wait_shown(page, "Throttled to 256 kb/s on lte by budget")
        page.button("Set rate").first.click()
        page.tab.get_by_label("Rate", exact=True).fill("5mbit")
        words = "The cap of bus-14 on lte becomes 5.0 Mb/s, while a more preferred network is live, for 60 min"
        eventually(lambda: page.shows(words, "#rate-preview"), "what it will do")
        assert not page.violations()
        page.button("Set rate").last.click()
        eventually(lambda: page.shows("set_rate was done", "#done"), "what it has done")
        subject = {"network": "lte", "client": "bus-14"}
        wanted = {**subject, "direction": "downlink", "kind": "cap", "rate": "5mbit", "seconds": 3600, "hidden": False}
        assert canned.changes == [("set_rate", wanted)]
        page.button("Undo").click()
        eventually(lambda: page.shows("It is as before.", "#done"), "that it was taken back")
        assert canned.changes[1:] == [("reset_rate", {**subject, "hidden": False})]


def test_rows_keep_their_places_under_the_pointer(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned, "#order=sent") as page:
        wait_shown(page, "It works, with one note")
        before = page.clients()
        page.client_link(before[1]).hover()
        last = next(row for row in canned.clients if row["device"] == "bus-07")
        last["sent_bps"] = 900_000_000
        eventually(lambda: page.shows("900 Mb/s", "#client-rows"), "the new rate")
        assert page.clients()[: len(before)] == before
        page.tab.mouse.move(0, 0)
        eventually(lambda: page.clients()[0] == "bus-07", "the new order")


def test_paper_has_tables_and_no_controls(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned, color_scheme="dark", viewport={"width": 700, "height": 900}) as page:
        wait_shown(page, "It works, with one note")
        page.tab.emulate_media(media="print")
        assert page.tab.locator("#client-rows tr").first.evaluate("row => getComputedStyle(row).display") == "table-row"
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
        assert page.tab.locator("button:visible").count() == 0


def test_telephone_folds_sections_and_the_address_remembers_them(own_browser: Browser, canned: CannedPage) -> None:
    viewport = {"width": WIDTHS["telephone"], "height": 900}
    with opened(own_browser, canned, viewport=viewport) as page:
        wait_shown(page, "It works, with one note")
        week, fold = page.tab.locator("#week-panel"), page.button("Section Schedules")
        eventually(fold.is_visible, "the head of the section")
        assert (week.is_visible(), fold.get_attribute("aria-expanded")) == (False, "false")
        fold.press("Enter")
        eventually(week.is_visible, "the week")
        page.button("Section Budgets").click()
        eventually(page.tab.locator("#budget-list").is_hidden, "no budgets")
        page.tab.reload()
        wait_shown(page, "It works, with one note")
        assert page.evaluate("location.hash") == "#folded=budgets+timeline"
        eventually(week.is_visible, "the week again")
        assert page.tab.locator("#budget-list").is_hidden()
        page.tab.set_viewport_size({"width": WIDTHS["desktop"], "height": 900})
        eventually(page.tab.locator("#budget-list").is_visible, "a wider screen shows all")
        assert fold.is_hidden()


def test_all_clients_that_match_are_printed_up_to_a_bound(own_browser: Browser, canned: CannedPage) -> None:
    canned.clients = answers.many_clients(1300)
    printed = """window.print = () => {
        window.printed = [document.querySelectorAll("#client-rows tr:not(.spacer)").length];
        window.printed.push(document.getElementById("clients-count").textContent);
    }"""
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        page.evaluate(printed)
        page.button("Print all clients").click()
        words = "1,000 clients of 1,300; 300 more match, which are not printed"
        eventually(lambda: page.evaluate("window.printed") == [1000, words], "the first ones")
        page.tab.get_by_role("searchbox").fill("bus-007")
        eventually(lambda: page.shows("100 of 1,300 clients", "#clients-count"), "what matches")
        page.button("Print all clients").click()
        eventually(lambda: page.evaluate("window.printed") == [100, "100 clients of 1,300"], "all that match")
        eventually(lambda: page.tab.locator("#client-rows tr:not(.spacer)").count() < 100, "those in view")


def test_nothing_moves_for_who_wants_less_motion(own_browser: Browser, canned: CannedPage) -> None:
    for motion, animations in (("reduce", 0), ("no-preference", 1)):
        with opened(own_browser, canned, reduced_motion=motion) as page:
            wait_shown(page, "It works, with one note")
            assert page.evaluate("document.getAnimations().length") == animations


def test_forced_colours_keep_bars_and_shapes(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned, forced_colors="active") as page:
        wait_shown(page, "It works, with one note")
        for part in (".budget-bar .used", ".saved-bar .carried", ".window.cap"):
            colour = page.tab.locator(part).first.evaluate("bar => getComputedStyle(bar).backgroundColor")
            assert colour not in {"rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"}, part


def test_screen_readers_hear_of_changes_and_not_of_counts(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        page.evaluate(
            """() => {
                window.heard = [];
                const status = document.getElementById("announcement");
                const observer = new MutationObserver(() => heard.push(status.textContent));
                observer.observe(status, {childList: true, subtree: true});
            }"""
        )
        for number in (7, 8, 9):
            canned.event = answers.event({"clients": number})
            eventually(lambda: page.shows(f"live: {number} clients", "#connection"), "the count")  # noqa: B023
        canned.event = answers.event({"rates_age": 60.0})
        eventually(lambda: page.shows("not up to date", "#connection"), "old rates")
        canned.event = answers.event()
        page.wait_live()
        assert [text.partition(":")[0] for text in page.evaluate("heard")] == ["not up to date", "live"]


@pytest.mark.parametrize("state", ["page-problem", "page-client"])
def test_screen_readers_read_in_the_order_of_the_screen(own_browser: Browser, canned: CannedPage, state: str) -> None:
    prepare, fragment, words = STATES[state]
    prepare(canned)
    viewport = {"width": WIDTHS["telephone"], "height": 900}
    with opened(own_browser, canned, fragment, viewport=viewport) as page:
        wait_shown(page, words)
        shown = page.evaluate(
            """() => [...document.querySelectorAll("h1, h2, h3")]
                .filter(heading => heading.checkVisibility())
                .map(heading => [Number(heading.tagName[1]), heading.getBoundingClientRect().top])"""
        )
        levels, tops = zip(*shown, strict=True)
        assert list(tops) == sorted(tops)
        assert levels[0] == 1
        assert all(below - above <= 1 for above, below in pairwise(levels))
        read = re.findall(r"heading .*\[level=(\d)\]", page.tab.locator("body").aria_snapshot())
        assert [int(level) for level in read] == list(levels)


def test_choices_follow_the_address(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        page.button("1 h").first.click()
        eventually(lambda: page.evaluate("location.hash") == "#range=3600", "the choice is in the address")
        page.evaluate("document.querySelector('.skip').focus()")
        page.tab.keyboard.press("Enter")
        eventually(lambda: bool(page.evaluate("document.activeElement.id === 'content'")), "it skips")
        page.evaluate("location.hash = '#range=86400&theme=dark&order=name'")
        page.wait_drawn(86400)
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        head = page.tab.locator("th[aria-sort]")
        assert (head.inner_text(), head.get_attribute("aria-sort")) == ("Client", "ascending")
        page.tab.reload()
        page.wait_drawn(86400)
        assert page.evaluate("location.hash") == "#range=86400&order=name&theme=dark"


def test_error_of_a_chart_stays_until_the_chart_is_drawn(own_browser: Browser, canned: CannedPage) -> None:
    canned.parts["history"] = {"problem": "no history is kept"}
    with opened(own_browser, canned) as page:
        eventually(lambda: page.shows("no history is kept", "#networks"), "the error")
        del canned.parts["history"]
        page.wait_points(100)
        eventually(lambda: not page.shows("no history is kept", "#networks"), "no error")


def test_daemon_that_is_away_is_not_offered_a_pause(own_browser: Browser, canned: CannedPage) -> None:
    away(canned)
    with opened(own_browser, canned) as page:
        wait_shown(page, "The daemon does not answer")
        assert page.button("Pause").count() == 0
        canned.event = answers.event()
        page.wait_live()
        assert page.button("Pause").count() == 1


def test_time_line_says_network_and_client_once(own_browser: Browser, canned: CannedPage) -> None:
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        shown = "bus-14 lte 1.004 GB used of the budget of 1 GB per client and day (100.4 %): at most cap 256 kb/s"
        eventually(lambda: page.shows(shown, "#happened"), "the event")
        assert page.shows("lte window Mon..Fri 08:00-18:00 began, until 18:00: cap 512 kb/s", "#happened")


@pytest.mark.parametrize("name", ["10.1.0.14", "host-1f2e3d4c"])
def test_cap_in_the_time_line_names_its_client_once(own_browser: Browser, canned: CannedPage, name: str) -> None:
    lines = {"cap-began": f"cap 1mbit for {name}: wifi is live", "cap-ended": f"no cap for {name} any more"}
    events = [{**EVENT, "kind": kind, "client": name, "text": f"lte: {text}"} for kind, text in lines.items()]
    canned.parts["timeline"] = {"instance": "a", "latest": 2, "events": events}
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        eventually(lambda: page.shows(f"{name} lte cap 1.0 Mb/s: wifi is live caps", "#happened"), "the begin")
        assert page.shows(f"{name} lte no cap any more caps", "#happened")


def test_network_of_a_proxy_and_rates_by_hand_say_so(own_browser: Browser, canned: CannedPage) -> None:
    network = canned.event["networks"][0]
    network["proxy"] = "guests"
    by_hand = answers.rate(500_000, "by hand", "by hand") | {"seconds_left": 600.0}
    unlimited = answers.rate(None, "by hand", "by hand, until reset")
    network["rates"] = {**network["rates"], "uplink": {"cap": by_hand, "limit": unlimited}}
    with opened(own_browser, canned) as page:
        wait_shown(page, "wifi (proxy guests)")
        card = ".card[aria-label='wifi']"
        assert page.shows("uplink cap 500 kb/s per client by hand, for 10 min", card)
        assert page.shows("no uplink limit by hand, until reset", card)


def test_subflow_whose_rate_is_not_enforced_says_so(own_browser: Browser, canned: CannedPage) -> None:
    row = canned.clients[0]
    row["networks"][1]["not_enforced"] = "its ACKs are not seen"
    with opened(own_browser, canned, BUS) as page:
        wait_shown(page, "by budget: not enforced: its ACKs are not seen")
        assert any("NOT ENFORCED: its ACKs are not seen" in text for text in page.subflows())


def test_names_of_buttons_begin_with_what_they_show(own_browser: Browser, canned: CannedPage) -> None:
    """WCAG 2.2, 2.5.3: who speaks to the computer says what is to be seen."""
    with opened(own_browser, canned) as page:
        wait_shown(page, "It works, with one note")
        for button in page.tab.locator("button[aria-label]:visible").all():
            words = button.locator("span").all_inner_texts() or [button.inner_text()]
            if "?" not in words[0]:
                assert (button.get_attribute("aria-label") or "").startswith(words[0].strip())
