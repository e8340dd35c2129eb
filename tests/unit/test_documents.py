"""Documents say what the programs do, in the words of the glossary; figures name the commit they were measured at."""

import csv
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import mptcp_sniffer.main
import mptcp_throttle.cli
import mptcp_throttle.follow_namespace
import mptcp_throttle_web.main
import mptcp_throttled.main
from mptcp_lab.adversary.catalogue import BY_CLIENTS
from mptcp_throttle.errors import EXIT_STATUSES

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS: Final = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
PERFORMANCE: Final = REPOSITORY / "docs/performance.md"
MEASURED: Final = REPOSITORY / "lab/measured/performance"
COMMIT: Final = re.compile(r"(?:(?<=at )|(?<=# )|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9]))[0-9a-f]{7}\b")
"""Also one of digits alone, where it says what it is."""
CODE: Final = ("mptcp_throttle", "sniffer", "daemon", "web", "lab", "packaging", "tests")


def test_exit_statuses_are_documented() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (.*) \|$", (REPOSITORY / "docs/reference/exit-statuses.md").read_text(), re.MULTILINE
    )
    assert {int(status): meaning for status, meaning in rows} == EXIT_STATUSES


@pytest.mark.parametrize(
    "program",
    [
        mptcp_throttle.cli.main,
        mptcp_throttle.follow_namespace.main,
        mptcp_sniffer.main.main,
        mptcp_throttled.main.main,
        mptcp_throttle_web.main.main,
    ],
)
def test_programs_list_the_exit_statuses_in_their_help(
    program: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program(["--help"])
    listed = capsys.readouterr().out
    for status, meaning in EXIT_STATUSES.items():
        assert f"\n  {status:3}  {meaning}\n" in listed


def test_invariants_name_tests_that_exist() -> None:
    document = (REPOSITORY / "docs/contribute/invariants.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", document, flags=re.MULTILINE)[1:]
    assert [section.partition(":")[0] for section in sections] == [f"I{number}" for number in range(1, 10)]
    for section in sections:
        assert _names_tests_that_exist(section)


def test_each_host_names_tests_that_exist() -> None:
    document = (REPOSITORY / "docs/reference/hosts.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\|---.*\n((?:\|.*\n)+)", document, re.MULTILINE)
    rows = [line for table in tables for line in table.splitlines()]
    assert rows
    for row in rows:
        assert _names_tests_that_exist(row.split(" | ")[-1]), row


_TESTS = {"A": "adversary", "G": "guest", "I": "integration", "S": "simulation", "U": "unit"}


def _names_tests_that_exist(text: str) -> bool:
    named = re.findall(r"`([AGISU])/(\w+\.py)::(test_\w+)`", text)
    for kind, file, test in named:
        path = REPOSITORY / "tests" / _TESTS[kind] / file
        assert f"\ndef {test}(" in path.read_text(encoding="utf-8"), f"{path}::{test}"
    return 0 < len(named) == text.count(".py::")


def test_threat_model_names_attacks_that_are_tested() -> None:
    document = (REPOSITORY / "docs/explanation/security.md").read_text(encoding="utf-8")
    section = document.partition("\n## Steering\n")[2].partition("\n## ")[0]
    code = (REPOSITORY / "tests/adversary/test_steering.py").read_text(encoding="utf-8")
    tests = set(re.findall(r"^def (test_\w+)", code, re.MULTILINE))
    columns = [line.split(" | ")[-1] for line in section.splitlines() if line.startswith("| ")][1:]
    named = [set(re.findall(r"`([\w-]+)`", column)) for column in columns]
    assert all(named)
    assert tests <= set().union(*named) <= tests | {attack.name for attack in BY_CLIENTS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_files_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:mptcp_throttle|sniffer|daemon|web|lab|tests|config|systemd|docs)/[\w./-]*)`", text))
    linked = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]*)\)", text) if "://" not in link}
    missing = {name for name in named if not (REPOSITORY / name).exists()}
    targets = {(document.parent / link).resolve() for link in linked}
    assert not missing | {str(target) for target in targets if not target.exists()}


def test_remedies_name_documents_that_the_package_has() -> None:
    assert "docs" in (REPOSITORY / "packaging/debian/mptcp-throttle.docs").read_text(encoding="utf-8").split()
    texts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "mptcp_throttle").rglob("*.py")]
    named = [name for text in texts for name in re.findall(r"{DOCUMENTS}/([\w./-]+)", text)]
    assert len(named) >= 3
    assert not [name for name in named if not (REPOSITORY / "docs" / name).is_file()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_link_to_headings_that_exist(document: Path) -> None:
    for link in re.findall(r"\]\(([^):]*#[^)]*)\)", document.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        path = (document.parent / file).resolve() if file else document
        target = path.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", target, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, link


def _words(text: str) -> str:
    """The text with identifiers taken apart, so that `is_owed`, `WishStore` and `Owed` are words too."""
    # A configuration key: interface.
    text = re.sub("kernel_view", "", text)
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return re.sub(r"[ \t_]+", " ", text).lower()


@cache
def _scanned() -> dict[str, str]:
    code = [path for folder in CODE for path in (REPOSITORY / folder).rglob("*.py")]
    scenarios = [path for folder in ("config", "lab", "tests") for path in (REPOSITORY / folder).rglob("*.yaml")]
    units = [path for path in (REPOSITORY / "systemd").rglob("*") if path.is_file()]
    paths = [path for path in (*code, *scenarios, *units, *DOCUMENTS) if path != Path(__file__)]
    return {str(path.relative_to(REPOSITORY)): _words(path.read_text(encoding="utf-8")) for path in paths}


def _glossary() -> list[tuple[str, str]]:
    text = (REPOSITORY / "docs/contribute/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\* \[([^\]]+)\]\(\.\./\.\./([^)]+)\): .*$", text, re.MULTILINE)
    assert len(rows) == text.count("\n* ") > 50
    return rows


def test_glossary_terms_are_used_in_code_or_documents() -> None:
    texts = [text for name, text in _scanned().items() if name != "docs/contribute/glossary.md"]
    everything = re.sub(r"[\s-]+", " ", "\n".join(texts))
    unused = [term for term, _ in _glossary() if not re.search(rf"\b{re.sub('[ -]', ' ', term)}", everything)]
    assert not unused


def test_glossary_defines_each_term_once() -> None:
    terms = [term for term, _ in _glossary()]
    assert sorted(set(terms)) == sorted(terms)


def test_performance_names_the_commit_of_each_figure() -> None:
    document = PERFORMANCE.read_text(encoding="utf-8")
    assert len(document.splitlines()) <= 160
    sections = [text for text in re.split(r"^##+ ", document, flags=re.MULTILINE) if "\n|---" in text]
    assert len(sections) > 5
    rows = re.findall(r"^\|(?!---)(?!.*\n\|---).*", document, re.MULTILINE)
    assert len(rows) > 50
    assert not [row for row in rows if not COMMIT.search(row)]
    tables = {path.name: path.read_text(encoding="utf-8") for path in MEASURED.iterdir()}
    assert {*re.findall(r"\]\(\.\./lab/measured/performance/([^)]*)\)", document)} == {*tables}
    assert not [name for name, text in tables.items() if not COMMIT.search(text)]


def test_named_commits_are_in_the_history_or_listed_as_lost() -> None:
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout: the commits cannot be looked up")
    git = ["git", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], stdout=subprocess.PIPE, check=True)
    if shallow.stdout.strip() == b"true":
        pytest.skip("a shallow clone: earlier commits are not in it")
    performance, others = (
        "\n".join(path.read_text(encoding="utf-8") for path in paths)
        for paths in ([PERFORMANCE, *MEASURED.iterdir()], [path for path in DOCUMENTS if path != PERFORMANCE])
    )
    ((listed, names),) = re.findall(r"^(Lost commits, .*: (.*))\.$", performance, re.MULTILINE)
    lost, performance = set(names.split(", ")), performance.replace(listed, "")
    commits = set(COMMIT.findall(performance)) | set(re.findall(r"\bat ([0-9a-f]{7})\b", others))
    for path in MEASURED.parent.glob("*.csv"):
        commits.update(row["commit"] for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert not [commit for commit in lost - commits if commit not in others]
    for commit in sorted(commits | lost):
        found = subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"], capture_output=True, check=False)
        assert (found.returncode != 0) == (commit in lost), f"{commit} is not in the history, or is listed as lost"


class _Replaced(NamedTuple):
    """A word that has been replaced, and what to write instead.

    It has another, ordinary meaning in paths that match `elsewhere`, and in lines beside text that matches `near`.
    """

    pattern: str
    instead: str
    elsewhere: str = r"(?!)"
    near: str | None = None


_WHOM: Final = "((it|them|anybody|nobody|somebody|everybody|subflows|clients) )?"
REPLACED: Final = (
    # Metaphors of the authors, which others had to decode.
    _Replaced(r"glanc(e|es|ed|ing)", "quick check"),
    _Replaced(r"owed|owes|unrestored", "restore pending"),
    _Replaced(r"wish(es)?", "operator state"),
    _Replaced(rf"(held|hold|holds|holding) {_WHOM}to", "throttled"),
    _Replaced(rf"(let|lets|letting) {_WHOM}go", "free, or fail open"),
    _Replaced(
        r"(left|leave|leaves) alone",
        "free, or not touched",
        elsewhere=r"^lab/scenarios/|^docs/contribute/reproduction\.md$",
    ),
    _Replaced(r"stray", "altered"),
    _Replaced(r"anew", "added, or again"),
    _Replaced(r"(take|takes|taking|taken|took) up(?! to)", "adopted, or applied"),
    _Replaced(r"puller", "table source"),
    _Replaced(r"ever more rarely|ever later|ever rarer", "exponential back-off"),
    _Replaced(r"no time for it", "the capture cannot keep up"),
    # Second words for one thing, or words for two things.
    _Replaced(r"treatments?|treated", "decision"),
    _Replaced(r"converge[sd]?|convergence", "full reconcile"),
    _Replaced(r"audit(s|ed|ing)?(?!=)", "full reconcile, or the kernel list", elsewhere=r"^CHANGELOG\.md$"),
    _Replaced(r"former", "previous"),
    _Replaced(r"kernel view", "kernel list"),
    _Replaced(r"liars?", "compromised proxy, or false total"),
    _Replaced(r"in(to)? force", "applied, or present", near=r"\bconfiguration\b"),
)


@pytest.mark.parametrize("word", REPLACED, ids=lambda word: word.pattern.partition("|")[0])
def test_replaced_words_do_not_come_back(word: _Replaced) -> None:
    found = []
    for name, text in _scanned().items():
        if re.search(word.elsewhere, name):
            continue
        pattern = word.pattern.replace(" ", r"\s+")
        for match in re.finditer(rf"(?<![a-z])(?:{pattern})(?![a-z])", text):
            near = text[max(match.start() - 160, 0) : match.end() + 160]
            if word.near is not None and re.search(word.near, near):
                continue
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{name}:{line}: {match.group()!r}; write: {word.instead}")
    assert not found, "\n".join(found)


PARSERS: Final = {
    "mptcp-throttle": mptcp_throttle.cli.parser,
    "mptcp-sniffer": mptcp_sniffer.main.parser,
    "mptcp-throttled": mptcp_throttled.main.parser,
    "mptcp-throttle-web": mptcp_throttle_web.main.parser,
    "mptcp-throttle-namespace": mptcp_throttle.follow_namespace.parser,
}
PLACEHOLDERS: Final = {"ADDRESS": "10.1.0.2", "RATE": "1mbit", "DURATION": "10m"}
"""What a reader writes for words that stand for a value; a name may be any word."""

INSTALL: Final = REPOSITORY / "docs/howto/install.md"
INSTRUCTIONS: Final = sorted(
    [REPOSITORY / "README.md", REPOSITORY / "docs/index.md"]
    + [path for folder in ("tutorial", "howto") for path in (REPOSITORY / "docs" / folder).glob("*.md")]
)


def _our_commands(text: str) -> Iterator[str]:
    """Each command of ours in a block or in a line of text, without comments, redirections and what is beside it.

    Blocks of the language `text` are what programs print.
    """
    fenced = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fenced.findall(text) if language != "text"]
    lines = [line.strip().removeprefix("# ").removeprefix("$ ") for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`([^`\n]*)`", fenced.sub("", text))
    for line in (*lines, *spans):
        command = re.split(r"\s#|\s\d?>|\s&|\s\|", line)[0].strip()
        if " " in command and command.split()[0] in PARSERS:
            yield command


def _exit_status(command: str) -> int | str | None:
    """Of the command line that parses the command; 0 if it is accepted."""
    program, *arguments = shlex.split(command)
    try:
        PARSERS[program]().parse_args([PLACEHOLDERS.get(argument, argument) for argument in arguments])
    except SystemExit as error:
        return error.code
    return 0


@pytest.mark.parametrize("document", INSTRUCTIONS, ids=lambda path: path.name)
def test_documented_commands_are_those_of_the_command_line(document: Path) -> None:
    commands = list(_our_commands(document.read_text(encoding="utf-8")))
    assert [(command, _exit_status(command)) for command in commands] == [(command, 0) for command in commands]


def test_instructions_show_commands() -> None:
    shown = {command for path in INSTRUCTIONS for command in _our_commands(path.read_text(encoding="utf-8"))}
    assert len(shown) > 40


def test_readme_installs_as_the_instructions_do() -> None:
    """Those are what packaging/walkthrough runs."""
    readme, install = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "README.md", INSTALL))
    (block,) = re.findall(r"^## Install it\n.*?^```\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    lines = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert len(lines) == 4
    commands = [command for line in lines for command in line.split(" && ")]
    assert not [command for command in commands if f"\n{command}" not in install]
