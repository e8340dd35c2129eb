"""What goes wrong with a daemon's calls into the kernel: planned here, carried out by `mptcp_lab.faulty_daemon`.

Calls have the names that `mptcp_throttle.linux.kernel_error.fault_point` is given.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

KILL: Final = "KILL"
KILL_AFTER: Final = "KILL-AFTER"
FOREVER: Final = 10**9


@dataclass(frozen=True, slots=True)
class Fault:
    """The calls whose name starts with `call`, from the `first` (1 is the first) on, `times` of them, go wrong.

    `kind` is the name of an error that the kernel answers, or `KILL` or `KILL_AFTER`: SIGKILL before the call is made,
    or right after it. A call may be one request of a netlink datagram. An error refuses this request alone; a kill
    comes before or after the whole datagram.
    """

    kind: str
    call: str = ""
    first: int = 1
    times: int = 1

    def __str__(self) -> str:
        return f"{self.kind}@{self.first}+{self.times}:{self.call}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`. Raises ValueError."""
        match = re.fullmatch(r"([\w-]+)@(\d+)\+(\d+):(.*)", text)
        if match is None or match[1] not in (KILL, KILL_AFTER, *errno.errorcode.values()):
            raise ValueError(text)
        return cls(match[1], match[4], int(match[2]), int(match[3]))

    def strikes(self, count: int) -> bool:
        """Whether the call that is the `count`th of its kind goes wrong."""
        return self.first <= count < self.first + self.times


class Faults:
    """The faults of one daemon and the calls that it made, in files of `directory`; both may change while it runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._plan = directory / "plan"
        self._calls = directory / "calls"
        self._number = 0

    def plan(self, *faults: Fault) -> None:
        """From now on these go wrong and nothing else; calls are counted from now on."""
        self.directory.mkdir(exist_ok=True)
        self._number += 1
        new = self._plan.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in (self._number, *faults)), encoding="utf-8")
        new.replace(self._plan)
        self._calls.write_text("", encoding="utf-8")

    def planned(self) -> tuple[int, tuple[Fault, ...]]:
        """The present plan, and a number that no two plans share."""
        with self._plan.open(encoding="utf-8") as file:
            return int(file.readline()), tuple(Fault.parse(line.rstrip("\n")) for line in file)

    def record(self, call: str) -> None:
        """The daemon is about to make a call."""
        with self._calls.open("a", encoding="utf-8") as file:
            file.write(f"{call}\n")

    def calls(self) -> tuple[str, ...]:
        """All calls since the present plan."""
        return tuple(self._calls.read_text(encoding="utf-8").splitlines())
