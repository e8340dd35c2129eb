"""An Open vSwitch of a host: its two processes, in the host's network namespace and with files of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab import guest
from mptcp_lab.process import run

if TYPE_CHECKING:
    from mptcp_lab.host import Host
    from mptcp_lab.process import Process

_SCHEMA: Final = Path("/usr/share/openvswitch/vswitch.ovsschema")
_BRIDGE: Final = "br0"


@dataclass(frozen=True, slots=True)
class OpenVswitch:
    """A running Open vSwitch; `directory` has its sockets and its database, `daemon` is ovs-vswitchd."""

    host: Host
    directory: Path
    daemon: Process

    def run(self, *words: str) -> str:
        """What ovs-vsctl(8) prints. Raises LabError if it fails."""
        return self.host.run("ovs-vsctl", f"--db=unix:{self.directory}/db.sock", "--timeout=20", *words).stdout

    def rules(self, *words: str) -> str:
        """What ovs-ofctl(8) prints: `words` are a command, after which the bridge follows, and its arguments."""
        command, *arguments = words
        management = f"unix:{self.directory / _BRIDGE}.mgmt"
        return self.host.run("ovs-ofctl", "--no-stats", command, management, *arguments).stdout


def start(host: Host, name: str) -> OpenVswitch:
    """Start ovsdb-server and ovs-vswitchd, which end with the host; `name` is that of their processes.

    Raises LabError.
    """
    directory = host.directory
    environment = ("env", *(f"OVS_{kind}DIR={directory}" for kind in ("RUN", "LOG", "DB", "SYSCONF")))
    database, socket = directory / "conf.db", directory / "db.sock"
    host.run(*environment, "ovsdb-tool", "create", database, _SCHEMA)
    server = (f"--remote=punix:{socket}", "--no-chdir", database)
    host.start(f"ovsdb-server-{name}", *environment, "ovsdb-server", *server).wait_until(socket.exists, "listening")
    daemon = host.start(f"ovs-vswitchd-{name}", *environment, "ovs-vswitchd", "--no-chdir", f"unix:{socket}")
    return OpenVswitch(host, directory, daemon)


def datapath() -> str:
    """The type of bridges: `system` in a guest, whose kernel has the module, `netdev` (user space) elsewhere."""
    if guest.inside() is not None and run(["modprobe", "openvswitch"], check=False).returncode == 0:
        return "system"
    return "netdev"


def put_bridge_before(host: Host, interface: str) -> OpenVswitch:
    """Make `interface` a port of a learning bridge, which gets the host's addresses and routes. Raises LabError."""
    switch = start(host, host.name)
    (shown,) = json.loads(host.run("ip", "-json", "address", "show", "dev", interface, "scope", "global").stdout)
    routes = [
        (family, route)
        for family in ("-4", "-6")
        for route in json.loads(host.run("ip", "-json", family, "route", "show", "dev", interface).stdout)
        if "gateway" in route
    ]
    bridge = ("add-br", _BRIDGE, "--", "set", "Bridge", _BRIDGE, f"datapath_type={datapath()}")
    switch.run(*bridge, "--", "add-port", _BRIDGE, interface)
    for family, route in routes:
        host.run("ip", family, "route", "delete", route["dst"], "dev", interface)
    host.run("ip", "address", "flush", "dev", interface, "scope", "global")
    host.run("ip", "link", "set", _BRIDGE, "up")
    # With a scope asked for, ip(8) shows addresses of other scopes as empty objects.
    for address in filter(None, shown["addr_info"]):
        flags = ["nodad"] if address["family"] == "inet6" else []
        host.run("ip", "address", "add", f"{address['local']}/{address['prefixlen']}", "dev", _BRIDGE, *flags)
    for family, route in routes:
        host.run("ip", family, "route", "replace", route["dst"], "via", route["gateway"], "dev", _BRIDGE)
    return switch
