"""An uplink that is a port of an Open vSwitch, on a stock kernel, whose datapath heeds queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from capped_path import SATURATED
from proxy_world import Hosts, hosts

from mptcp_lab.sdn import open_vswitch
from mptcp_lab.topology import Topology

NORMAL: Final = " priority=0 actions=NORMAL\n"


@dataclass(frozen=True)
class Uplink:
    """The hosts, and the Open vSwitch of the proxy, whose port eth0 is."""

    hosts: Hosts
    switch: open_vswitch.OpenVswitch

    def records(self) -> str:
        """Our records in the database."""
        return "".join(
            self.switch.run("--bare", "--columns=_uuid", "find", table, "external_ids:owner=mptcp-throttle")
            for table in ("QoS", "Queue")
        )

    def rules(self) -> str:
        """All OpenFlow rules."""
        return self.switch.rules("dump-flows")

    def tc(self, item: str) -> str:
        """The qdisc or the classes of the port in the kernel."""
        return self.hosts.lab.proxy.run("tc", item, "show", "dev", "eth0").stdout

    def is_clean(self) -> bool:
        """Whether nothing of ours is left."""
        return (self.records(), self.rules()) == ("", NORMAL) and "htb" not in self.tc("qdisc")


@contextmanager
def made_uplink() -> Iterator[Uplink]:
    """Hosts whose proxy reaches the others through a bridge."""
    with hosts(Topology(wifi=SATURATED, proxy_qdisc="fq_codel")) as built:
        assert open_vswitch.datapath() == "system"
        yield Uplink(built, open_vswitch.put_bridge_before(built.lab.proxy, "eth0"))
