"""Classes as queues: a QoS of type linux-htb at the port towards the clients, one queue per class.

Open vSwitch keeps its database over a reboot: records of ours are known by their owner, and removed with our HTB.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import tc
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.kernel.interfaces import Interface, find_interface, find_interfaces
from mptcp_throttled.kernel.openvswitch.openflow import leaves_no_room, minor_of_queue, queue_of
from mptcp_throttled.kernel.openvswitch.switch import LIST_PORTS, OpenVswitch, Port, records
from mptcp_throttled.vocabulary.class_ids import MAJOR, format_handle
from mptcp_throttled.vocabulary.kernel_state import HtbState, QdiscState
from mptcp_throttled.vocabulary.operations import AddClass, ChangeClass, ClassOperation, DeleteClass

_T = TypeVar("_T")

_OWNER_KEY, _OWNER_NAME = "owner", "mptcp-throttle"
_OWNER: Final = f"external_ids:{_OWNER_KEY}={_OWNER_NAME}"
_DEFAULT_MINOR: Final = "default_minor"
_HANDLE: Final = 1 << 16
"""Of the HTB that Open vSwitch makes, `1:` (lib/netdev-linux.c). Class 1:N+1 is queue N, 1:1 that of other packets."""

_MIN_RATE: Final = 12_000
"""In bit/s: Open vSwitch makes no slower queue (lib/netdev-linux.c)."""

_MAX_RATE: Final = 34_000_000_000
"""Of the port as a whole, in bit/s: what fits into 32-bit bytes/s. Without a rate Open vSwitch takes 100 Mbit/s for a
link whose speed it does not know."""

# ovs-vsctl takes more than a second for a thousand.
_QUEUES_AT_ONCE: Final = 250


@dataclass(frozen=True, slots=True)
class _Qos:
    """A QoS: its queues by minor."""

    record: str
    is_ours: bool
    default_minor: int
    queues: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class _Records:
    """What the database has: QoS of ours, the rates (bit/s) of our queues that no other program uses, and all ports.

    A rate is None if another program has changed the queue.
    """

    qos: Mapping[str, _Qos]
    rates: Mapping[str, Rate | None]
    ports: Mapping[str, Port]

    def with_our_qos(self) -> list[Port]:
        return [port for port in self.ports.values() if port.qos in self.qos]


class PortQueues:
    """HTB of the port `interface`, by its queues. For one thread only; all methods raise KernelError.

    A port whose QoS or root qdisc is another program's is not touched.
    """

    def __init__(self, interface: str, switch: OpenVswitch) -> None:
        self._interface = interface
        self._switch = switch
        self._qos: str | None = None
        self._queues: dict[int, str] = {}
        self._interface_with_htb: Interface | None = None  # by index: it may be renamed

    @property
    def ports(self) -> frozenset[int]:
        """None: ovs-vswitchd makes the changes, and their notifications are looked at."""
        return frozenset()

    def require_htb(self) -> None:
        self._switch.bridges()

    def forget_stale(self) -> None:
        """Nothing is saved: what is replaced is what a port has by default."""

    def read(self) -> QdiscState:
        database = self._records()
        ours = [port.name for port in database.with_our_qos()]
        elsewhere = tuple(name for name in ours if name != self._interface)
        if self._interface in ours:
            return QdiscState(self._read_htb(database), None, False, elsewhere)
        self._qos, self._queues = None, {}
        ports = {*elsewhere}
        is_left = bool(_freed(database, ports) or _destroyed(database, ports)) or self._has_stale_htb(database)
        return QdiscState(None, self._obstacle(database), is_left, elsewhere)

    def install(self, default_minor: int) -> None:
        """Give the port a QoS without queues: packets that no rule leads to one are not limited."""
        database = self._records()
        obstacle = self._obstacle(database)
        if obstacle is not None:
            raise KernelError(obstacle, errno.EEXIST)
        self._clear(database, set())
        (self._qos,) = self._switch.change(*make_qos(self._interface, default_minor))
        self._queues = {}
        self._interface_with_htb = self._own_interface()

    def restore(self, name: str | None = None) -> None:
        """Take our QoS from a port (default: the proxy's) and delete its records: its root qdisc is the default one."""
        database = self._records()
        self._clear(database, {port.name for port in database.with_our_qos()} - {name or self._interface})
        if name is None:
            self._qos, self._queues = None, {}
            # ovs-vswitchd does not delete it if it has stopped, or if the interface was renamed.
            if self._has_stale_htb(database):
                self._delete_our_htb()

    def fail_open(self) -> None:
        """Delete HTB in the kernel, then take our QoS from every port, and delete its records.

        In this order, since ovs-vswitchd may not answer, and without waiting for it.
        """
        try:
            database = self._records()
            has_foreign_qos = self._has_foreign_qos(database)
        except KernelError:
            self._delete_our_htb()
            raise
        if not has_foreign_qos:
            self._delete_our_htb()
        self._clear(database, set(), wait=False)
        self._qos, self._queues = None, {}

    def change_classes(self, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        refusals: list[KernelError | None] = []
        for portion in _portions(operations):
            try:
                self._change(portion)
                refusals += [None] * len(portion)
            except KernelError as error:
                refusals += [error] * len(portion)
        return refusals

    def class_bytes(self) -> dict[int, int]:
        by_class = tc.read_class_bytes(find_interface(self._interface))
        return {id_ - _HANDLE: sent for id_, sent in by_class.items() if id_ & MAJOR == _HANDLE}

    def _change(self, operations: Sequence[ClassOperation]) -> None:
        commands: list[tuple[str, ...]] = []
        added: list[int] = []
        if self._qos is None:
            raise KernelError(f"{self._interface}: QoS", errno.ENOENT)
        for operation in operations:
            record = self._queues.get(operation.minor)
            match operation:
                case DeleteClass(minor):
                    commands += delete_queue(self._qos, minor, record)
                case ChangeClass(minor, rate, replace_leaf=False) if record is not None:
                    commands.append(set_queue(record, rate))
                case AddClass(minor, rate) | ChangeClass(minor, rate) if record is not None:
                    # ovs-vswitchd looks at the kernel's class only if a record changes.
                    commands.append((*set_queue(record, rate), f"external_ids:repaired_at={time.time_ns()}"))
                case AddClass(minor, rate) | ChangeClass(minor, rate):
                    added.append(minor)
                    commands += add_queue(self._qos, minor, rate)
        made = self._switch.change(*commands)
        gone = {operation.minor for operation in operations if isinstance(operation, DeleteClass)}
        self._queues = {minor: record for minor, record in self._queues.items() if minor not in gone}
        self._queues.update(zip(added, made, strict=True))

    def _clear(self, database: _Records, kept: set[str], *, wait: bool = True) -> None:
        """Leave records of ours only to the ports that are `kept`."""
        # First the ports alone: whatever stands in the way of the rest, they are free.
        for commands in (_freed(database, kept), _destroyed(database, kept)):
            for portion in _portions(commands):
                self._switch.change(*portion, wait=wait)

    def _has_foreign_qos(self, database: _Records) -> bool:
        port = database.ports.get(self._interface)
        return port is not None and port.qos is not None and port.qos not in database.qos

    def _has_stale_htb(self, database: _Records) -> bool:
        """Whether the kernel still has the HTB of our QoS, although the port has neither that nor another one."""
        if self._interface_with_htb is None or self._has_foreign_qos(database):
            return False
        with closing(tc.TrafficControl()) as control:
            is_there = _htb(control, self._interface_with_htb) is not None
        if not is_there:
            self._interface_with_htb = None
        return is_there

    def _delete_our_htb(self) -> None:
        interface = self._interface_with_htb
        if interface is not None:
            with closing(tc.TrafficControl()) as control:
                root = _htb(control, interface)
                if root is not None:
                    control.delete_qdisc(interface, root)  # by its handle: another one may be there by now
            self._interface_with_htb = None

    def _read_htb(self, database: _Records) -> HtbState:
        port = database.ports[self._interface]
        qos = database.qos[port.qos or ""]
        self._qos = qos.record
        # Another program may have put queues into our QoS: they are not changed, but replaced.
        self._queues = {minor: record for minor, record in qos.queues.items() if record in database.rates}
        interface = self._own_interface()
        in_kernel = self._classes_in_kernel(interface)
        if in_kernel is not None:
            self._interface_with_htb = interface
        # Without HTB in the kernel, or with rules that ours would bypass, all is made again, or refused.
        works = in_kernel is not None and self._why_no_rules(port) is None
        rates = {minor: database.rates.get(record) for minor, record in qos.queues.items()}
        classes = {minor: _rate(rates.get(minor), rate) for minor, rate in (in_kernel or {}).items() if minor in rates}
        return HtbState(qos.default_minor, works, classes)

    def _classes_in_kernel(self, interface: Interface | None) -> dict[int, Rate | None] | None:
        """The rates of HTB's classes in the kernel; None without HTB."""
        if interface is None:
            return None
        with closing(tc.TrafficControl()) as control:
            if _htb(control, interface) is None:
                return None
            return {id_ - _HANDLE: htb.rate_of(options) for id_, options in control.htb_classes(interface).items()}

    def _obstacle(self, database: _Records) -> str | None:
        """Why the port cannot have our QoS."""
        port, interface = database.ports.get(self._interface), self._own_interface()
        if port is None or interface is None:
            return f"{self._interface} is not a port of an Open vSwitch bridge"
        if port.qos is not None and port.qos not in database.qos:
            return f"port {self._interface} has a QoS of its own"
        if port.qos is None and not self._has_stale_htb(database):
            with closing(tc.TrafficControl()) as control:
                own = next((root for root in _roots(control, interface) if root.handle), None)
            if own is not None:
                return f"{self._interface} has a root qdisc of its own, {own.kind} {format_handle(own.handle)}"
        return self._why_no_rules(port)

    def _why_no_rules(self, port: Port) -> str | None:
        """Why the rules of the port's bridge, or its datapath, leave no room for ours."""
        bridge = self._switch.bridge_with(port)
        if bridge is None:
            return f"{port.name} is not a port of an Open vSwitch bridge"
        if bridge.datapath != "system":
            return f"bridge {bridge.name} has the datapath {bridge.datapath}, which ignores queues"
        if leaves_no_room(self._switch, bridge.name):
            return f"bridge {bridge.name} has OpenFlow rules of its own, or lacks the rule NORMAL"
        return None

    def _own_interface(self) -> Interface | None:
        return next(iter(find_interfaces((self._interface,))), None)

    def _records(self) -> _Records:
        all_qos, queues, ports = self._switch.tables(
            ("--columns=_uuid,queues,external_ids", "list", "QoS"),
            ("--columns=_uuid,other_config", "find", "Queue", _OWNER),
            LIST_PORTS,
        )
        parsed = [_parse_qos(row) for row in all_qos]
        foreign = {queue for qos in parsed if not qos.is_ours for queue in qos.queues.values()}
        rates = {records(row["_uuid"])[0]: _parse_rate(row) for row in queues}
        return _Records(
            {qos.record: qos for qos in parsed if qos.is_ours},
            {record: rate for record, rate in rates.items() if record not in foreign},
            {port.name: port for port in map(Port.of, ports)},
        )


def _portions(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """As much as one transaction takes at a time."""
    for begin in range(0, len(items), _QUEUES_AT_ONCE):
        yield items[begin : begin + _QUEUES_AT_ONCE]


def make_qos(port: str, default_minor: int) -> list[tuple[str, ...]]:
    """The commands of ovs-vsctl that give a port without a QoS one without queues."""
    settings = (_OWNER, f"external_ids:{_DEFAULT_MINOR}={default_minor}", f"other_config:max-rate={_MAX_RATE}")
    return [("--id=@qos", "create", "QoS", "type=linux-htb", *settings), ("add", "Port", port, "qos", "@qos")]


def add_queue(qos: str, minor: int, rate: Rate) -> list[tuple[str, ...]]:
    """The commands that add a queue to a QoS, or put it in place of another one."""
    queue = queue_of(minor)
    return [
        (f"--id=@q{queue}", "create", "Queue", _OWNER, *_settings(rate)),
        ("set", "QoS", qos, f"queues:{queue}=@q{queue}"),
    ]


def set_queue(record: str, rate: Rate) -> tuple[str, ...]:
    """The command that changes the rate of a queue."""
    return ("--if-exists", "set", "Queue", record, *_settings(rate))


def delete_queue(qos: str, minor: int, record: str | None) -> list[tuple[str, ...]]:
    """The commands that take a queue from a QoS and delete its `record`; None keeps it, since it is not ours."""
    removed = ("remove", "QoS", qos, "queues", str(queue_of(minor)))
    return [removed] if record is None else [removed, _destroy("Queue", record)]


def _settings(rate: Rate) -> tuple[str, ...]:
    # Without a minimum, HTB would guarantee 12 kbit/s, and borrow the rest from the port.
    settings = {"min-rate": rate.bits_per_second, "max-rate": rate.bits_per_second, "burst": 8 * htb.burst_bytes(rate)}
    return tuple(f"other_config:{key}={value}" for key, value in settings.items())


def _destroy(table: str, record: str) -> tuple[str, ...]:
    return ("--if-exists", "destroy", table, record)


def _freed(database: _Records, kept: set[str]) -> list[tuple[str, ...]]:
    """The commands that take our QoS from all ports but those that are `kept`, and delete it."""
    ours = database.with_our_qos()
    # Not `clear`: another program may have given the port another QoS by now.
    removed = [("remove", "Port", port.name, "qos", port.qos or "") for port in ours if port.name not in kept]
    return [*removed, *(_destroy("QoS", record) for record in database.qos.keys() - _used(database, kept))]


def _destroyed(database: _Records, kept: set[str]) -> list[tuple[str, ...]]:
    """The commands that delete our queues, but for those of the ports that are `kept`."""
    used = {queue for qos in _used(database, kept) for queue in database.qos[qos].queues.values()}
    return [_destroy("Queue", record) for record in database.rates.keys() - used]


def _used(database: _Records, kept: set[str]) -> set[str]:
    return {port.qos for port in database.with_our_qos() if port.name in kept and port.qos is not None}


def _parse_qos(row: Mapping[str, Any]) -> _Qos:
    external_ids = dict(row["external_ids"][1])
    default = external_ids.get(_DEFAULT_MINOR, "0")
    queues = {minor_of_queue(number): record for number, (_, record) in row["queues"][1]}
    is_ours = external_ids.get(_OWNER_KEY) == _OWNER_NAME
    return _Qos(records(row["_uuid"])[0], is_ours, int(default) if default.isdecimal() else 0, queues)


def _parse_rate(row: Mapping[str, Any]) -> Rate | None:
    settings = dict(row["other_config"][1])
    bits, burst = (settings.get(key, "") for key in ("max-rate", "burst"))
    try:
        rate = Rate(int(bits)) if bits.isdecimal() else None
    except ValueError:
        return None
    if rate is None or not burst.isdecimal() or int(burst) == 8 * htb.burst_bytes(rate):
        return rate
    return replace(rate, burst=int(burst) // 8)


def _roots(control: tc.TrafficControl, interface: Interface) -> list[tc.Qdisc]:
    return [qdisc for qdisc in control.qdiscs().get(interface.index, ()) if qdisc.parent == TC_H_ROOT]


def _htb(control: tc.TrafficControl, interface: Interface) -> tc.Qdisc | None:
    return next((root for root in _roots(control, interface) if (root.kind, root.handle) == ("htb", _HANDLE)), None)


def _rate(wanted: Rate | None, actual: Rate | None) -> Rate | None:
    """The rate of a queue if the database and the kernel agree on it."""
    if wanted is None or actual is None or actual.bits_per_second != max(wanted.bits_per_second, _MIN_RATE):
        return None
    return wanted
