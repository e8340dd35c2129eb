"""tc messages: qdiscs, filters and HTB classes.

They go through our own netlink code: docs/explanation/own-code.md has the figures. Options travel as raw bytes: a qdisc
that we replace must be restored exactly as it was, and pyroute2 decodes neither all kinds nor classic BPF.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, rtnl
from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.linux.kernel_error import KernelError, decoding_errors
from mptcp_throttle.linux.netlink_codec import attribute, attributes, text
from mptcp_throttle.linux.netlink_socket import NetlinkSocket, Request
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.interfaces import Interface
from mptcp_throttled.vocabulary.class_ids import MAJOR, format_classid, format_handle

_TCMSG: Final = Struct("=BxxxiIII")
# include/uapi/linux/rtnetlink.h
_TCA_KIND: Final = 1
_TCA_OPTIONS: Final = 2
_TCA_STAB: Final = 8
_TCA_STATS2: Final = 7
_NEW: Final[int] = NLM_F_CREATE | NLM_F_EXCL
_REPLACE: Final[int] = NLM_F_CREATE | NLM_F_REPLACE
_STATISTICS: Final = frozenset({3, 4, _TCA_STATS2})  # TCA_STATS, TCA_XSTATS, TCA_STATS2: they come last
_TCA_STATS_BASIC: Final = 1  # include/uapi/linux/gen_stats.h: struct gnet_stats_basic
_TCA_STATS_QUEUE: Final = 3  # struct gnet_stats_queue
_OF_CLASS: Final = frozenset({_TCA_STATS_BASIC, _TCA_STATS_QUEUE})
_BYTES: Final = Struct("=Q")
_BACKLOG: Final = Struct("=4xI")


class TcMessage(NamedTuple):
    """A qdisc, class or filter of a dump, without its statistics; what `info` (tcm_info) means depends on the kind."""

    interface: int
    handle: int
    parent: int
    info: int
    kind: str
    attributes: dict[int, bytes]


class Qdisc(NamedTuple):
    """A qdisc; its handle is 0 if the kernel attached it by default, `options` is the payload of TCA_OPTIONS.

    `has_size_table`: it has a size table (tc-stab(8)), which is not part of the options.
    """

    kind: str
    handle: int
    parent: int
    options: bytes | None
    has_size_table: bool = False


class Filter(NamedTuple):
    """A tc filter: `info` is priority << 16 | protocol in network byte order."""

    kind: str
    handle: int
    info: int
    options: bytes | None


class TrafficControl:
    """tc of this network namespace. All methods raise KernelError."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(socket.NETLINK_ROUTE)

    def close(self) -> None:
        """Close the netlink socket."""
        self._socket.close()

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests: notifications of our own changes carry them."""
        return frozenset({self._socket.port})

    def qdiscs(self) -> dict[int, list[Qdisc]]:
        """The qdiscs of all interfaces, by interface index."""
        by_index: dict[int, list[Qdisc]] = {}
        for message in self._dump("tc qdisc show", rtnl.RTM_GETQDISC):
            options, has_size_table = message.attributes.get(_TCA_OPTIONS), _TCA_STAB in message.attributes
            qdisc = Qdisc(message.kind, message.handle, message.parent, options, has_size_table)
            by_index.setdefault(message.interface, []).append(qdisc)
        return by_index

    def add_qdisc(self, interface: Interface, qdisc: Qdisc, *, replace: bool = False) -> None:
        """Add a qdisc, or `replace` the one at its parent."""
        self._carry_out(add_qdisc(interface, qdisc, replace=replace))

    def delete_qdisc(self, interface: Interface, qdisc: Qdisc) -> None:
        """Delete a qdisc; the kernel attaches its default if it is the root, and refuses if another one is there."""
        what = f"tc qdisc del dev {interface.name} {qdisc.kind}"
        self._carry_out(tc_request(what, rtnl.RTM_DELQDISC, 0, interface.index, qdisc.handle, qdisc.parent))

    def filters(self, interface: Interface, parent: int) -> list[Filter]:
        """The filters of a qdisc."""
        what = f"tc filter show dev {interface.name} parent {format_handle(parent)}"
        return [
            Filter(filter_.kind, filter_.handle, filter_.info, filter_.attributes.get(_TCA_OPTIONS))
            for filter_ in self._dump(what, rtnl.RTM_GETTFILTER, interface.index, parent)
            # Every filter is dumped a second time, with handle 0, for its priority as a whole.
            if filter_.handle
        ]

    def add_filter(self, interface: Interface, parent: int, filter_: Filter) -> None:
        """Add a filter to a qdisc."""
        self._carry_out(_filter_request("add", rtnl.RTM_NEWTFILTER, _NEW, interface, parent, filter_))

    def delete_filter(self, interface: Interface, parent: int, filter_: Filter) -> None:
        """Delete one filter of a qdisc."""
        named = filter_._replace(options=None)
        self._carry_out(_filter_request("del", rtnl.RTM_DELTFILTER, 0, interface, parent, named))

    def delete_filters(self, interface: Interface, parent: int) -> None:
        """Delete all filters of a qdisc."""
        what = f"tc filter del dev {interface.name} parent {format_handle(parent)}"
        self._carry_out(tc_request(what, rtnl.RTM_DELTFILTER, 0, interface.index, 0, parent))

    def htb_classes(self, interface: Interface) -> dict[int, bytes]:
        """The payload of TCA_OPTIONS of each HTB class of an interface, by class id."""
        messages = self._dump(f"tc class show dev {interface.name}", rtnl.RTM_GETTCLASS, interface.index)
        htb = (message for message in messages if message.kind == "htb")
        return {message.handle: message.attributes.get(_TCA_OPTIONS, b"") for message in htb}

    def carry_out(self, requests: Sequence[Request]) -> list[KernelError | None]:
        """Make the changes in order, also if some are refused; for each, the kernel's refusal."""
        return self._socket.carry_out(requests)

    def knows_qdisc(self, interface: Interface, kind: str) -> bool:
        """Whether the kernel has this kind of qdisc; nothing is changed.

        For a request without options qdisc_create (net/sched/sch_api.c) loads the module of the kind, then HTB refuses.
        """
        body = _kind_and_options(kind, None)
        what = f"look for qdisc {kind}"
        request = tc_request(what, rtnl.RTM_NEWQDISC, _REPLACE, interface.index, 0, TC_H_ROOT, body=body)
        (refusal,) = self._socket.carry_out([request])
        return refusal is None or refusal.number != errno.ENOENT

    def _carry_out(self, request: Request) -> None:
        (refusal,) = self._socket.carry_out([request])
        if refusal is not None:
            raise refusal

    def _dump(self, what: str, type_: int, index: int = 0, parent: int = 0) -> list[TcMessage]:
        """All qdiscs, classes or filters: of the interface `index` or of all, of `parent`."""
        payloads = self._socket.dump(tc_request(what, type_, 0, index, 0, parent))
        with decoding_errors(what):
            return [parse_message(payload) for payload in payloads]


