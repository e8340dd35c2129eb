"""The proxy's MPTCP subflows according to `ip mptcp monitor`, and the sniffer's events in the same form."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mptcp_lab.oracle import Ends, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_throttle.rpc import Json


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


def priorities(events: Iterable[Json]) -> dict[Ends, list[bool]]:
    """The successive values of each subflow's backup flag, from the output of `mptcp-sniffer --read`."""
    found = defaultdict(list)
    for event in events:
        if event["event"] in ("established", "backup-changed"):
            found[Ends(event["token"], event["client"], event["client_port"])].append(event["backup"])
    return dict(found)
