"""The classifier `ovs`: an OpenFlow rule `set_queue` for each throttled subflow, and then what the bridge does anyway.

Only for a bridge whose single other rule is the action NORMAL of a learning switch: what other rules would have done
with a packet, a rule of ours that comes first cannot know.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import BackEnd, Endpoint, FourTuple
from mptcp_throttled.kernel.openvswitch.switch import Bridge, OpenVswitch
from mptcp_throttled.vocabulary.kernel_state import IP_VERSIONS, AssignmentState

COOKIE: Final = 0x4D50_7468
"""Of our rules ("MPth"): unlikely to be chosen by another program."""

PRIORITY: Final = 40_000
"""Above that of the rule NORMAL, 0, and of what ovs-ofctl(8) sets by default, 32768."""

# Rules that another program adds by OpenFlow 1.0 have the flag `reset_counts`.
_NORMAL: Final = re.compile(r"(?:cookie=\S+, )?(?:reset_counts )?priority=0 actions=NORMAL")
_OURS: Final = f"cookie={COOKIE:#x}"
_OF_VERSION: Final = {4: "tcp", 6: "tcp6"}
_VERSION_OF: Final = {word: version for version, word in _OF_VERSION.items()}
_WITH_COOKIE: Final = re.compile(rf"{_OURS}, (?:\w+=\S+, )*(?:reset_counts )?(?:priority=\d+,)?(tcp6?)\b")
_RULE: Final = re.compile(
    rf"{_OURS}, priority={PRIORITY},tcp6?,(?:nw|ipv6)_src=([^,]+),(?:nw|ipv6)_dst=([^,]+),tp_src=(\d+),tp_dst=(\d+)"
    r" actions=set_queue:(\d+),NORMAL"
)


def queue_of(minor: int) -> int:
    """The queue whose class has this minor: Open vSwitch makes class 1:N+1 of queue N (lib/netdev-linux.c)."""
    return minor - 1


def minor_of_queue(queue: int) -> int:
    """The minor of a queue's class."""
    return queue + 1


def add_line(ends: FourTuple, minor: int) -> str:
    """The line of `ovs-ofctl add-flows` that adds the rule of a subflow, or changes it in place."""
    return f"add {_OURS},{_match(ends)},actions=set_queue:{queue_of(minor)},NORMAL"


def delete_line(ends: FourTuple) -> str:
    """The line that deletes the rule of a subflow."""
    return f"delete_strict {_match(ends)}"


def delete_all_line(ip_version: int) -> str:
    """The line that deletes all our rules of one IP version."""
    return f"delete {_OURS}/-1,{_OF_VERSION[ip_version]}"


def leaves_no_room(switch: OpenVswitch, bridge: str) -> bool:
    """Whether a bridge has rules that are neither ours nor NORMAL, or lacks NORMAL. Raises KernelError."""
    foreign = [rule for rule in switch.rules(bridge) if _version_of(rule) is None]
    return len(foreign) != 1 or _NORMAL.fullmatch(foreign[0]) is None


def _version_of(rule: str) -> int | None:
    """The IP version of a rule with our cookie; None if it is another program's."""
    match = _WITH_COOKIE.match(rule)
    return None if match is None else _VERSION_OF[match[1]]


class OpenFlowClassifier:
    """The classifier `ovs`, on the bridge that has the port `interface`."""

    kind = BackEnd.OVS
    needs_filter = False

    def __init__(self, interface: str, switch: OpenVswitch) -> None:
        self._interface = interface
        self._switch = switch
        self._bridge: str | None = None
        self._made: set[int] = set()

    def close(self) -> None:
        pass  # each call is a program of its own

    def require(self) -> None:
        self._switch.bridges()

    def read(self) -> dict[int, AssignmentState]:
        """Altered if a rule is not as we make it, or is on another bridge than ours."""
        bridges = self._find_bridge()
        assignments: dict[int, dict[FourTuple, int]] = {version: {} for version in self._made}
        altered: set[int] = set()
        for bridge in bridges:
            for rule in self._rules(bridge):
                version = _version_of(rule)
                if version is None:
                    continue
                assigned = assignments.setdefault(version, {})
                assignment = parse_rule(rule)
                if assignment is None or bridge.name != self._bridge:
                    altered.add(version)
                else:
                    assigned[assignment[0]] = assignment[1]
        return {version: AssignmentState(assigned, version in altered) for version, assigned in assignments.items()}

    def count(self) -> dict[int, int | None]:
        return {version: None if state.altered else len(state.assignments) for version, state in self.read().items()}

    def make(self, ip_version: int, assignments: Mapping[FourTuple, int]) -> None:
        """In one bundle."""
        self._remove_elsewhere(ip_version)
        lines = [delete_all_line(ip_version), *(add_line(*assignment) for assignment in assignments.items())]
        self._switch.change_rules(self._own_bridge(), lines)
        self._made.add(ip_version)

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """In one bundle; an assignment in both is changed in place."""
        removed = [delete_line(ends) for ends in remove if ends not in add]
        self._switch.change_rules(
            self._own_bridge(), [*removed, *(add_line(*assignment) for assignment in add.items())]
        )
        self._made.add(ip_version)

    def remove(self, ip_version: int) -> None:
        self._remove_elsewhere(ip_version)
        if self._bridge is not None:
            self._switch.change_rules(self._bridge, [delete_all_line(ip_version)])
        self._made.discard(ip_version)

    def _remove_elsewhere(self, ip_version: int) -> None:
        for bridge in self._switch.bridges():
            if bridge.name != self._bridge and any(_version_of(rule) == ip_version for rule in self._rules(bridge)):
                self._switch.change_rules(bridge.name, [delete_all_line(ip_version)])

    def _rules(self, bridge: Bridge) -> list[str]:
        """The rules with our cookie. A bridge that is not ours may not answer, or in another version of OpenFlow."""
        try:
            return self._switch.rules(bridge.name, f"{_OURS}/-1")
        except KernelError:
            if bridge.name == self._bridge:
                raise
            return []

    def _find_bridge(self) -> list[Bridge]:
        """Look up our bridge among all, which are returned."""
        bridges, port = self._switch.bridges(), self._switch.port(self._interface)
        self._bridge = next((b.name for b in bridges if port is not None and port.record in b.ports), None)
        return bridges

    def _own_bridge(self) -> str:
        if self._bridge is None:
            self._find_bridge()
        if self._bridge is None:
            raise KernelError(f"{self._interface} is not a port of an Open vSwitch bridge", errno.ENODEV)
        return self._bridge


def parse_rule(rule: str) -> tuple[FourTuple, int] | None:
    """The subflow and the minor of a rule as Open vSwitch shows it; None if it is not one that we make."""
    match = _RULE.fullmatch(rule)
    if match is None:
        return None
    source, destination, source_port, destination_port, queue = match.groups()
    try:
        ends = FourTuple(
            Endpoint(ip_address(destination), int(destination_port)), Endpoint(ip_address(source), int(source_port))
        )
    except ValueError:  # a subnet
        return None
    return ends, minor_of_queue(int(queue))


def _match(ends: FourTuple) -> str:
    version = ends.client.address.version
    ip = "nw" if version == IP_VERSIONS[0] else "ipv6"
    return (
        f"priority={PRIORITY},{_OF_VERSION[version]},{ip}_src={ends.proxy.address},{ip}_dst={ends.client.address},"
        f"tp_src={ends.proxy.port},tp_dst={ends.client.port}"
    )
