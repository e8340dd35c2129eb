"""What benchmarks share: unshaped hosts, their command line, and what the kernel says of a process."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Topology
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from mptcp_lab.host import Host
    from mptcp_lab.process import Process
    from mptcp_lab.services import Services

PORT: Final = 8080
"""Where the proxy listens in a benchmark without Squid."""


def command_line(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of the benchmark `name`, with the option that all have; see `write_json`."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    return parser


def write_json(file: Path | None, figures: object) -> None:
    """Write the figures to the file that `--json` names, if any."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def unshaped(*clients: ClientSpec) -> Topology:
    """The lab's hosts, with access links that only the processor limits.

    Packets may be reordered. To keep their order by receive packet steering (RPS) takes half of the processor time, and
    drops what the receiving processor cannot take: the benchmark would measure RPS.
    """
    rate = Rate(32_000_000_000)
    ethernet, wifi = (replace(link, rate=rate) for link in (ETHERNET, WIFI))
    return Topology(clients=clients, ethernet=ethernet, wifi=wifi, in_order=False)


def start_syn_flood(host: Host, interface: str, mac: str, proxy: object, rate: int, seconds: float) -> Process:
    """Start `syn_flood` on a host, `rate` SYNs per second to the proxy's port; returns once it sends."""
    arguments = (interface, mac, str(proxy), str(PORT), str(rate), str(seconds))
    flood = host.start(f"flood-{rate}", sys.executable, "-m", "mptcp_lab.benchmarks.syn_flood", *arguments)
    flood.wait_until(lambda: "ready" in flood.log_text(), "ready", 30)
    return flood


def start_sniffer(services: Services) -> Process:
    """Start the sniffer alone; returns once it captures and answers."""
    sniffer = services.start_sniffer()
    sniffer.wait_until(services.sockets.sniffer.exists, "answering")
    return sniffer


def resident_mib(pid: int) -> float:
    """Memory that the process has resident, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """Processor time in seconds that the process has used, user and system (proc_pid_stat(5): fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class CpuShare:
    """The processor time that a process uses from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = time.monotonic()
        self._used = cpu_seconds(pid)

    @property
    def seconds(self) -> float:
        """Time since this object was made."""
        return time.monotonic() - self._began

    def percent(self) -> float:
        """Per cent of one core in that time."""
        return 100 * (cpu_seconds(self._pid) - self._used) / self.seconds
