"""What selftests have printed, as outcomes of tests.

Since Linux 6.6 the scripts end with a TAP document. Before, each has a form of its own: a line per test, or per check.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


class Outcome(StrEnum):
    """The outcome of a test. `FLAKY`: it failed, and its authors say that this may happen."""

    OK = "ok"
    FAILED = "failed"
    FLAKY = "flaky"
    SKIPPED = "skipped"


EXIT_STATUS: Final = "(exit status of the script)"
"""The name of a test that each script has: it also fails if the script ends too early."""

_STATUSES: Final = {0: Outcome.OK, 4: Outcome.SKIPPED}  # ksft_skip
_TAP: Final = re.compile(r"^(?P<failed>not )?ok \d+ - [^:]+: (?P<test>.*?)(?: # (?P<remark>.*))?$", re.MULTILINE)
_MARK: Final = re.compile(r"\[ *(ok|fail|skip) *\]", re.IGNORECASE)
_MARKS: Final = {"ok": Outcome.OK, "fail": Outcome.FAILED, "skip": Outcome.SKIPPED}
_LINE: Final = re.compile(r"^(PASS|FAIL): (.*)$")
_LINES: Final = {"PASS": Outcome.OK, "FAIL": Outcome.FAILED}
_MEASURED: Final = re.compile(r"\((?:duration +\d+ms)\)|\bmax +\d* *$")
_TITLE: Final = re.compile(r"^(?P<number>\d{3}) (?P<name>.{36})")  # "%03u %-36s"
_FAILURE: Final = re.compile(r"^\t- (?P<number>\d+): ")


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script's end: its command, exit status, duration in seconds, and the file with all that it printed.

    `services` is how often our services were started beside it, and `counters` are the sums of what they counted.
    """

    command: str
    status: int
    seconds: float
    output: str
    services: int
    counters: Mapping[str, int]


def write_runs(file: Path, runs: Iterable[ScriptRun]) -> None:
    """Write them to a file of JSON, from which `read_runs` reads them."""
    file.write_text(json.dumps([asdict(run) for run in runs], indent=2) + "\n", encoding="utf-8")


def read_runs(file: Path) -> list[ScriptRun]:
    """What `write_runs` has written."""
    return [ScriptRun(**run) for run in json.loads(file.read_text(encoding="utf-8"))]


def outcomes(run: ScriptRun, printed: str) -> dict[str, Outcome]:
    """The outcome of each test of a script, by its name, in the order of their ends; that of the script is the last."""
    if "TAP version" in printed:
        found = dict(_of_tap(printed))
    elif run.command.startswith("mptcp_join.sh"):
        found = _of_checks(printed.splitlines())
    else:
        found = dict(_of_lines(printed.splitlines()))
    return found | {EXIT_STATUS: _STATUSES.get(run.status, Outcome.FAILED)}


def _of_tap(printed: str) -> Iterator[tuple[str, Outcome]]:
    for line in _TAP.finditer(printed):
        remark = line["remark"] or ""
        if line["failed"]:
            outcome = Outcome.FAILED
        elif remark.startswith("SKIP"):
            outcome = Outcome.SKIPPED
        else:
            outcome = Outcome.FLAKY if remark.startswith("IGNORE") else Outcome.OK
        yield line["test"], outcome


def _of_checks(lines: Sequence[str]) -> dict[str, Outcome]:
    """Outcomes of mptcp_join.sh: a title begins a test, marks end its checks, and a list at the end has what failed.

    Titles are cut off after 36 columns: what follows cannot be told from a check's name.
    """
    marks: dict[int, list[Outcome]] = defaultdict(list)
    titles: dict[int, str] = {}
    number = 0
    for line in lines:
        if title := _TITLE.match(line):
            number = int(title["number"])
            titles[number] = f"{title['number']} {title['name'].strip()}"
        if failure := _FAILURE.match(line):
            marks[int(failure["number"])].append(Outcome.FAILED)
        marks[number] += [_MARKS[mark.lower()] for mark in _MARK.findall(line)]
    return {name: _worst(marks[number]) for number, name in titles.items()}


def _worst(marks: Iterable[Outcome]) -> Outcome:
    """The outcome of a test by those of its checks. One without checks was not carried out."""
    present = set(marks)
    return next((outcome for outcome in (Outcome.FAILED, Outcome.OK) if outcome in present), Outcome.SKIPPED)


def _of_lines(lines: Iterable[str]) -> Iterator[tuple[str, Outcome]]:
    """Outcomes of the other scripts: a test's line ends with its mark, or begins with PASS or FAIL."""
    for line in lines:
        if whole := _LINE.match(line):
            yield whole[2], _LINES[whole[1]]
        elif mark := _MARK.search(line):
            name = " ".join(_MEASURED.sub("", line[: mark.start()]).split()).replace(" )", ")")
            if name:
                yield name, _MARKS[mark[1].lower()]
