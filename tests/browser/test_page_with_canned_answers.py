"""The page in a real browser, before a daemon that answers what a test says."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from page_in_browser import PASSWORD, PageInBrowser
from page_server import CannedDaemon, Certificate, PageServer, canned_daemon, free_port, page_server
from polling import eventually

from mptcp_throttle.config.password_hash import PasswordHash
from mptcp_throttle.findings import daemon_findings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

NUMBER_OF_BLUE_DOTS: Final = """canvas => {
    const dots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return dots.filter((red, place) => place % 4 === 0 && dots[place + 2] - red > 50).length;
}"""
WITH_CONTROL: Final = {"password_hash": str(PasswordHash.of(PASSWORD)), "control": True}


RATE: Final = {"rate": "1mbit", "rate_bps": 1_000_000}


def client(address: str, *ports: int) -> dict[str, Any]:
    """A client with a subflow for each port."""
    rates = {"sent_bps": 1_000_000, "received_bps": 0}
    subflows = [
        {**rates, "client_port": port, "proxy": "192.0.2.1:8080", "rtt_ms": 20.0, "state": "cap", "not_enforced": None}
        | {"downlink": {**RATE, "kind": "cap", "reason": f"{address}:{port} is capped"}, "uplink": {"kind": None}}
        for port in ports
    ]
    return {
        **rates,
        "client": address,
        "rate_bps": 1_000_000,
        "throttled_bps": 1_000_000,
        "throttled_subflows": len(ports),
        "subflows": subflows,
        "more_subflows": 0,
    }


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[CannedDaemon]:
    """With one access network, which has two clients."""
    with canned_daemon(tmp_path) as daemon:
        daemon.status["daemon"].update(interfaces=["eth0"], classifier="nft", errors=[])
        (network,) = daemon.top["networks"]
        network.update(
            per="client",
            subflows=2,
            throttled_subflows=2,
            clients=[client("10.1.0.2", 40001), client("10.1.0.3", 40002)],
        )
        yield daemon


@pytest.fixture
def server(tmp_path: Path, daemon: CannedDaemon) -> Iterator[PageServer]:
    assert not daemon.changes
    with page_server(tmp_path, WITH_CONTROL) as server:
        yield server


@pytest.fixture
def page(own_browser: Browser, server: PageServer) -> Iterator[PageInBrowser]:
    """Logged in. In the end no script has failed."""
    with PageInBrowser.open(own_browser, address=f"{server.origin}/") as page:
        page.log_in()
        page.wait_live()
        yield page


def clients_shown(page: PageInBrowser) -> list[str]:
    """In the order of their rows."""
    return page.tab.locator("#client-tables button").all_inner_texts()


def focused(page: PageInBrowser) -> str:
    """The text of the element that has the focus."""
    return str(page.evaluate("document.activeElement.textContent"))


def test_focus_stays_on_a_client_whose_row_moves_then_on_its_table(daemon: CannedDaemon, page: PageInBrowser) -> None:
    eventually(lambda: clients_shown(page) == ["10.1.0.2", "10.1.0.3"], "both clients")
    page.tab.get_by_role("button", name="10.1.0.3").focus()
    (network,) = daemon.top["networks"]
    first, second = network["clients"]
    for clients in ([second, first], [first, client("10.1.0.4"), second], [second, client("10.1.0.5")]):
        network["clients"] = clients
        eventually(lambda: clients_shown(page) == [shown["client"] for shown in clients], "the new order")  # noqa: B023
        assert focused(page) == "10.1.0.3"
    network["clients"] = [first]
    eventually(lambda: clients_shown(page) == ["10.1.0.2"], "one client")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "region"


def test_focus_stays_on_the_button_that_pauses_and_resumes(daemon: CannedDaemon, page: PageInBrowser) -> None:
    page.tab.get_by_role("button", name="pause for 10 minutes").press("Enter")
    eventually(lambda: daemon.changes == [("pause", 600.0)], "a pause")
    daemon.status["daemon"]["pause"] = {"expires_at": None, "seconds_left": None}
    eventually(lambda: focused(page) == "resume", "the focus on what ends it")
    page.tab.keyboard.press("Enter")
    eventually(lambda: daemon.changes[1:] == [("resume",)], "the end of the pause")


def test_address_bar_has_no_address_of_a_client_that_is_hidden(page: PageInBrowser) -> None:
    page.tab.get_by_role("button", name="10.1.0.2").click()
    page.tab.get_by_label("search").fill("10.1.0")
    eventually(lambda: page.evaluate("location.href").count("10.1.0") == 2, "both are in the address")
    page.tab.get_by_label("hide addresses").check()
    eventually(lambda: page.evaluate("location.href").endswith("#hidden=true"), "neither is")
    eventually(lambda: page.shows("host-", "#client-tables"), "names")
    assert "10.1.0" not in page.tab.content()
    page.tab.locator("#client-tables button").first.click()
    with page.tab.expect_request(lambda request: "pattern=10.1.0" in request.url):
        page.tab.get_by_label("search").fill("10.1.0")
    assert "10.1.0" not in page.evaluate("location.href")
    assert "host-" in page.evaluate("location.href")
    page.tab.get_by_label("hide addresses").uncheck()
    eventually(lambda: page.evaluate("location.href").endswith("/"), "what was open had another name")


def test_nothing_is_left_after_a_log_out_on_another_address(
    own_browser: Browser, tmp_path: Path, daemon: CannedDaemon
) -> None:
    daemon.status["daemon"]["errors"] = ["class 4d50:2: refused"]
    made, port = Certificate.made_in(tmp_path), free_port()
    web = {**WITH_CONTROL, **made.settings, "listen": f"0.0.0.0:{port}"}
    address = f"https://127.0.0.1:{port}/"
    with (
        page_server(tmp_path, web),
        PageInBrowser.open(own_browser, address=address, ignore_https_errors=True) as page,
    ):
        eventually(lambda: page.shows("log in to see anything", "#connection"), "nothing before the log-in")
        page.log_in()
        page.wait_drawn(600)
        for shown in ("10.1.0.2", "lte", "refused"):
            assert page.shows(shown, "main")
        assert page.text("#versions").endswith(" on eth0, classes assigned by nft")
        page.tab.get_by_role("button", name="log out").click()
        eventually(lambda: page.shows("log in to see anything", "#connection"), "nothing after it")
        for hidden in ("10.1.0.2", "lte", "refused"):
            assert not page.shows(hidden, "main")
        assert page.text("#versions") == ""
        assert page.tab.locator("#network-chart canvas").count() == 0
        page.log_in()
        eventually(lambda: page.shows("10.1.0.2", "main"), "it is back")


def test_log_in_survives_a_reload_and_is_that_of_all_tabs(page: PageInBrowser) -> None:
    page.tab.reload()
    page.tab.get_by_role("button", name="log out").wait_for()
    second = page.tab.context.new_page()
    second.goto(page.evaluate("location.href"))
    second.get_by_role("button", name="log out").wait_for()


@pytest.mark.parametrize(
    ("what", "seconds", "shown"), [("delay", 8.0, "no answer since "), ("rates_age", 60.0, "the rates are those of ")]
)
def test_answers_and_rates_that_are_late_are_reported(
    daemon: CannedDaemon, page: PageInBrowser, what: str, seconds: float, shown: str
) -> None:
    setattr(daemon, what, seconds)
    eventually(lambda: page.shows(f"not up to date: {shown}", "#connection"), "the problem")
    setattr(daemon, what, 0.0)
    page.wait_live()


def test_screen_readers_hear_of_changes_and_not_of_counts(daemon: CannedDaemon, page: PageInBrowser) -> None:
    page.evaluate(
        """() => {
            window.heard = [];
            const status = document.querySelector("[role=status]");
            const observer = new MutationObserver(() => heard.push(status.textContent));
            observer.observe(status, {childList: true, subtree: true});
        }"""
    )
    assert page.tab.get_by_role("status").count() == 1
    for number in (7, 8, 9):
        daemon.top["connections"] = number
        eventually(lambda: page.shows(f"live: {number} connections", "#connection"), "the count")  # noqa: B023
    daemon.rates_age = 60.0
    eventually(lambda: page.shows("not up to date", "#connection"), "old rates")
    daemon.rates_age = 0.0
    page.wait_live()
    heard = page.evaluate("heard")
    assert [text.partition(":")[0] for text in heard] == ["not up to date", "live"]


@contextmanager
def another_server() -> Iterator[tuple[str, list[str]]]:
    """Its address, on another port of the same host, and the cookies that it receives."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers.get("Cookie", ""))
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", received
        finally:
            server.shutdown()
            serving.join()


