"""How fast this checkout simulates beside another one: the same runs in turn, as the speed of a machine varies."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Final

from scenario import Scenario

_HERE: Final = Path(__file__).parents[2]
_ROUNDS: Final = 3
_TOOK: Final = re.compile(r"s in ([0-9.]+) s:")


def compare(scenario: Scenario, than: Path) -> str:
    """What both take of processor time, in seconds, and the median of the ratios.

    Raises subprocess.CalledProcessError if a run fails.
    """
    times = [(_processor_time(scenario, than), _processor_time(scenario, _HERE)) for _ in range(_ROUNDS)]
    ratio = median(theirs / own for theirs, own in times)
    shown = ", ".join(f"{theirs:g} and {own:g} s" for theirs, own in times)
    return f"{than} and this checkout took {shown}: {ratio:.2f} times as fast"


def _processor_time(scenario: Scenario, root: Path) -> float:
    command = shlex.split(scenario.command)
    paths = [str(root / name) for name in ("", "daemon", "sniffer", "lab", "web")]
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": ":".join(paths)}
    command[0] = str(root / command[0])
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return sum(map(float, _TOOK.findall(output)))
