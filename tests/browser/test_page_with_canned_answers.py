"""The page and its service in a real browser, before a daemon that answers what a test says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Final

import page_answers
import pytest
from page_in_browser import PASSWORD, PageInBrowser
from page_server import CannedDaemon, Certificate, PageServer, canned_daemon, page_server
from polling import eventually

from mptcp_lab.free_port import free_port
from mptcp_throttle.config.password_hash import PasswordHash
from mptcp_throttle.findings import daemon_findings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WITH_CONTROL: Final = {"password_hash": str(PasswordHash.of(PASSWORD)), "control": True}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[CannedDaemon]:
    """With one access network, which has two clients."""
    with canned_daemon(tmp_path) as daemon:
        daemon.status["daemon"].update(interfaces=["eth0"], classifier="nft", errors=[], time_zone=None)
        daemon.status["networks"] = [page_answers.network("wifi", 1, 940_000)]
        clients = [page_answers.client(number, None, wifi=1000) for number in (1, 2)]
        daemon.clients = {"total": 2, "matching": 2, "start": 0, "on_networks": [], "clients": clients}
        daemon.events, daemon.week = page_answers.timeline(), page_answers.week(None)
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


def test_focus_stays_on_the_button_that_pauses_and_resumes(daemon: CannedDaemon, page: PageInBrowser) -> None:
    page.button("Pause").press("Enter")
    assert page.shows("All subflows are free for 10 minutes", "#confirm-preview")
    page.button("Pause").last.press("Enter")
    eventually(lambda: daemon.changes == [("pause", 600.0)], "a pause")
    daemon.status["daemon"]["pause"] = {"expires_at": None, "seconds_left": None}
    focused = "document.activeElement.textContent"
    eventually(lambda: page.evaluate(focused) == "Resume", "the focus on what ends it")
    page.tab.keyboard.press("Enter")
    eventually(lambda: daemon.changes[1:] == [("resume",)], "the end of the pause")


def test_address_bar_has_no_address_of_a_client_that_is_hidden(page: PageInBrowser) -> None:
    eventually(lambda: page.clients() == ["10.2.0.1", "10.2.0.2"], "addresses")
    page.tab.get_by_role("searchbox").fill("10.2.0")
    eventually(lambda: page.evaluate("location.hash") == "#pattern=10.2.0", "the pattern is in the address")
    page.client_link("10.2.0.1").click()
    eventually(lambda: page.evaluate("location.href").count("10.2.0") == 2, "both are in the address")
    page.button("Hide addresses").click()
    eventually(lambda: page.evaluate("location.href").endswith("#hidden=true"), "neither is")
    eventually(lambda: page.shows("host-", "#client-rows"), "names")
    assert "10.2.0" not in page.tab.content()
    with page.tab.expect_request(lambda request: "search=10.2.0" in request.url):
        page.tab.get_by_role("searchbox").fill("10.2.0")
    assert "10.2.0" not in page.evaluate("location.href")
    page.client_link("host-").first.click()
    eventually(lambda: "client=host-" in page.evaluate("location.href"), "a name")


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
        for shown in ("10.2.0.1", "lte", "refused"):
            eventually(lambda: page.shows(shown, "main"), shown)  # noqa: B023
        assert page.shows("on eth0 · classes assigned by nft", "#versions")
        page.button("Log out").click()
        eventually(lambda: page.shows("log in to see anything", "#connection"), "nothing after it")
        for hidden in ("10.2.0.1", "lte", "refused"):
            assert not page.shows(hidden, "main")
        assert page.text("#versions") == ""
        assert page.tab.locator("#network-chart svg").count() == 0
        page.log_in()
        eventually(lambda: page.shows("10.2.0.1", "main"), "it is back")


def test_log_in_survives_a_reload_and_is_that_of_all_tabs(page: PageInBrowser) -> None:
    page.tab.reload()
    page.button("Log out").wait_for()
    second = page.tab.context.new_page()
    second.goto(page.evaluate("location.href"))
    second.get_by_role("button", name="Log out").wait_for()


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
    assert page.button("Log out").count() == 1


def test_all_that_needs_attention_is_shown_with_its_remedy(daemon: CannedDaemon, page: PageInBrowser) -> None:
    eventually(lambda: page.findings() == [], "no finding")
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
        assert remedy
        assert "".join(remedy.split()).replace("`", "") in "".join(line.split())
    assert sum(line.startswith("problem mptcp-throttled: ") for line in page.findings()) == 5
    assert page.findings()[-1].startswith("note pacing: missing, so a cap slows down the whole connection")
    assert page.tab.locator("#attention img").count() == 0
    assert page.tab.get_by_role("button", name="Copy systemctl status mptcp-sniffer").count() == 1


def test_week_is_saved_as_a_file(page: PageInBrowser) -> None:
    with page.tab.expect_download() as download:
        page.button("CSV of week").click()
    head, *rows = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert head.startswith("network,start,end,when,")
    assert {row.partition(",")[0] for row in rows} == {"lte", "satellite"}


def test_hour_after_midnight_is_zero(own_browser: Browser, server: PageServer) -> None:
    with PageInBrowser.open(own_browser, address=f"{server.origin}/", locale="en-US", timezone_id="UTC") as page:
        ticks = "import('/static/format.js').then(({tick}) => [5, 60].map((step) => tick(86400 * 20000 + 65, step)))"
        assert page.evaluate(ticks) == ["00:01:05", "00:01"]
