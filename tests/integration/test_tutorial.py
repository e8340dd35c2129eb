"""The tutorial, typed as it is written: its blocks `sh` in the proxy's network, its blocks `lab` into `lab/network`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]
TUTORIAL: Final = REPOSITORY / "docs/tutorial/first-cap.md"
PROGRAMS: Final = Path(sys.executable).parent
_DONE, _FAILED = "done-with-block", "failed-in-block"
TERMINALS: Final = "lab/network\n", "nsenter --net=$(ls /run/netns/mptl-*-proxy)\n"
"""The commands by which the reader gets both terminals."""

QUESTIONS: Final = "ss ", "mptcp-throttle --config proxy.yaml connections"
"""Commands that may be repeated until they show what is expected."""

RATES: Final = ((5.5, 10.5), (0.5, 1.3), (3.0, 5.5))
"""Mb/s on Ethernet at each `rates` of the tutorial: without a cap, capped to 1 Mb/s, capped to 5 Mb/s."""


def blocks() -> list[tuple[str, str]]:
    """Language and text of each block of the tutorial, without pictures."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(language, text) for language, text in found]


class Terminal:
    """A program that answers what is typed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._typed: IO[str] = process.stdin
        self._shown: IO[str] = process.stdout

    def line(self) -> str:
        """The next line that it shows."""
        return self._shown.readline().rstrip("\n")

    def ask(self, request: str) -> str:
        """The line that answers a line."""
        self._typed.write(f"{request}\n")
        self._typed.flush()
        return self.line()

    def run(self, commands: str) -> str:
        """What a shell shows while it runs these commands, each of which must succeed."""
        # What runs in the background keeps the pipe open when the shell ends.
        self._typed.write(f"trap 'echo {_FAILED}' EXIT\nset -e\n{commands}set +e\ntrap - EXIT\necho {_DONE}\n")
        self._typed.flush()
        lines: list[str] = []
        while (line := self.line()) != _DONE:
            assert line != _FAILED, f"failed:\n{commands}{lines}"
            lines.append(line)
        return "\n".join(lines)

    def end(self) -> int:
        """Its exit status, after the end of its input."""
        self._typed.close()
        return self._process.wait(timeout=30)


@contextmanager
def terminal(*command: str | Path) -> Iterator[Terminal]:
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield Terminal(process)
        finally:
            process.terminate()


def alike(text: str) -> list[str]:
    """The words of what is shown, with `-` for what differs from run to run: tokens, handles, and what was observed."""
    text = re.sub(r"\d\S* (Mb/s|ms)\b", "-", text)
    # A handle and a token may have no digit: `acec:`.
    number = re.compile(r"\d|^[a-f]+:$|^[a-f]{8}$")
    return ["-" if number.search(word) and not re.search(r"8080|eth0|mbit", word) else word for word in text.split()]


def shows(shell: Terminal, commands: str, expected: str) -> bool:
    """Whether these commands, which only look, show that soon: what they look at takes seconds to start."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shown = shell.run(f"{{ {commands}}} || true\n")
        # The kernel lists the subflows of a connection in any order.
        if sorted(alike(shown)) == sorted(alike(expected)):
            return True
        time.sleep(0.5)
    print(shown)
    return False


@pytest.fixture
def directory() -> Iterator[Path]:
    """That of the tutorial, which makes it."""
    path = Path("/tmp/first-cap")  # noqa: S108  # the tutorial names it
    shutil.rmtree(path, ignore_errors=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_tutorial_shows_what_it_says(directory: Path) -> None:
    typed = blocks()
    assert typed[0] == ("sh", TERMINALS[0])
    typed.remove(("sh", TERMINALS[0]))
    typed.remove(("sh", TERMINALS[1]))
    rates = iter(RATES)
    with terminal(PROGRAMS / "python", "-m", "mptcp_lab.package_network") as network:
        shown = network.line()
        with terminal("nsenter", f"--net=/run/netns/{shown}", "bash") as shell:
            for (language, text), (following, expected) in zip_longest(typed, typed[1:], fillvalue=("", "")):
                if language == "lab":
                    answers = [network.ask(request) for request in text.splitlines()]
                    shown = "\n".join(answers)
                    if text.endswith("rates 3\n"):
                        (least, most), seen = next(rates), [answers[-1]]
                        # Beside other tests, what flows in three seconds may be more or less.
                        while not least < float(seen[-1].split()[0]) < most and len(seen) < 4:
                            seen.append(network.ask("rates 3"))
                        assert least < float(seen[-1].split()[0]) < most, seen
                elif language == "sh" and text.endswith("exit\n"):
                    shell.run(text.removesuffix("exit\n"))
                    assert shell.end() == 0
                elif language == "sh" and following == "text" and text.startswith(QUESTIONS):
                    assert shows(shell, text, expected), text
                    shown = expected
                elif language == "sh":
                    shown = shell.run(text.replace("$PWD/.venv/bin", str(PROGRAMS)))
                else:
                    assert alike(shown) == alike(text), shown
        assert network.end() == 0
    assert next(rates, None) is None
    assert not directory.exists()
