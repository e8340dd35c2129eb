"""What systemd knows about our services: their state, their user, and their last exit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.errors import EXIT_STATUSES
from mptcp_throttle.programs import ProgramFailed, output_of

SERVICES: Final = ("mptcp-sniffer", "mptcp-throttled")
"""The services without which no subflow is throttled."""

_RUNNING: Final = Path("/run/systemd/system")  # sd_booted(3)
_CLD_EXITED: Final = "1"  # include/uapi/asm-generic/siginfo.h, as in ExecMainCode
_LONGEST_LINE: Final = 300
_NO_ENTRIES: Final = "-- No entries --"


class Unit(NamedTuple):
    """Properties of a service (org.freedesktop.systemd1(5)), as text."""

    Id: str
    LoadState: str
    ActiveState: str
    SubState: str
    Result: str
    ExecMainCode: str
    ExecMainStatus: str
    ExecMainPID: str
    NRestarts: str
    User: str
    Group: str
    SupplementaryGroups: str

    @property
    def failing(self) -> bool:
        """Whether its last run has failed and it does not run now."""
        return self.ActiveState == "failed" or self.SubState.startswith("auto-restart")

    @property
    def last_exit(self) -> str:
        """How its main process has ended, and what systemd says of it otherwise."""
        if self.ExecMainCode == "0":
            return self.Result
        if self.ExecMainCode == _CLD_EXITED:
            meaning = EXIT_STATUSES.get(int(self.ExecMainStatus))
            end = f"exit status {self.ExecMainStatus}" + (f" ({meaning})" if meaning else "")
        else:
            end = signal.Signals(int(self.ExecMainStatus)).name
        return end if self.Result in {"success", "exit-code", "signal", "core-dump"} else f"{self.Result}, {end}"


def read_unit(name: str) -> Unit | None:
    """The service `name`; None if systemd does not run here or has no such unit. Raises ProgramFailed."""
    if not _RUNNING.exists():
        return None
    shown = output_of("systemctl", "show", f"--property={','.join(Unit._fields)}", f"{name}.service")
    unit = None if shown is None else parse_unit(shown)
    return None if unit is None or unit.LoadState == "not-found" else unit


def parse_unit(shown: str) -> Unit:
    """What `systemctl show` prints: a line `Name=value` per property. Raises ProgramFailed if one is missing."""
    properties = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    try:
        return Unit(*(properties[name] for name in Unit._fields))
    except KeyError as error:
        raise ProgramFailed(f"systemctl: shows no {error.args[0]}") from error


def last_line(unit: Unit) -> str | None:
    """The last line that its main process has logged; None if this host has no journal of it. Raises ProgramFailed."""
    # What only stops has no main process.
    of_process = () if unit.ExecMainPID == "0" else (f"_PID={unit.ExecMainPID}",)
    matches = (f"_SYSTEMD_UNIT={unit.Id}", *of_process)
    shown = output_of("journalctl", "--no-pager", "--output=cat", "--lines=1", *matches) or ""
    line = " ".join(shown.split())[:_LONGEST_LINE]
    return None if not line or line == _NO_ENTRIES else line
