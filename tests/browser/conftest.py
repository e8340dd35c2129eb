"""A real browser, Debian's Chromium, on the proxy's host."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import proxy_world
import pytest
from page_in_browser import PASSWORD, PageInBrowser
from playwright.sync_api import sync_playwright
from proxy_world import Hosts, ProxyWorld

from mptcp_lab import namespaces
from mptcp_lab.services import WIFI_FIRST
from mptcp_throttle.config.password_hash import PasswordHash

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from mptcp_throttle.model import AccessNetwork

_OPTIONS: Final = ("--disable-background-networking", "--disable-quic", "--disable-component-update")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with proxy_world.hosts() as built:
        built.lab.proxy.ip(["link set lo up"])
        yield built


@contextmanager
def launched(program: str | Path) -> Iterator[Browser]:
    """Chromium, by this program."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=list(_OPTIONS), chromium_sandbox=False, timeout=90_000
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def own_browser() -> Iterator[Browser]:
    """In this network namespace, for a page with canned answers."""
    program = shutil.which("chromium")
    assert program is not None
    with launched(program) as browser:
        yield browser


@pytest.fixture(scope="module")
def browser(hosts: Hosts) -> Iterator[Browser]:
    """Its processes are in the network namespace of the proxy: its loopback is where the page is."""
    program = hosts.lab.proxy.directory / "chromium"
    enter = f"nsenter --net={namespaces.path(hosts.lab.proxy.namespace)}"
    program.write_text(f'#!/bin/sh\nexec {enter} {shutil.which("chromium")} "$@"\n', encoding="ascii")
    program.chmod(0o755)
    with launched(program) as browser:
        yield browser


@pytest.fixture
def networks() -> Sequence[AccessNetwork]:
    """Those of the proxy. A module may have others."""
    return WIFI_FIRST


@pytest.fixture
def world(hosts: Hosts, networks: Sequence[AccessNetwork]) -> Iterator[ProxyWorld]:
    """The services of a proxy, and the page, with which changes are possible after a log-in."""
    # No program keeps the clock of the hosts right on which tests run.
    with proxy_world.configured(hosts, networks, {"wait_for_clock": False}) as world:
        world.services.configure_section("web", password_hash=str(PasswordHash.of(PASSWORD)), control=True)
        world.services.start_sniffer()
        world.start_daemon()
        world.services.start_web()
        yield world


@pytest.fixture
def page(browser: Browser, world: ProxyWorld) -> Iterator[PageInBrowser]:
    """The page, logged in. In the end no script has failed, and no request has left the host."""
    assert world.services.web is not None
    with PageInBrowser.open(browser) as page:
        page.log_in()
        yield page
