"""`mptcp-throttled` whose calls into the kernel go wrong: `python -m mptcp_lab.faulty_daemon FAULT... -- ARGUMENT...`.

The daemon is the real one with its arguments; only `mptcp_throttled.kernel.fault_point` is set. The names of all calls
that change anything are written to `--trace`, one per line, so that a fault can be planned for each.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from mptcp_throttled import service
from mptcp_throttled.kernel.fault_point import set_faults

KILL: Final = "kill"
_READS: Final = re.compile(r" show\b| -S\b|^look for ")


@dataclass(frozen=True, slots=True)
class Fault:
    """The calls whose name starts with `call`, from the `first` (1 is the first) on, `times` of them, go wrong.

    `kind` is `kill`, for SIGKILL before the call is made, or the name of an error that the kernel answers.
    """

    kind: str
    call: str
    first: int = 1
    times: int = 1

    def __str__(self) -> str:
        return f"{self.kind}@{self.first}+{self.times}:{self.call}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`. Raises ValueError."""
        match = re.fullmatch(r"(\w+)@(\d+)\+(\d+):(.*)", text)
        if match is None or (match[1] != KILL and match[1] not in errno.errorcode.values()):
            raise ValueError(text)
        return cls(match[1], match[4], int(match[2]), int(match[3]))

    def strikes(self, count: int) -> bool:
        """Whether the call that is the `count`th of its kind goes wrong."""
        return self.first <= count < self.first + self.times


def changes_anything(call: str) -> bool:
    """Whether a call of that name is more than a look."""
    return _READS.search(call) is None


def _main() -> int:
    parser = argparse.ArgumentParser(prog="faulty_daemon", description=__doc__)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--fault", type=Fault.parse, action="append", default=[])
    parser.add_argument("arguments", nargs="+")
    options = parser.parse_args()
    counts: Counter[Fault] = Counter()

    def inject(call: str) -> None:
        if options.trace is not None and changes_anything(call):
            with options.trace.open("a", encoding="utf-8") as trace:
                trace.write(f"{call}\n")
        for fault in options.fault:
            if call.startswith(fault.call):
                counts[fault] += 1
                if fault.strikes(counts[fault]):
                    if fault.kind == KILL:
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise OSError(getattr(errno, fault.kind), os.strerror(getattr(errno, fault.kind)))

    set_faults(inject)
    return service.main(options.arguments)


if __name__ == "__main__":
    sys.exit(_main())