def test_server_on_another_port_cannot_act_in_the_session(
    page: PageInBrowser, server: PageServer, daemon: CannedDaemon
) -> None:
    with another_server() as (address, received):
        foreign = page.tab.context.new_page()
        foreign.goto(address)
        cookie = {"Cookie": received[0]}
        assert "mptcp-throttle-session=" in received[0]
        assert not server.ask("/api/session", headers=cookie).json["logged_in"]
        assert server.ask("/api/change/pause", {"seconds": 600}, cookie).status == 401
        assert foreign.evaluate("localStorage.length") == 0
        fetched = (
            "([url, options]) => fetch(url, {credentials: 'include', ...options}).then((a) => a.text(), () => 'no')"
        )
        assert foreign.evaluate(fetched, [f"{server.origin}/api/session", {}]) == "no"
        post = {"method": "POST", "mode": "no-cors", "body": "{}"}
        assert foreign.evaluate(fetched, [f"{server.origin}/api/change/pause", post]) in {"", "no"}
        assert daemon.changes == []
    assert page.tab.get_by_role("button", name="log out").count() == 1


def test_skip_link_keeps_the_choices(page: PageInBrowser) -> None:
    page.choose("range", "1 hour")
    eventually(lambda: page.evaluate("location.href").endswith("#range=3600"), "the choice is in the address")
    page.evaluate("document.querySelector('.skip').focus()")
    page.tab.keyboard.press("Enter")
    eventually(lambda: bool(page.evaluate("document.activeElement.id === 'networks'")), "it skips")
    assert page.evaluate("location.href").endswith("#range=3600")


