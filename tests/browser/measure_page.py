"""Prints when the page with 10 000 clients is first painted, and how long its frames take. Run by hand, as root:

.venv/bin/python tests/browser/measure_page.py
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import page_answers as answers
from canned_page import canned_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

CLIENTS: Final = 10_000
LOADS: Final = 10
FRAMES: Final = """\
pixels => new Promise(done => {
    const frames = [], end = performance.now() + 6000;
    const list = document.getElementById("client-scroll");
    list.scrollIntoView();
    let last = performance.now();
    const frame = now => {
        frames.push(now - last);
        last = now;
        list.scrollTop += pixels;
        if (now < end) requestAnimationFrame(frame);
        else done(frames.slice(2));
    };
    requestAnimationFrame(frame);
})"""


def first_paint(page: Page, origin: str) -> float:
    """Load it; the milliseconds until something is painted."""
    page.goto(f"{origin}/")
    page.wait_for_selector("#clients:not([hidden])", state="attached")
    milliseconds: float = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return milliseconds


def main() -> None:
    """Print the figures."""
    with canned_page() as canned, sync_playwright() as playwright:
        canned.clients = answers.many_clients(CLIENTS)
        canned.event = answers.event(rows=canned.clients)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), chromium_sandbox=False)
        paints = []
        for _ in range(LOADS):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            paints.append(first_paint(page, canned.origin))
            page.close()
        paints.sort()
        shown = f"median {paints[LOADS // 2]:.0f}, p90 {paints[LOADS * 9 // 10 - 1]:.0f}, worst {paints[-1]:.0f} ms"
        print(f"first paint, {LOADS} loads: {shown}")
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        first_paint(page, canned.origin)
        for what, pixels in (("still", 0), ("scrolling", 40)):
            frames = sorted(page.evaluate(FRAMES, pixels))
            slow = sum(frame > 50 for frame in frames)
            middle, most = frames[len(frames) // 2], frames[len(frames) * 99 // 100]
            shown = f"median {middle:.1f}, p99 {most:.1f}, worst {frames[-1]:.1f} ms, {slow} above 50 ms"
            print(f"{what}, {len(frames)} frames: {shown}")
        browser.close()
    print(f"load: {Path('/proc/loadavg').read_text('ascii').strip()}")


if __name__ == "__main__":
    main()
