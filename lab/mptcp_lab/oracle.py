"""The proxy's MPTCP subflows, read with `ip mptcp monitor` and ss(8) instead of our code."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_lab.host import Host
    from mptcp_throttle.rpc import Json


class Ends(NamedTuple):
    """A subflow, by connection and client; a test has one proxy port, and one proxy address per family."""

    token: str
    client: str
    client_port: int


@dataclass
class Subflow:
    """A subflow according to the kernel's events; `priorities` are the successive values of its backup flag."""

    address_id: int
    priorities: list[bool]
    closed: bool = False


@dataclass
class Kernel:
    """The state after all events of a log of `ip mptcp monitor`."""

    subflows: dict[Ends, Subflow] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


_EVENT: Final = re.compile(r"\[ *(\w+)\] (.*)")


def read_events(lines: Iterable[str]) -> Kernel:
    """The state after these lines of `ip mptcp monitor`."""
    kernel = Kernel()
    for line in lines:
        match = _EVENT.match(line)
        if match is None:
            continue
        kind, attributes = match[1], dict(re.findall(r"(\w+)=(\S+)", match[2]))
        if kind == "CLOSED":
            kernel.ended.add(attributes["token"])
        if kind not in ("ESTABLISHED", "SF_ESTABLISHED", "SF_PRIO", "SF_CLOSED"):
            continue
        token = attributes["token"].rjust(8, "0")
        ends = Ends(token, plain(attributes.get("daddr4") or attributes["daddr6"]), int(attributes["dport"]))
        backup = attributes.get("backup") == "1"
        if kind in ("ESTABLISHED", "SF_ESTABLISHED"):
            kernel.subflows[ends] = Subflow(int(attributes["remid"]), [backup])
        elif ends in kernel.subflows and kind == "SF_PRIO":
            kernel.subflows[ends].priorities.append(backup)
        elif ends in kernel.subflows:
            kernel.subflows[ends].closed = True
    return kernel


def listed(proxy: Host, port: int) -> dict[Ends, tuple[int, bool]]:
    """The address id and backup flag of every established MPTCP subflow of `proxy`, as ss(8) shows it."""
    lines = proxy.run("ss", "-tinH", "state", "established", "sport", "=", f":{port}").stdout.splitlines()
    found = {}
    for ends, info in zip(lines[::2], lines[1::2], strict=True):
        mptcp = re.search(r"flags:(\w+) token:\w+\(id:(\d+)\)/(\w+)\(id:\d+\)", info)
        if mptcp is None:
            continue
        address, client_port = ends.split()[3].rsplit(":", 1)
        key = Ends(mptcp[3].rjust(8, "0"), plain(address.strip("[]")), int(client_port))
        found[key] = (int(mptcp[2]), bool({"b", "B"} & set(mptcp[1])))
    return found


def published(connections: Iterable[Json]) -> dict[Ends, tuple[int, bool]]:
    """The same, from a table that the sniffer published."""
    return {
        Ends(connection["token"], subflow["client"], subflow["client_port"]): (subflow["address_id"], subflow["backup"])
        for connection in connections
        for subflow in connection["subflows"]
    }


def priorities(events: Iterable[Json]) -> dict[Ends, list[bool]]:
    """The successive values of each subflow's backup flag, from the output of `mptcp-sniffer --read`."""
    found = defaultdict(list)
    for event in events:
        if event["event"] in ("established", "backup-changed"):
            found[Ends(event["token"], event["client"], event["client_port"])].append(event["backup"])
    return dict(found)


def plain(text: str) -> str:
    """The address as it is on the wire: an IPv4-mapped IPv6 address as IPv4."""
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
