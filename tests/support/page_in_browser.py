"""The page as a person uses it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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
        **options: Any,  # noqa: ANN401
    ) -> Iterator[PageInBrowser]:
        """In a new window. In the end no script has failed, and no request has gone elsewhere."""
        context = browser.new_context(**options)
        try:
            page = cls(context.new_page())
            page.tab.goto(address + fragment)
            yield page
            assert page.errors == []
            assert page.requests
            assert [url for url in page.requests if not url.startswith(address)] == []
        finally:
            context.close()

    def _note(self, message: ConsoleMessage) -> None:
        # The browser itself logs each answer that is not 200, and each connection that is refused.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def log_in(self, password: str = PASSWORD) -> None:
        """As an operator does."""
        self.tab.get_by_role("button", name="log in").click()
        self.tab.get_by_label("password").fill(password)
        self.tab.get_by_role("button", name="Log in", exact=True).last.click()
        self.tab.get_by_role("button", name="log out").wait_for()

    def text(self, selector: str = "body") -> str:
        """What can be read there."""
        return self.tab.locator(selector).inner_text()

    def shows(self, text: str, selector: str = "body") -> bool:
        """Whether it can be read there."""
        return text in self.text(selector)

    def wait_live(self) -> None:
        """Wait until the page is up to date."""
        eventually(lambda: self.shows("live: ", "#connection"), "the page is live")

    def network(self, name: str) -> dict[str, str]:
        """The row of an access network, by the heads of the columns. Waits until it is drawn."""
        row = self.tab.locator("#networks tbody tr", has=self.tab.locator(f"th:text-is('{name}')"))
        # In one step: the page may draw the table again between two.
        heads, cells = row.evaluate(
            "row => [row.closest('table').tHead.rows[0], row].map(tr => Array.from(tr.cells, cell => cell.innerText))"
        )
        return dict(zip(heads, cells, strict=True))

    def sends(self, name: str) -> float:
        """What an access network sends, in bits per second, as the page shows it."""
        return bits_per_second(self.network(name)["sends"])

    def client_button(self, network: str) -> Locator:
        """Opens the first client of an access network."""
        return self.tab.locator(f"div:has(> h3#clients-of-{network}) button.plain").first

    def subflows(self) -> list[str]:
        """The rows of the subflows that are open."""
        return self.tab.locator("#client-tables tr.subflow").all_inner_texts()

    def findings(self) -> list[str]:
        """What needs attention: problems, notes, or that there is nothing."""
        return self.tab.locator("#attention li").all_inner_texts()

    def problems(self) -> list[str]:
        """Those of the findings that prevent caps."""
        return [line for line in self.findings() if line.startswith("problem: ")]

    def choose(self, control: str, option: str) -> None:
        """In the list with that id, by the option's text."""
        self.tab.locator(f"#{control}").select_option(label=option)

    def wait_drawn(self, seconds: int) -> None:
        """Wait until the chart shows that range."""
        self.tab.locator(f"body[data-drawn='{seconds}']").wait_for()

    @property
    def chart(self) -> Locator:
        """The rates of access networks over time."""
        return self.tab.locator("#network-chart canvas")

    def chart_label(self) -> str:
        """What a screen reader says of it."""
        return self.chart.get_attribute("aria-label") or ""

    def wait_points(self, least: int) -> None:
        """Wait until it has so many moments."""
        place = self.tab.locator("#network-chart")
        eventually(lambda: int(place.get_attribute("data-points") or 0) >= least, f"{least} moments in the chart")

    def picture(self, path: Path) -> None:
        """Of the whole page."""
        self.tab.screenshot(path=path, full_page=True)

    def evaluate(self, script: str) -> Any:  # noqa: ANN401
        """The value of a script in the page."""
        return self.tab.evaluate(script)


def bits_per_second(text: str) -> float:
    """Of a text on the page; 0 if it is none."""
    match = re.fullmatch(r"([\d.]+) (kb/s|Mb/s|Gb/s)", text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def violations(results: Mapping[str, Any]) -> list[str]:
    """The violations that axe-core reports, a line each."""
    return [
        f"{violation['id']}: {node['html'][:120]}: {node.get('failureSummary', '')}"
        for violation in results["violations"]
        for node in violation["nodes"]
    ]
