"""A real proxy at work: hosts, Squid, origin server and our services, for a test to do things to."""

from __future__ import annotations

import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mptcp_lab.download import Download
from mptcp_lab.marks import CHAIN, SHOW_MARKS, Mark, parse_marks
from mptcp_lab.origin import Origin, start_origin
from mptcp_lab.services import WIFI_FIRST, Services, SubflowStatus
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import Client, Family, Lab, Topology, build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mptcp_throttle.model import AccessNetwork

MEGABYTE = 10**6
BACK_ENDS = ("ipset", "rules")
EXECUTABLES = Path(sys.executable).parent


@dataclass(frozen=True)
class Bench:
    lab: Lab
    origin: Origin
    services: Services

    def download(
        self, size: int = 50 * MEGABYTE, client: Client | None = None, *, mptcp: bool = True, family: Family = 4
    ) -> Download:
        return Download(self.lab, client or self.lab.client, self.origin.add(size), mptcp=mptcp, family=family)

    def abort(self, download: Download, client: Client | None = None) -> None:
        """End a download by resetting its subflows.

        Ending curl alone would leave them established for a minute: the kernel keeps them for the data it still owes.
        """
        (client or self.lab.client).run("ss", "-K", "-t", "dport", "=", ":8080")
        download.stop()

    def capped(self) -> list[SubflowStatus]:
        return [subflow for subflow in self.services.subflows() if subflow.rule == "cap"]

    def wait_capped(self, count: int = 1) -> list[SubflowStatus]:
        eventually(lambda: len(self.capped()) == count, f"{count} subflows capped")
        return self.capped()

    def wait_settled(self, count: int = 1) -> list[SubflowStatus]:
        """As `wait_capped`, and no class drains any more what was queued before its cap began."""
        capped = self.wait_capped(count)
        eventually(lambda: "rate 10Gbit" not in self.classes(), "settled")
        return capped

    def classes(self) -> str:
        return self.lab.proxy.run("tc", "class", "show", "dev", "eth0").stdout

    def qdisc(self) -> str:
        """The qdiscs of the proxy's interface, without HTB's packet counter."""
        return re.sub(r"direct_packets_stat \d+ ", "", self.lab.proxy.run("tc", "qdisc", "show", "dev", "eth0").stdout)

    def qdisc_kinds(self) -> list[str]:
        """Qdiscs, classes and filters of the proxy's interface, without numbers that the kernel chooses or counts."""
        dump = "".join(
            self.lab.proxy.run("tc", item, "show", "dev", "eth0").stdout for item in ("qdisc", "class", "filter")
        )
        return re.sub(r"direct_packets_stat \d+ | \b[89a-f][0-9a-f]{3}:", "", dump).splitlines()

    def clean_up(self) -> None:
        self.services.clean_up()

    def paced(self) -> int:
        """The proxy's established sockets with a maximum pacing rate."""
        return len(re.findall(r"pacing_rate \S+/", self.lab.proxy.run("ss", "-tinH").stdout))

    def marks(self) -> list[Mark]:
        """The marks in force, whatever sets them."""
        return parse_marks(self._shown_marks())

    def chain(self) -> str:
        """Our chain, the jumps to it and our sets, line by line, without what changes when a set is made anew."""
        lines = [line for line in self._shown_marks().splitlines() if CHAIN in line or "mptcp-throttle-" in line]
        return re.sub(r"(hashsize|initval) \S+", "", "\n".join(sorted(lines)))

    def _shown_marks(self) -> str:
        return self.lab.proxy.run("sh", "-c", SHOW_MARKS).stdout


@contextmanager
def bench(
    topology: Topology | None = None,
    networks: Sequence[AccessNetwork] = WIFI_FIRST,
    daemon: Mapping[str, object] | None = None,
) -> Iterator[Bench]:
    """All running and connected; `daemon` is what its section of the configuration says beside the usual."""
    with build(topology or Topology()) as lab:
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        with Services(lab.proxy, networks, daemon=daemon) as services:
            yield Bench(lab, origin, services)


def eventually(condition: Callable[[], bool], what: str, within: float = 10.0) -> float:
    """Seconds until `condition` held; fails if it does not hold `within` seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within, f"not within {within:g} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - began