def read_class_bytes(interface: Interface) -> dict[int, int]:
    """The bytes that each class of an interface has sent, or has in its queue, by class id. Raises KernelError."""
    what = f"tc -s class show dev {interface.name}"
    request = tc_request(what, rtnl.RTM_GETTCLASS, 0, interface.index, 0, 0)
    with NetlinkSocket(socket.NETLINK_ROUTE) as netlink, decoding_errors(what):
        return dict(map(_class_bytes, netlink.dump(request)))


def _class_bytes(payload: bytes) -> tuple[int, int]:
    _, _, handle, _, _ = _TCMSG.unpack_from(payload)
    statistics = attributes(payload, _TCMSG.size, only={_TCA_STATS2}).get(_TCA_STATS2, b"")
    parts = attributes(statistics, only=_OF_CLASS)
    (sent,) = _BYTES.unpack_from(parts.get(_TCA_STATS_BASIC, bytes(_BYTES.size)))
    (queued,) = _BACKLOG.unpack_from(parts.get(_TCA_STATS_QUEUE, bytes(_BACKLOG.size)))
    return handle, sent + queued


def add_class(interface: Interface, classid: int, options: bytes, rate: Rate, *, change: bool = False) -> Request:
    """Add or `change` an HTB class directly below the root."""
    verb = "change" if change else "add"
    what = f"tc class {verb} dev {interface.name} classid {format_classid(classid)} rate {rate}"
    flags = 0 if change else _NEW
    body = _kind_and_options("htb", options)
    return tc_request(what, rtnl.RTM_NEWTCLASS, flags, interface.index, classid, classid & MAJOR, body=body)


def delete_class(interface: Interface, classid: int) -> Request:
    """Delete a class, its leaf qdisc and the packets queued there."""
    what = f"tc class del dev {interface.name} classid {format_classid(classid)}"
    return tc_request(what, rtnl.RTM_DELTCLASS, 0, interface.index, classid, 0)


def add_qdisc(interface: Interface, qdisc: Qdisc, *, replace: bool = False) -> Request:
    """Add a qdisc, or `replace` the one at its parent, together with other changes."""
    what = f"tc qdisc {'replace' if replace else 'add'} dev {interface.name} {qdisc.kind}"
    flags = _REPLACE if replace else _NEW
    body = _kind_and_options(qdisc.kind, qdisc.options)
    return tc_request(what, rtnl.RTM_NEWQDISC, flags, interface.index, qdisc.handle, qdisc.parent, body=body)


def _filter_request(verb: str, type_: int, flags: int, interface: Interface, parent: int, filter_: Filter) -> Request:
    what = f"tc filter {verb} dev {interface.name} {filter_.kind}"
    body = _kind_and_options(filter_.kind, filter_.options)
    return tc_request(what, type_, flags, interface.index, filter_.handle, parent, filter_.info, body)


def _kind_and_options(kind: str, options: bytes | None) -> bytes:
    return attribute(_TCA_KIND, kind.encode() + b"\0") + (b"" if options is None else attribute(_TCA_OPTIONS, options))


def tc_request(
    what: str, type_: int, flags: int, interface: int, handle: int, parent: int, info: int = 0, body: bytes = b""
) -> Request:
    """A request about a qdisc, class or filter; `body` are its netlink attributes."""
    return Request(what, type_, flags, _TCMSG.pack(0, interface, handle, parent, info) + body)


def parse_message(payload: bytes) -> TcMessage:
    """A message of a dump: struct tcmsg, and attributes. Raises struct.error, or KeyError if it lacks its kind."""
    _, index, handle, parent, info = _TCMSG.unpack_from(payload)
    present = attributes(payload, _TCMSG.size, _STATISTICS)
    return TcMessage(index, handle, parent, info, text(present[_TCA_KIND]), present)
