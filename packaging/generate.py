"""Writes what the package has besides the programs: manual pages, completions, and links to the programs for PATH.

Run with the repository as the working directory, and the directory to write to as its argument.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Final

import shtab
from argparse_manpage.compat import get_reproducible_date

from config_page import config_page
from mptcp_throttle.errors import EXIT_STATUSES
from packaged_programs import packaged_programs
from program_page import program_page
from roff import escaped

_MANUAL: Final = "mptcp-throttle"
_CONFIGURATION: Final = {
    "mptcp-throttle.yaml": ("config/mptcp-throttle.yaml", "configuration of the services of mptcp-throttle"),
    "mptcp-throttle-network": ("config/networks.d/lte.yaml", "configuration of an access network of mptcp-throttle"),
    "mptcp-throttle-device": (
        "config/examples/clients.d/alices-phone.yaml",
        "configuration of a device, a client of mptcp-throttle with a name",
    ),
}
_ENVIRONMENT: Final = "usr/lib/mptcp-throttle/bin"
_SHELLS: Final = {"bash": "mptcp-throttle", "zsh": "_mptcp-throttle", "fish": "mptcp-throttle.fish"}


def _config_pages() -> dict[tuple[str, int], str]:
    date = get_reproducible_date()
    pages = {}
    for name, (file, subject) in _CONFIGURATION.items():
        header = f'.TH {escaped(name.upper())} 5 "{date}" "mptcp\\-throttle" "{escaped(_MANUAL)}"'
        text = Path(file).read_text(encoding="utf-8")
        pages[name, 5] = f"{header}\n.SH NAME\n{escaped(name)} \\- {escaped(subject)}\n{config_page(text)}"
    return pages


def _see_also(pages: dict[tuple[str, int], str], this: tuple[str, int]) -> str:
    pages_named = ", ".join(
        rf"\fB{escaped(name)}\fR({section})" for name, section in sorted(pages) if (name, section) != this
    )
    return f".SH SEE ALSO\n{pages_named}\n.PP\n/usr/share/doc/mptcp\\-throttle/docs/index.md\n"


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    for action in parser._actions:
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # read by shtab
    return str(shtab.complete(parser, shell))


def main(output: Path) -> None:
    """Write everything below `output`."""
    programs = packaged_programs(Path())
    parsers = {program: importlib.import_module(program.module).parser for program in programs}
    pages = {
        (program.name, program.section): program_page(make(), program.section, _MANUAL, EXIT_STATUSES)
        for program, make in parsers.items()
    }
    pages |= _config_pages()
    (output / "man").mkdir(parents=True)
    for (name, section), page in pages.items():
        (output / f"man/{name}.{section}").write_text(page + _see_also(pages, (name, section)), encoding="utf-8")
    for shell, file in _SHELLS.items():
        (output / shell).mkdir()
        make = next(make for program, make in parsers.items() if program.name == "mptcp-throttle")
        (output / shell / file).write_text(_completion(make(), shell), encoding="utf-8")
    links = (f"{_ENVIRONMENT}/{program.name} {program.directory}/{program.name}\n" for program in programs)
    (output / "links").write_text("".join(links), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
