"""docs/reference/ says what the code says: `docs/generate` writes most of it, and the rest names what exists."""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from markdown_text import prose, table
from mptcp_throttle.cli import parser as cli_parser
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.linux.qdisc_kinds import RESTORABLE
from mptcp_throttle.own_chains import OWN_CHAIN, OWN_TABLE
from mptcp_throttled.kernel.openvswitch.openflow import COOKIE, PRIORITY
from mptcp_throttled.vocabulary.class_ids import HANDLE, format_handle
from packaged_programs import packaged_programs
from reference_pages import PAGES, part_names, parts, with_parts

REPOSITORY: Final = Path(__file__).parents[2]
RIGHTS: Final = (REPOSITORY / PAGES / "files-and-rights.md").read_text(encoding="utf-8")
UNITS_OF_THE_DAEMON: Final = ("mptcp-throttled", "mptcp-throttled-cleanup")
PAGE_NAMES: Final = sorted(path.name for path in (REPOSITORY / PAGES).glob("*.md"))


@pytest.fixture(scope="module")
def made() -> Mapping[str, list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)
        return parts()


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_page_is_what_docs_generate_writes(name: str, made: Mapping[str, list[str]]) -> None:
    page = (REPOSITORY / PAGES / name).read_text(encoding="utf-8")
    assert with_parts(page, made) == page, "run docs/generate"


def test_each_part_is_in_one_page(made: Mapping[str, list[str]]) -> None:
    texts = [(REPOSITORY / PAGES / name).read_text(encoding="utf-8") for name in PAGE_NAMES]
    assert sorted(name for text in texts for name in part_names(text)) == sorted(made)


def test_each_command_is_below_its_heading() -> None:
    page = (REPOSITORY / PAGES / "cli.md").read_text(encoding="utf-8")
    for heading, part in re.findall(r"^##+ (.*)\n\n<!-- docs/generate: (.*) -->$", page, re.MULTILINE):
        assert part.removeprefix("mptcp-throttle ") == heading
    assert len(re.findall(r"^##+ ", page, re.MULTILINE)) == page.count("<!-- docs/generate: ")


def test_synopsis_has_brackets_around_what_may_be_left_out() -> None:
    page = (REPOSITORY / PAGES / "cli.md").read_text(encoding="utf-8")
    lines = re.findall(r"^`mptcp-throttle (explain|budgets|fleet publish|fleet rollback) (.*)`$", page, re.MULTILINE)
    assert dict(lines) == {
        "explain": "CLIENT [NETWORK]",
        "budgets": "[NETWORK|CLIENT]",
        "fleet publish": "--key FILE [--author NAME] [--number NUMBER] [--dry-run]",
        "fleet rollback": "--key FILE [--author NAME] [--number NUMBER] [--dry-run] [NUMBER]",
    }


def test_options_described_once_are_of_each_program() -> None:
    page = (REPOSITORY / PAGES / "cli.md").read_text(encoding="utf-8")
    for program in packaged_programs(REPOSITORY):
        options = {action.dest: action for action in import_module(program.module).parser()._actions}
        assert options.keys() >= {"help", "version", "config"}
        assert f"The default is `{options['config'].default}`." in page
    (commands,) = (action.choices for action in cli_parser()._actions if action.dest == "command")
    assert commands is not None
    for command in dict(commands).values():
        assert "json" in {action.dest for action in command._actions}


def test_rights_name_files_and_kernel_objects_that_exist() -> None:
    sockets = Sockets.below(Path("/run/mptcp-throttle"))
    for path in (sockets.sniffer, sockets.daemon, sockets.metrics, sockets.web):
        assert f"| `{path}` |" in RIGHTS
    code = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "daemon").rglob("*.py"))
    for name in ("original-qdisc-", "clsact-", "tcx-", "ports.json", "overrides.json", "history.sqlite"):
        assert name in code
        assert f"/{name}" in RIGHTS
    objects = (
        f"HTB `{format_handle(HANDLE)}`",
        f"`{OWN_CHAIN}`",
        f"`ip {OWN_TABLE}`",
        f"cookie `{COOKIE:#x}`, priority {PRIORITY}",
    )
    assert [name for name in objects if name not in RIGHTS] == []


def test_clean_up_has_the_rights_of_the_daemon() -> None:
    texts = [(REPOSITORY / f"systemd/{name}.service").read_text(encoding="utf-8") for name in UNITS_OF_THE_DAEMON]
    settings = (
        r"^(User|Group|SupplementaryGroups|AmbientCapabilities|RestrictAddressFamilies|ReadWritePaths|MemoryMax)=.*"
    )
    daemon, clean_up = ([match[0] for match in re.finditer(settings, text, re.MULTILINE)] for text in texts)
    assert len(daemon) == 7
    assert clean_up == daemon


def test_qdiscs_that_can_be_restored_are_those_that_are_named() -> None:
    page = (REPOSITORY / "docs/explanation/root-qdiscs.md").read_text(encoding="utf-8")
    lists = page.partition("## Which qdiscs can be restored\n")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\* (.*)$", lists, re.MULTILINE)))
    assert {*named} == RESTORABLE


def test_rights_name_each_kernel_program() -> None:
    sources = (REPOSITORY / "daemon/mptcp_throttled/kernel/bpf").glob("*.bpf.c")
    texts = [source.read_text(encoding="utf-8") for source in sources]
    programs = re.findall(r'^SEC\("(?!license|\.maps)[^"]*"\)\nint (\w+)\(', "\n".join(texts), re.MULTILINE)
    assert len(programs) > 8
    assert [program for program in programs if f"`{program}`" not in RIGHTS] == []


def test_prose_has_a_line_for_each_sentence_and_a_list_of_words() -> None:
    lines = ["The rate. It is", "such as 1.5 or", "on: here.", "null: none. No", "more.", "a_b: all.", "", "The end."]
    assert prose(lines) == [
        "The rate.",
        "It is such as 1.5 or",
        "",
        "* `on`: here.",
        "* `null`: none.",
        "  No more.",
        "* `a_b`: all.",
        "",
        "The end.",
    ]


def test_table_keeps_vertical_bars_in_their_cells() -> None:
    assert table(("a", "b"), [("`x|y`", "")]) == ["| a | b |", "|---|---|", "| `x\\|y` |  |"]
