"""Our services with a wall clock that is set for them alone: other programs use the host's."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from mptcp_lab.services import Services

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path

    from mptcp_lab.process import Process

_MODULES: Final = {"mptcp-sniffer": "mptcp_sniffer.main", "mptcp-throttled": "mptcp_throttled.main"}
# Once the file exists, the program's wall clock is ahead by the seconds in it. Its log keeps the host's.
_RUN: Final = """
import importlib, logging, os, sys, time, types
logging.time = types.SimpleNamespace(**vars(time))
ahead, module, *arguments = sys.argv[1:]
real = time.time
time.time = lambda: real() + (float(open(ahead).read()) if os.path.exists(ahead) else 0)
sys.exit(importlib.import_module(module).main(arguments))
"""


class ServicesWithClock(Services):
    """The services; both have the wall clock of the host until it is set."""

    def set_ahead(self, seconds: float, programs: Iterable[str] = tuple(_MODULES)) -> None:
        """Set the wall clock of these programs to `seconds` later than the host's; earlier, if negative.

        The sniffer compares its clock with the stamps of packets, which are of the host's.
        """
        for name in programs:
            # The program may read it at any moment.
            written = self.directory / "written"
            written.write_text(str(seconds), encoding="ascii")
            written.rename(self._ahead(name))

    def set_daemon_clock(self, now: datetime) -> None:
        """Set the daemon's wall clock to this time, which has a time zone."""
        self.set_ahead(now.timestamp() - time.time(), ["mptcp-throttled"])

    def _start(self, name: str) -> Process:
        if name not in _MODULES:
            return super()._start(name)
        return self._run(name, sys.executable, "-c", _RUN, self._ahead(name), _MODULES[name])

    def _ahead(self, name: str) -> Path:
        return self.directory / f"{name}.ahead"
