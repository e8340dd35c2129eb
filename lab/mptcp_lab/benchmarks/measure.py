"""What benchmarks share: hosts without bandwidth limits, and what the kernel says of a process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Topology
from mptcp_throttle.units import Rate


def unshaped(*clients: ClientSpec) -> Topology:
    """The lab's hosts with access links that are limited by the processor only.

    To hand packets to another processor to keep their order takes half of the processors, and loses what they cannot
    take: that would be measured in place of the services.
    """
    rate = Rate(32_000_000_000)
    ethernet, wifi = (replace(link, rate=rate) for link in (ETHERNET, WIFI))
    return Topology(clients=clients, ethernet=ethernet, wifi=wifi, in_order=False)


def resident_bytes(pid: int) -> int:
    """Memory that the process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time the process has used, user and system (proc_pid_stat(5): fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
