"""Our services with a wall clock that a test sets, since the host's is that of other programs, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy_world import EXECUTABLES

from mptcp_lab.services import Services

if TYPE_CHECKING:
    from mptcp_lab.process import Process

_MODULES: Final = {"mptcp-sniffer": "mptcp_sniffer.main", "mptcp-throttled": "mptcp_throttled.main"}
# Once the file exists, the program's wall clock is ahead by so many seconds.
_RUN: Final = """
import importlib, os, sys, time
ahead, module, *arguments = sys.argv[1:]
real = time.time
time.time = lambda: real() + (float(open(ahead).read()) if os.path.exists(ahead) else 0)
sys.exit(importlib.import_module(module).main(arguments))
"""


class ServicesWithClock(Services):
    """The services; both have the wall clock of the host until a test sets it."""

    def set_ahead(self, seconds: float) -> None:
        """Set the wall clock to so much later than the host's; earlier, if negative."""
        # A program may read it at any moment.
        written = self.directory / "written"
        written.write_text(str(seconds), encoding="ascii")
        written.rename(self.directory / "ahead")

    def _start(self, name: str) -> Process:
        return self._run(name, EXECUTABLES / "python", "-c", _RUN, self.directory / "ahead", _MODULES[name])
