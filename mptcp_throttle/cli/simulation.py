"""`check-config --simulate`: what an overflow would have done with a recorded trace."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from rich.table import Table

from mptcp_throttle.cli.console import output_console
from mptcp_throttle.errors import EX_FAILURE, UserError
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import format_volume


def simulate(config: Path, trace: Path) -> Json:
    """What the daemon's rules make of the trace. They are its own code: it is asked as a program.

    Raises UserError, with the status of the program, if configuration or trace are bad.
    """
    program = (sys.executable, "-m", "mptcp_throttled.main", "--config", str(config), "--simulate", str(trace))
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    if result.returncode:
        message = result.stderr.strip() or f"the simulation failed with status {result.returncode}"
        raise UserError(message, max(result.returncode, EX_FAILURE))
    answer: Json = json.loads(result.stdout)
    return answer


def show_simulation(data: Json) -> None:
    """What each client would have had."""
    console = output_console()
    for client in data["clients"]:
        for change in client["changes"]:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change["at"]))
            reason = f": {change['reason']}" if change["reason"] else ""
            line = f"{at}  {client['network']} {client['client']}: cap {change['cap'] or 'unlimited'}{reason}"
            console.print(line, markup=False, highlight=False)
    table = Table("network", "client", "changes", "with the overflow", "with the cap alone", box=None)
    for client in data["clients"]:
        volumes = (format_volume(client[key]) for key in ("bytes", "bytes_with_cap_alone"))
        table.add_row(client["network"], client["client"], str(len(client["changes"])), *volumes)
    console.print(table)
