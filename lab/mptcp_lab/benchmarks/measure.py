"""What benchmarks share: hosts without bandwidth limits, and what the kernel says of a process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Topology
from mptcp_throttle.units import Rate


def unshaped(*clients: ClientSpec) -> Topology:
    """The lab's hosts with access links that are limited by the processor only."""
    rate = Rate(32_000_000_000)
    return Topology(clients=clients, ethernet=replace(ETHERNET, rate=rate), wifi=replace(WIFI, rate=rate))


def resident_bytes(pid: int) -> int:
    """Memory that the process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time the process has used, user and system (proc_pid_stat(5): fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
