"""Manual pages of programs, sections 1 and 8, from their command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argparse_manpage.manpage import Manpage

from roff import escaped

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterable, Mapping


def program_page(parser: ArgumentParser, section: int, manual: str, statuses: Mapping[int, str]) -> str:
    """The page up to EXIT STATUS, which replaces the epilog of `--help`: argparse-manpage would join its lines."""
    parser.epilog = None
    description = (parser.description or "").rstrip(".")
    page = Manpage(
        parser,
        {
            "project_name": "mptcp-throttle",
            "manual_section": section,
            "manual_title": manual,
            "description": f"{description[:1].lower()}{description[1:]}",
        },
        format="single-commands-section",
    )
    page.add_section("exit status", ">", "\n".join(_table(statuses)))
    return str(page)


def _table(statuses: Mapping[int, str]) -> Iterable[str]:
    for status, meaning in statuses.items():
        yield from (".TP", rf"\fB{status}\fR", escaped(meaning).replace("`", ""))