def test_choices_follow_the_address(page: PageInBrowser) -> None:
    page.choose("order", "name")
    eventually(lambda: page.evaluate("location.href").endswith("#order=name"), "the choice is in the address")
    page.evaluate("location.hash = '#range=3600&theme=dark'")
    page.wait_drawn(3600)
    values = [page.tab.locator(f"#{control}").input_value() for control in ("range", "order", "theme")]
    assert values == ["3600", "sent", "dark"]
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("location.href").endswith("#range=3600&theme=dark")
    for theme in ("dark", "light"):
        page.choose("theme", theme)
        scheme = "getComputedStyle(document.documentElement).colorScheme"
        eventually(lambda: page.evaluate(scheme) == theme, "the scheme of controls")  # noqa: B023


def test_error_of_a_chart_stays_until_the_chart_is_drawn(daemon: CannedDaemon, page: PageInBrowser) -> None:
    daemon.history_problem = "no history is kept"
    page.tab.get_by_role("button", name="10.1.0.2").click()
    eventually(lambda: page.shows("no history is kept", "#client-tables"), "the error")
    for number in (7, 8):
        daemon.top["connections"] = number
        eventually(lambda: page.shows(f"live: {number} connections", "#connection"), "the next answer")  # noqa: B023
        assert page.shows("no history is kept", "#client-tables")
    daemon.history_problem = None
    eventually(lambda: page.tab.locator("#client-tables canvas").count() == 1, "the chart")
    assert not page.shows("no history is kept", "#client-tables")


def test_networks_and_clients_have_what_was_throttled_and_held_back(daemon: CannedDaemon, page: PageInBrowser) -> None:
    def row() -> tuple[str, str]:
        network = page.network("lte")
        return network["sent throttled"], network["held back"]

    eventually(lambda: row() == ("1.25 MB", "3.2 s"), "the network's", seen=row)
    daemon.top["networks"][0]["totals"] = {"ip_sent_throttled": 0, "held_back_ms": 0}
    eventually(lambda: row() == ("0 B", "0.0 s"), "nothing yet", seen=row)
    page.tab.get_by_role("button", name="10.1.0.2").click()
    line = "last 10 minutes: 100.00 kB sent throttled, held back for 0.4 s"
    eventually(lambda: page.shows(line, "#client-tables"), "the client's")


def test_network_of_a_proxy_says_so(daemon: CannedDaemon, page: PageInBrowser) -> None:
    name = page.tab.locator("#network-rows th")
    eventually(lambda: name.inner_text() == "lte", "of all proxies")
    daemon.top["networks"][0]["proxy"] = "guests"
    eventually(lambda: name.inner_text() == "lte (proxy guests)", "of one")


def test_chart_has_its_colour_although_answers_overtake_the_history(daemon: CannedDaemon, page: PageInBrowser) -> None:
    waiting: list[Route] = []
    hour = re.compile(r"/api/history\?.*seconds=3600")
    page.tab.route(hour, lambda route: waiting.append(route))
    with page.tab.expect_request(hour):
        page.choose("range", "1 hour")
    daemon.top["connections"] = 7
    page.tab.get_by_text("live: 7 connections").wait_for()
    start = list(range(int(time.time()) - 1800, int(time.time()), 10))
    rates = [1_000_000] * len(start)
    for route in waiting:
        route.fulfill(json={"resolution": 10, "start": start, "sent": rates, "received": rates})
    page.wait_drawn(3600)
    assert page.chart.evaluate(NUMBER_OF_BLUE_DOTS) > 1000


