"""The page as a person uses it."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from axe_playwright_python.sync_playwright import Axe
from polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

PASSWORD: Final = "a-password-for-tests"  # noqa: S105
ADDRESS: Final = "http://127.0.0.1:9722/"
_UNITS: Final = {"kb/s": 1e3, "Mb/s": 1e6, "Gb/s": 1e9}


class PageInBrowser:
    """A tab with the page, and what has gone wrong in it."""

    def __init__(self, tab: Page) -> None:
        self.tab = tab
        self.errors: list[str] = []
        self.requests: list[str] = []
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("console", self._note)
        tab.on("request", lambda request: self.requests.append(request.url))

    @classmethod
    @contextmanager
    def open(
        cls,
        browser: Browser,
        fragment: str = "",
        address: str = ADDRESS,
        *,
        now: float | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Iterator[PageInBrowser]:
        """The page in a new window, whose clock shows `now` if it is given.

        At the end of the block, fails if a script has failed, or a request has gone to another server.
        """
        context = browser.new_context(**options)
        try:
            page = cls(context.new_page())
            if now is not None:
                page.tab.clock.install(time=now)
            page.tab.goto(address + fragment)
            yield page
            assert page.errors == []
            assert page.requests
            asked = [url for url in page.requests if not url.startswith(("data:", "blob:"))]
            assert [url for url in asked if not url.startswith(address)] == []
        finally:
            context.close()

    def _note(self, message: ConsoleMessage) -> None:
        # The browser itself logs each answer that is not 200, and each connection that is refused.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def log_in(self, password: str = PASSWORD) -> None:
        """Log in as an operator does."""
        self.button("Log in").first.click()
        self.tab.get_by_label("password").fill(password)
        self.button("Log in").last.click()
        self.button("Log out").wait_for()

    def button(self, name: str) -> Locator:
        """The button with exactly this name."""
        return self.tab.get_by_role("button", name=name, exact=True)

    def text(self, selector: str = "body") -> str:
        """What can be read there."""
        return self.tab.locator(selector).inner_text()

    def texts(self, selector: str) -> list[str]:
        """What can be read in each of several elements."""
        # Playwright's `all_inner_texts` finds them first: the page may replace them before it reads their texts.
        texts = f"Array.from(document.querySelectorAll({json.dumps(selector)}), (found) => found.innerText)"
        return list(self.evaluate(texts))

    def shows(self, text: str, selector: str = "body") -> bool:
        """Whether it can be read there, whatever spaces are in it."""
        return text in " ".join(self.text(selector).split())

    def wait_live(self) -> None:
        """Wait until the page is up to date."""
        eventually(lambda: self.shows("live: ", "#connection"), "the page is live")

    def card(self, network: str) -> Locator:
        """The card of an access network."""
        return self.tab.locator(f".card[aria-label='{network}']")

    def counts(self, network: str) -> dict[str, str]:
        """The counts of an access network, by their words."""
        lines = [line for text in self.texts(f".card[aria-label='{network}'] .counts") for line in text.split("\n")]
        return dict(zip(lines[1::2], lines[::2], strict=False))

    def sends(self, network: str) -> float:
        """What an access network sends, in bits per second, as the page shows it."""
        return bits_per_second(self.card(network).locator(".sends").inner_text())

    def look_at_clients(self) -> None:
        """Their table is up to date only while it is in view."""
        self.evaluate(
            """() => {
                const table = document.getElementById("clients");
                if (table.getBoundingClientRect().top > innerHeight) table.scrollIntoView();
            }"""
        )

    def client_link(self, name: str) -> Locator:
        """Opens the client's page."""
        self.look_at_clients()
        return self.tab.locator("#client-rows a", has_text=name)

    def clients(self) -> list[str]:
        """The names in the table, in the order of their rows."""
        self.look_at_clients()
        return self.texts("#client-rows a.client-link")

    def open_client(self, name: str) -> None:
        """Show the page of a client that is connected."""
        eventually(lambda: any(name in shown for shown in self.clients()), "the client")
        self.client_link(name).first.click()
        eventually(lambda: len(self.subflows()) >= 2, "its subflows are shown")

    def subflows(self) -> list[str]:
        """The rows of the client that is open."""
        return self.texts("#subflow-rows tr")

    def findings(self) -> list[str]:
        """What needs attention: problems and notes."""
        return [" ".join(text.split()) for text in self.texts("#attention li")]

    def wait_drawn(self, seconds: int) -> None:
        """Wait until the charts show that range."""
        self.tab.locator(f"body[data-drawn='{seconds}']").wait_for()

    def wait_points(self, least: int, chart: str = "network-chart") -> None:
        """Wait until a chart has `least` moments or more."""
        place = self.tab.locator(f"#{chart}")
        eventually(lambda: int(place.get_attribute("data-points") or 0) >= least, f"{least} moments in the chart")

    def picture(self, path: Path) -> None:
        """Save a picture of the whole page."""
        self.tab.screenshot(path=path, full_page=True)

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def violations(self) -> list[str]:
        """What axe-core finds against the rules of accessibility, a line each.

        The nodes that pass a rule are not listed: they take as long as the rest.
        """
        found = Axe().run(self.tab, options={"resultTypes": ["violations"]}).response["violations"]
        return [
            f"{violation['id']}: {node['html'][:120]}: {node.get('failureSummary', '')}"
            for violation in found
            for node in violation["nodes"]
        ]

    def evaluate(self, script: str) -> Any:  # noqa: ANN401
        """The value of a script in the page."""
        return self.tab.evaluate(script)


def bits_per_second(text: str) -> float:
    """The rate in a text on the page; 0 if it has none."""
    match = re.fullmatch(r"([\d.,]+)\s(kb/s|Mb/s|Gb/s)", text.strip())
    return float(match[1].replace(",", "")) * _UNITS[match[2]] if match else 0.0
