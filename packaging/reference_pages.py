"""Writes the parts of docs/reference/ that the code has the words for: `docs/generate`.

A part stands between `<!-- docs/generate: NAME -->` and `<!-- end -->`. The working directory is the repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from described_events import events
from described_keys import keys
from described_metrics import metrics
from described_programs import programs
from described_rights import rights
from markdown_text import code, sentences, table
from mptcp_throttle.cli.monitoring import MONITORING_HELP
from mptcp_throttle.errors import EXIT_STATUSES

PAGES: Final = Path("docs/reference")
_PART: Final = re.compile(r"(<!-- docs/generate: (.*) -->\n)(?:.*\n)*?(<!-- end -->\n)")


def parts() -> dict[str, list[str]]:
    """The lines of each part, by its name."""
    return {**programs(), **keys(), **metrics(), **rights(), **events(), **_exit_statuses()}


def _exit_statuses() -> dict[str, list[str]]:
    names = {getattr(os, name): name for name in dir(os) if name.startswith("EX_")}
    rows = [(str(status), meaning) for status, meaning in EXIT_STATUSES.items()]
    named = [(str(status), code(names[status])) for status in EXIT_STATUSES if status in names]
    states = re.findall(r"^ +(\d)  (\w+): (.*)$", MONITORING_HELP, re.MULTILINE)
    return {
        "exit statuses": table(("status", "meaning"), rows),
        "names of exit statuses": [", ".join(f"{status} {name}" for status, name in named) + "."],
        "monitoring": [
            *table(("state", "status", "meaning"), ((state, status, meaning) for status, state, meaning in states)),
            "",
            *sentences(MONITORING_HELP.splitlines()[-1]),
        ],
    }


def with_parts(page: str, made: Mapping[str, list[str]]) -> str:
    """A page whose parts are these. Raises KeyError for a part that is not among them."""
    return _PART.sub(lambda match: "\n".join((match[1], *made[match[2]], "", match[3])), page)


def part_names(page: str) -> list[str]:
    """The names of the parts of a page, in its order."""
    return [match[2] for match in _PART.finditer(page)]


def main() -> None:
    """Write all pages."""
    made = parts()
    for page in PAGES.glob("*.md"):
        page.write_text(with_parts(page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
