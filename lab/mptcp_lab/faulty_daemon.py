"""`mptcp-throttled` whose calls into the kernel go wrong: `python -m mptcp_lab.faulty_daemon DIRECTORY ARGUMENT...`.

The daemon is the real one with its arguments; only `mptcp_throttle.linux.fault_point` is set. What goes wrong is
read from DIRECTORY (`mptcp_lab.faults`) at every call.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from mptcp_lab.faults import KILL, KILL_AFTER, Fault, Faults
from mptcp_throttle.linux.fault_point import set_faults
from mptcp_throttled import main as service


class _Injector:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._number = 0
        self._counts: Counter[Fault] = Counter()
        self._doomed = False

    def __call__(self, call: str) -> None:
        number, planned = self._faults.planned()
        if number != self._number:
            # What was planned before strikes no more, not even a kill that waits for the next call.
            self._number = number
            self._counts.clear()
            self._doomed = False
        if self._doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        self._faults.record(call)
        for fault in planned:
            if call.startswith(fault.call):
                self._counts[fault] += 1
                if fault.strikes(self._counts[fault]):
                    self._strike(fault.kind)

    def _strike(self, kind: str) -> None:
        if kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == KILL_AFTER:
            self._doomed = True
        else:
            number = getattr(errno, kind)
            raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    set_faults(_Injector(Faults(Path(sys.argv[1]))))
    sys.exit(service.main(sys.argv[2:]))
