"""The page in a real browser, beside real transfers: what it shows is what flows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from page_in_browser import PageInBrowser, bits_per_second
from polling import eventually

from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import Account, Kind
from mptcp_throttled.vocabulary.traffic import Traffic

if TYPE_CHECKING:
    from playwright.sync_api import Browser
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


def test_rates_on_the_page_are_those_that_ss_shows(world: ProxyWorld, page: PageInBrowser) -> None:
    world.begin_settled()
    eventually(lambda: 0.7e6 < page.sends("ethernet") < 1.3e6, "what the cap allows")
    port = next(subflow.client_port for subflow in world.services.subflows() if subflow.network == "wifi")
    eventually(lambda: abs(page.sends("wifi") / world.acked_rate(port, 2) - 1) < 0.1, "the rate that ss shows")
    page.open_client("10.2.0.2")
    eventually(lambda: any(str(port) in row for row in page.subflows()), "the subflow")


def test_figures_are_those_of_the_cli_and_of_ss(world: ProxyWorld, page: PageInBrowser) -> None:
    (capped,) = world.begin_settled()
    networks = {network["name"]: network for network in world.services.status()["networks"]}
    for name, network in networks.items():
        counts = {"clients": "1", "subflows": network["subflows"], "throttled": network["throttled_subflows"]}
        eventually(lambda: page.counts(name) == {word: str(number) for word, number in counts.items()}, str(counts))  # noqa: B023
    (rate,) = {networks["ethernet"]["rates"]["downlink"]["cap"]["rate_bps"], capped.rate}
    assert page.shows(f"cap {rate / 1e6:.1f} Mb/s per client", ".card[aria-label='ethernet']")

    def status(name: str) -> float:
        (network,) = (each for each in world.services.status()["networks"] if each["name"] == name)
        return float(network["sent_bps"])

    for name in networks:
        eventually(lambda: is_near(page.sends(name), status(name)), "the rate of status")  # noqa: B023
    page.open_client("10.2.0.2")
    row = next(row.split("\t") for row in page.subflows() if row.startswith("ethernet"))
    assert row[1] == str(capped.client_port)
    eventually(lambda: is_near(sends(page, capped.client_port), world.acked_rate(capped.client_port, 2)), "as ss")


def is_near(one: float, other: float) -> bool:
    return bool(other) and abs(one / other - 1) < 0.1


def sends(page: PageInBrowser, port: int) -> float:
    """What the subflow from that port is shown to send, in bits per second."""
    row = next(row.split("\t") for row in page.subflows() if str(port) in row)
    return bits_per_second(row[2])


def test_cap_is_on_the_page_within_two_seconds(world: ProxyWorld, page: PageInBrowser) -> None:
    page.wait_live()
    world.begin_capped()
    seconds = eventually(lambda: page.counts("ethernet").get("throttled") == "1", "the capped subflow")
    assert seconds < 2
    eventually(lambda: page.clients() == ["10.2.0.2"], "the client")
    eventually(lambda: page.shows("wifi is live", "#client-rows"), "the reason")
    page.open_client("10.2.0.2")
    eventually(lambda: any("cap" in row and "wifi is live" in row for row in page.subflows()), "the reason")
    assert page.shows("Throttled to 1.0 Mb/s on ethernet by cap", "#client-answer")
    eventually(lambda: page.shows("wifi is live", "#client-happened"), "the decision")


def test_restart_of_the_daemon_shows_and_heals(world: ProxyWorld, page: PageInBrowser) -> None:
    page.wait_live()
    world.daemon.stop()
    eventually(lambda: page.shows("not up to date", "#connection"), "the daemon is missed")
    assert page.shows("The daemon does not answer", "#verdict")
    world.start_daemon()
    page.wait_live()
    assert world.services.web is not None
    world.services.web.stop()
    eventually(lambda: page.shows("mptcp-throttle-web does not answer", "#connection"), "the service is missed")
    world.services.start_web()
    page.wait_live()
    eventually(lambda: not page.shows("does not answer", "#verdict"), "the sentence")


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
                document.querySelector("#range button[value='86400']").click();
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
def test_hidden_addresses_are_nowhere_on_the_page(page: PageInBrowser) -> None:
    eventually(lambda: page.clients() == ["10.2.0.2"], "the address")
    page.button("Hide addresses").click()
    eventually(lambda: page.clients()[:1] != [] and "host-" in page.clients()[0], "a name in its place")
    assert not page.shows("10.1.0.2")
    page.open_client("host-")
    eventually(lambda: page.shows("wifi is live", "#client-happened"), "decisions without addresses")
    assert "10.2.0.2" not in page.tab.content()
    assert "10.1.0.2" not in page.tab.content()


@pytest.mark.usefixtures("capped")
def test_strangers_see_no_address_until_they_log_in(browser: Browser) -> None:
    with PageInBrowser.open(browser) as page:
        eventually(lambda: "".join(page.clients()).startswith("host-"), "a name in place of the address")
        assert page.tab.get_by_role("searchbox").is_disabled()
        assert page.button("Pause").count() == 0
        assert page.tab.locator(".change:visible").count() == 0
        page.log_in()
        eventually(lambda: page.clients() == ["10.2.0.2"], "the address")


def test_rate_set_on_the_page_is_applied_and_taken_back(capped: ProxyWorld, page: PageInBrowser) -> None:
    page.button("Set rate of ethernet").click()
    page.tab.get_by_label("Rate", exact=True).fill("3 apples")
    page.button("Set rate").last.click()
    eventually(lambda: page.shows("is not a rate", "#set-rate .problem"), "refused")
    page.tab.get_by_label("Rate", exact=True).fill("3mbit")
    page.button("Set rate").last.click()
    eventually(lambda: [subflow.rate for subflow in capped.capped()] == [3_000_000], "the rate is applied")
    eventually(lambda: page.shows("cap 3.0 Mb/s per client by hand", ".card[aria-label='ethernet']"), "it is shown")
    eventually(lambda: 2.1e6 < page.sends("ethernet") < 3.6e6, "what flows")
    page.button("Undo").click()
    eventually(lambda: [subflow.rate for subflow in capped.capped()] == [1_000_000], "the configured rate")


def test_network_is_free_for_an_hour_then_reset(capped: ProxyWorld, page: PageInBrowser) -> None:
    page.button("Free for 1 h of ethernet").click()
    assert page.shows("Nothing is throttled for ethernet until ", "#confirm-preview")
    page.button("Free for 1 h").last.click()
    eventually(lambda: capped.capped() == [], "free")
    eventually(lambda: page.sends("ethernet") > 2e6, "what flows")
    page.button("Reset rates of ethernet").click()
    page.button("Reset").last.click()
    capped.wait_capped()


def test_client_has_a_rate_of_its_own(capped: ProxyWorld, page: PageInBrowser) -> None:
    eventually(lambda: page.clients() == ["10.2.0.2"], "the client")
    page.open_client("10.2.0.2")
    page.button("Set rate").first.click()
    page.tab.get_by_label("Rate", exact=True).fill("2mbit")
    page.button("Set rate").last.click()
    eventually(lambda: [subflow.rate for subflow in capped.capped()] == [2_000_000], "the rate is applied")
    eventually(lambda: page.shows("Throttled to 2.0 Mb/s on ethernet by hand", "#client-answer"), "it is shown")


def test_pause_frees_all_until_it_is_resumed(capped: ProxyWorld, page: PageInBrowser) -> None:
    page.button("Pause").click()
    page.button("Pause").last.click()
    eventually(lambda: page.shows("Paused: nothing is throttled", "#verdict"), "paused")
    assert capped.capped() == []
    page.button("Resume").click()
    capped.wait_capped()


@pytest.mark.usefixtures("capped")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_has_no_violation_that_axe_core_finds(browser: Browser, theme: str) -> None:
    with PageInBrowser.open(browser, color_scheme=theme, **TELEPHONE) as page:
        page.log_in()
        page.wait_drawn(600)
        eventually(lambda: page.clients() == ["10.2.0.2"], "the client")
        eventually(lambda: page.shows("wifi is live", "#client-rows"), "the reason")
        assert not page.violations()
        page.button("Set rate of ethernet").click()
        assert not page.violations()
        page.button("Cancel").last.click()
        assert page.overflow() <= 0


def test_axe_core_finds_what_is_wrong(page: PageInBrowser) -> None:
    page.wait_live()
    page.evaluate("document.querySelector('#pattern').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('#pattern').removeAttribute('placeholder')")
    eventually(lambda: not page.evaluate("document.querySelector('#clients').hidden"), "the clients")
    assert page.violations()


@pytest.mark.usefixtures("capped")
def test_tables_are_saved_as_files(page: PageInBrowser) -> None:
    eventually(lambda: page.clients() == ["10.2.0.2"], "the client")
    with page.tab.expect_download() as download:
        page.button("CSV of clients").click()
    assert download.value.suggested_filename == "mptcp-throttle-clients.csv"
    head, *rows = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert "client" in head.split(",")
    written = [dict(zip(head.split(","), row.split(","), strict=True)) for row in rows]
    assert [(row["client"], row["network.name"]) for row in written] == [("10.2.0.2", "wifi"), ("10.2.0.2", "ethernet")]


def test_waiting_is_saved_as_a_file(page: PageInBrowser) -> None:
    page.button("CSV of waiting").wait_for()
    with page.tab.expect_download() as download:
        page.button("CSV of waiting").click()
    head, *rows = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert "held_back_ms" in head.split(",")
    assert len(rows) == 24


@pytest.mark.usefixtures("capped")
def test_search_shows_only_what_matches(page: PageInBrowser) -> None:
    eventually(lambda: page.clients() == ["10.2.0.2"], "the client")
    page.tab.get_by_role("searchbox").fill("nothing like that")
    eventually(lambda: page.clients() == [], "none")
    page.tab.get_by_role("searchbox").fill("10.2.")
    eventually(lambda: page.clients() == ["10.2.0.2"], "the one")
