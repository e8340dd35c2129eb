"""`mptcp-throttled` whose calls into the kernel go wrong: `python -m mptcp_lab.faulty_daemon DIRECTORY ARGUMENT...`.

The daemon is the real one with its arguments; only `set_faults` is called. What goes wrong is
read from DIRECTORY (`mptcp_lab.fault_plan`) at every call.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mptcp_lab.fault_plan import KILL, KILL_AFTER, Fault, Faults
from mptcp_throttle.linux.kernel_error import set_faults
from mptcp_throttled import main as service

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Injector:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._number = 0
        self._counts: Counter[Fault] = Counter()
        self._doomed = False

    def __call__(self, requests: Sequence[str]) -> list[OSError | None]:
        number, planned = self._faults.planned()
        if number != self._number:
            # The faults of the previous plan are void, also a kill that waits for the next call.
            self._number = number
            self._counts.clear()
            self._doomed = False
        if self._doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        return [self._answer(request, planned) for request in requests]

    def _answer(self, request: str, planned: Sequence[Fault]) -> OSError | None:
        """The error for this request; a kill strikes before the call that carries it, or before the one after that."""
        self._faults.record(request)
        answer = None
        for fault in planned:
            if request.startswith(fault.call):
                self._counts[fault] += 1
                if not fault.strikes(self._counts[fault]):
                    continue
                if fault.kind == KILL:
                    os.kill(os.getpid(), signal.SIGKILL)
                elif fault.kind == KILL_AFTER:
                    self._doomed = True
                else:
                    number = getattr(errno, fault.kind)
                    answer = OSError(number, os.strerror(number))
        return answer


def main() -> int:
    """Run the daemon; its exit status."""
    set_faults(_Injector(Faults(Path(sys.argv[1]))))
    return service.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