def test_decisions_of_other_days_show_their_date(daemon: CannedDaemon, page: PageInBrowser) -> None:
    decision = {
        "client": "10.1.0.2",
        "client_port": 40001,
        "network": "lte",
        "direction": "downlink",
        "kind": "cap",
        "rate": "1mbit",
    }
    noon = time.mktime((2026, 3, 1, 12, 0, 0, 0, 0, -1))
    daemon.recent = [{**decision, "at": at, "reason": "wifi is live"} for at in (time.time(), noon)]
    times = page.tab.locator("#decision-rows td:first-child")
    eventually(lambda: times.count() == 2, "both decisions")
    today, earlier = times.all_inner_texts()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", today)
    assert re.fullmatch(r".*Mar.*2026.*12:00:00", earlier)


def test_hour_after_midnight_is_zero(own_browser: Browser, server: PageServer) -> None:
    with PageInBrowser.open(own_browser, address=f"{server.origin}/", locale="en-US", timezone_id="UTC") as page:
        ticks = "import('/static/format.js').then(({tick}) => [5, 60].map((step) => tick(86400 * 20000 + 65, step)))"
        assert page.evaluate(ticks) == ["00:01:05", "00:01"]


def test_all_that_needs_attention_is_shown_with_its_remedy(daemon: CannedDaemon, page: PageInBrowser) -> None:
    eventually(lambda: page.findings() == ["nothing"], "no finding")
    daemon.status["sniffer"].update(connected=False, problem="no service answers")
    daemon.status["daemon"].update(
        errors=["no class is left", "<img src=x onerror=alert(1)>"],
        not_enforced=["10.1.0.2:40001 sends 5.00 Mb/s"],
        config={"problems": ["service.yaml:3: cap: 'x'"]},
    )
    daemon.status["daemon"]["features"]["pacing"]["problem"] = "no CAP_PERFMON"
    eventually(lambda: len(page.findings()) == 6, "all of them")
    remedies = {
        finding.problem: finding.remedy for finding in daemon_findings(daemon.status) if finding.problem is not None
    }
    assert len(remedies) == 6
    for problem, remedy in remedies.items():
        (line,) = (line for line in page.findings() if problem in line)
        assert line.endswith(f": {problem}; remedy: {remedy}")
        assert remedy
    assert len(page.problems()) == 5
    begins = "note: pacing: missing, so a cap slows down the whole connection: no CAP_PERFMON; remedy: "
    assert page.findings()[-1].startswith(begins)
    assert any(line.startswith("problem: mptcp-throttled: no class is left; remedy: ") for line in page.findings())
    assert page.tab.locator("#attention img").count() == 0


def test_subflow_whose_uplink_is_not_enforced_says_so_beside_its_downlink(
    daemon: CannedDaemon, page: PageInBrowser
) -> None:
    (network,) = daemon.top["networks"]
    uplink = {**RATE, "kind": "cap", "reason": "wifi is live", "not_enforced": "its ACKs are not seen"}
    network["clients"][0]["subflows"][0]["uplink"] = uplink
    page.tab.get_by_role("button", name="10.1.0.2").click()
    reason = "is capped; uplink: NOT ENFORCED: its ACKs are not seen"
    eventually(lambda: any(reason in row for row in page.subflows()), "both reasons")


def test_rates_of_uplinks_set_by_hand_are_marked(daemon: CannedDaemon, page: PageInBrowser) -> None:
    eventually(lambda: page.network("lte")["uplink rates"] == "cap 500kbit per client", "the configured rate")
    uplink = daemon.top["networks"][0]["rates"]["uplink"]
    uplink["cap"].update(reason="by hand", seconds_left=600.0)
    uplink["limit"].update(reason="by hand, until reset")
    shown = "cap 500kbit per client (by hand, for 10 min), limit unlimited (by hand, until reset)"
    eventually(lambda: page.network("lte")["uplink rates"] == shown, "both are marked")
    assert page.network("lte")["cap"] == "1mbit per client"


def test_names_of_buttons_begin_with_what_they_show(page: PageInBrowser) -> None:
    """WCAG 2.2, 2.5.3: who speaks to the computer says what is to be seen."""
    buttons = page.tab.locator("main button[aria-label]")
    eventually(lambda: buttons.count() == 2, "the buttons")
    for button in buttons.all():
        assert (button.get_attribute("aria-label") or "").startswith(button.inner_text())
