"""What the Debian package contains: programs, files, manual pages of the configuration, version."""

import importlib
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest
import yaml

from config_page import config_page
from packaged_programs import Program, packaged_programs
from roff import escaped

REPOSITORY: Final = Path(__file__).parents[2]
DEBIAN: Final = REPOSITORY / "packaging/debian"
PROJECT: Final = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROGRAMS: Final = packaged_programs(REPOSITORY)
CONFIGURATION: Final = ("mptcp-throttle.yaml", "networks.d/lte.yaml", "examples/clients.d/alices-phone.yaml")


def test_package_has_all_programs_but_that_of_the_lab() -> None:
    assert {program.name for program in PROGRAMS} == PROJECT["scripts"].keys() - {"mptcp-lab"}


def test_package_has_services_for_root_and_a_command_line_for_all_users() -> None:
    places = {program.name: (program.section, program.directory) for program in PROGRAMS}
    assert places["mptcp-throttle"] == (1, "usr/bin")
    assert places["mptcp-sniffer"] == places["mptcp-throttled"] == (8, "usr/sbin")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_package_finds_the_command_line_of_each_program(program: Program) -> None:
    parser = importlib.import_module(program.module).parser()
    assert parser.prog == program.name
    assert parser.description


def test_package_has_the_version_of_the_project() -> None:
    newest = re.match(r"mptcp-throttle \((.*)\) ", (DEBIAN / "changelog").read_text(encoding="utf-8"))
    assert newest is not None
    assert newest[1] == PROJECT["version"]


def test_package_has_every_file_of_config_and_systemd() -> None:
    listed = [
        line.split()[0]
        for kind in ("install", "examples")
        for line in (DEBIAN / f"mptcp-throttle.{kind}").read_text(encoding="utf-8").splitlines()
    ]
    listed.append("systemd/*.service")  # in rules, since Debian's releases differ in where units are
    assert f" {listed[-1]}\n" in (DEBIAN / "rules").read_text(encoding="utf-8")
    files = [path for root in ("config", "systemd") for path in (REPOSITORY / root).rglob("*") if path.is_file()]
    names = [str(path.relative_to(REPOSITORY)) for path in files]
    assert len(names) > 10
    assert [name for name in names if not any(fnmatch(name, p) or fnmatch(name, f"{p}/*") for p in listed)] == []


def test_package_units_start_its_programs() -> None:
    for unit in (REPOSITORY / "systemd").glob("*.service"):
        commands = re.findall(r"^Exec\w+=(/usr/lib\S*)", unit.read_text(encoding="utf-8"), re.MULTILINE)
        assert commands
        assert set(commands) <= {f"/usr/lib/mptcp-throttle/bin/{program.name}" for program in PROGRAMS}


def keys(values: object, above: str = "") -> list[str]:
    """The paths of all keys that have a value."""
    if not isinstance(values, dict):
        return [above]
    return [path for key, value in values.items() for path in keys(value, f"{above}.{key}" if above else key)]


@pytest.mark.parametrize("name", CONFIGURATION)
def test_config_page_has_every_key_once_and_every_word(name: str) -> None:
    text = (REPOSITORY / "config" / name).read_text(encoding="utf-8")
    page = config_page(text)
    expected = keys(yaml.safe_load(text))
    found = re.findall(r"^\\fB([a-z0-9_.]+)\\fR: ", page, re.MULTILINE)
    assert found == expected
    words = re.findall(r"\w+", " ".join(re.findall(r"^ *# ?(.*)$", text, re.MULTILINE)))
    shown = re.findall(r"\w+", re.sub(r"\\f[BR]|\\\(aq|\\", "", page))
    assert len(words) > 100
    assert not set(words) - {*shown, "s"}


def test_config_page_keeps_a_comment_with_what_is_below_it() -> None:
    page = config_page(
        "# The file.\n#\n# More.\n\n# Groups.\nouter:\n  # Of one.\n  one: 1\n  two: null\n\n  # Both.\n  inner:\n"
        "    a: 1\n    b: [2]\n# Items.\nlist:\n  - x\n  - y\n"
    )
    assert page.splitlines() == [
        ".SH DESCRIPTION",
        "The file.",
        ".PP",
        "More.",
        ".SH OPTIONS",
        "The values are those of the file as installed.",
        ".TP",
        r"\fBouter\fR",
        "Groups.",
        ".TP",
        r"\fBouter.one\fR: 1",
        ".TQ",
        r"\fBouter.two\fR: null",
        "Of one.",
        ".TP",
        r"\fBouter.inner.a\fR: 1",
        ".TQ",
        r"\fBouter.inner.b\fR: [2]",
        "Both.",
        ".TP",
        r"\fBlist\fR: [x, y]",
        "Items.",
    ]


def test_config_page_refuses_what_it_does_not_understand() -> None:
    with pytest.raises(ValueError, match="key = value"):
        config_page("# A comment.\nkey = value\n")


def test_roff_takes_nothing_of_a_text_for_a_command() -> None:
    assert escaped(".mode 'a' --b \\n") == r"\&.mode \(aqa\(aq \-\-b \en"
    assert escaped("'quoted") == r"\(aqquoted"
