"""The proxy's MPTCP subflows according to `ip mptcp monitor`, and the sniffer's events in the same form."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.oracle import Ends, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_throttle.rpc import Json


class Opening(NamedTuple):
    """The n-th subflow of a connection between these ends, from 1: a client may take a free port again."""

    ends: Ends
    number: int


@dataclass
class Subflow:
    """A subflow according to the kernel's events; `priorities` are the successive values of its backup flag."""

    address_id: int
    priorities: list[bool]
    closed: bool = False


@dataclass
class Kernel:
    """The state after all events of a log of `ip mptcp monitor`."""

    subflows: dict[Opening, Subflow] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


_EVENT: Final = re.compile(r"\[ *(\w+)\] (.*)")


def read_events(lines: Iterable[str]) -> Kernel:
    """The state after these lines of `ip mptcp monitor`."""
    kernel = Kernel()
    openings = Counter[Ends]()
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
            openings[ends] += 1
            kernel.subflows[Opening(ends, openings[ends])] = Subflow(int(attributes["remid"]), [backup])
        elif openings[ends] and kind == "SF_PRIO":
            kernel.subflows[Opening(ends, openings[ends])].priorities.append(backup)
        elif openings[ends]:
            kernel.subflows[Opening(ends, openings[ends])].closed = True
    return kernel


def openings_of(history: Json) -> dict[Opening, Json]:
    """The established subflows in the output of `lab/read-capture`."""
    openings = Counter[Ends]()
    found = {}
    for connection in history["connections"]:
        for subflow in connection["subflows"]:
            if subflow["established"]:
                ends = Ends(connection["token"], subflow["client"], subflow["client_port"])
                openings[ends] += 1
                found[Opening(ends, openings[ends])] = subflow
    return found


def priorities(events: Iterable[Json]) -> dict[Opening, list[bool]]:
    """The successive values of each subflow's backup flag, from the output of `lab/read-capture`."""
    openings = Counter[Ends]()
    found = defaultdict(list)
    for event in events:
        if event["event"] in ("established", "backup-changed"):
            ends = Ends(event["token"], event["client"], event["client_port"])
            openings[ends] += event["event"] == "established"
            found[Opening(ends, openings[ends])].append(event["backup"])
    return dict(found)
