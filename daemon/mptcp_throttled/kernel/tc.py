"""The few tc messages we exchange with the kernel: those of which there are few on top of pyroute2, others by hand.

All travel with their options as raw bytes: a qdisc we replace must come back exactly as it was, and pyroute2 decodes
neither all kinds nor classic BPF.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from socket import if_nameindex
from typing import Final, NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink import (
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    nlmsg,
)
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import (
    RTM_DELQDISC,
    RTM_DELTCLASS,
    RTM_DELTFILTER,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_GETTFILTER,
    RTM_NEWQDISC,
    RTM_NEWTCLASS,
    RTM_NEWTFILTER,
    TC_H_ROOT,
)
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from mptcp_throttle.linux.fault_point import fault_point, os_errors
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink import attribute
from mptcp_throttle.linux.netlink_requests import Request
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.tc_requests import TcRequests, tc_request

_DO: Final = NLM_F_REQUEST | NLM_F_ACK
# include/uapi/linux/rtnetlink.h
_TCA_KIND: Final = 1
_TCA_OPTIONS: Final = 2
_TCA_STAB: Final = 8


class _RawTcMessage(nlmsg):  # type: ignore[misc]
    prefix = "TCA_"
    fields = tcmsg.fields
    nla_map = ((1, "TCA_KIND", "asciiz"), (2, "TCA_OPTIONS", "cdata"))


class Qdisc(NamedTuple):
    """A qdisc; its handle is 0 if the kernel put it there by default, its options are as netlink has them.

    `has_size_table` (tc-stab(8)) is not part of the options.
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


class HtbClass(NamedTuple):
    """An HTB class, with its options as netlink has them."""

    classid: int
    options: bytes


@contextmanager
def netlink_call(what: str) -> Iterator[None]:
    """Turn what netlink refuses into KernelError, which says `what` was tried."""
    try:
        with os_errors(what):
            fault_point(what)
            yield
    except NetlinkError as error:
        detail = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], str) else ""
        raise KernelError(what, error.code, detail) from error


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface: the kernel knows it by its index for as long as it exists, people by its present name."""

    index: int
    name: str


class TrafficControl:
    """tc of this host. All methods raise KernelError."""

    def __init__(self) -> None:
        self._ip = IPRoute(ext_ack=True)
        # IPRoute accepts nlm_generator but only its base class stores it (pyroute2 0.9.7); nlm_request reads it.
        self._ip.status["nlm_generator"] = True
        self._requests = TcRequests()

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests, which notifications of their effects carry."""
        return frozenset({int(self._ip.status["epid"]), self._requests.port})

    def interfaces(self) -> list[Interface]:
        """All interfaces."""
        with netlink_call("ip link show"):
            return [Interface(index, name) for index, name in if_nameindex()]

    def qdiscs(self) -> dict[int, list[Qdisc]]:
        """The qdiscs of all interfaces, by interface index."""
        found: dict[int, list[Qdisc]] = {}
        for message in self._requests.show("tc qdisc show", RTM_GETQDISC):
            kind, options = message.attributes[_TCA_KIND], message.attributes.get(_TCA_OPTIONS)
            qdisc = Qdisc(_text(kind), message.handle, message.parent, options, _TCA_STAB in message.attributes)
            found.setdefault(message.interface, []).append(qdisc)
        return found

    def add_qdisc(self, interface: Interface, qdisc: Qdisc, *, replace: bool = False) -> None:
        """Add a qdisc, or `replace` the one at its parent."""
        flags = _DO | NLM_F_CREATE | (NLM_F_REPLACE if replace else NLM_F_EXCL)
        with netlink_call(f"tc qdisc {'replace' if replace else 'add'} dev {interface.name} {qdisc.kind}"):
            list(
                self._request(
                    RTM_NEWQDISC, flags, interface.index, qdisc.kind, qdisc.options, qdisc.handle, qdisc.parent
                )
            )

    def delete_root(self, interface: Interface) -> None:
        """Delete the root qdisc; the kernel puts its default there."""
        with netlink_call(f"tc qdisc del dev {interface.name} root"):
            list(self._request(RTM_DELQDISC, _DO, interface.index, parent=TC_H_ROOT))

    def filters(self, interface: Interface, parent: int) -> list[Filter]:
        """The filters of a qdisc."""
        what = f"tc filter show dev {interface.name} parent {format_handle(parent)}"
        return [
            Filter(_text(found.attributes[_TCA_KIND]), found.handle, found.info, found.attributes.get(_TCA_OPTIONS))
            for found in self._requests.show(what, RTM_GETTFILTER, interface.index, parent)
            # Every filter is dumped a second time, with handle 0, for its priority as a whole.
            if found.handle
        ]

    def add_filter(self, interface: Interface, parent: int, filter_: Filter) -> None:
        """Add a filter to a qdisc."""
        with netlink_call(f"tc filter add dev {interface.name} {filter_.kind}"):
            list(
                self._request(
                    RTM_NEWTFILTER,
                    _DO | NLM_F_CREATE | NLM_F_EXCL,
                    interface.index,
                    filter_.kind,
                    filter_.options,
                    filter_.handle,
                    parent,
                    filter_.info,
                )
            )

    def delete_filters(self, interface: Interface, parent: int) -> None:
        """Delete all filters of a qdisc."""
        with netlink_call(f"tc filter del dev {interface.name} parent {format_handle(parent)}"):
            list(self._request(RTM_DELTFILTER, _DO, interface.index, parent=parent))

    def htb_classes(self, interface: Interface) -> list[HtbClass]:
        """The HTB classes of an interface."""
        return [
            HtbClass(message.handle, message.attributes.get(_TCA_OPTIONS, b""))
            for message in self._requests.show(f"tc class show dev {interface.name}", RTM_GETTCLASS, interface.index)
            if _text(message.attributes[_TCA_KIND]) == "htb"
        ]

    def carry_out(self, requests: Sequence[Request]) -> list[KernelError | None]:
        """Make the changes in order, whatever comes of others; for each, why it was refused."""
        return self._requests.carry_out(requests)

    def knows_qdisc(self, interface: Interface, kind: str) -> bool:
        """Whether the kernel has this qdisc, without changing anything.

        A request without options makes qdisc_create (net/sched/sch_api.c) load the kind, and HTB refuse it.
        """
        flags = _DO | NLM_F_CREATE | NLM_F_REPLACE
        with netlink_call(f"look for qdisc {kind}"):
            try:
                list(self._request(RTM_NEWQDISC, flags, interface.index, kind, None, 0, TC_H_ROOT))
            except NetlinkError as error:
                return int(error.code) != errno.ENOENT
        return True

    def _request(
        self,
        message_type: int,
        flags: int,
        index: int = 0,
        kind: str | None = None,
        options: bytes | None = None,
        handle: int = 0,
        parent: int = 0,
        info: int = 0,
    ) -> Iterator[nlmsg]:
        message = _RawTcMessage()
        message.update({"family": 0, "index": index, "handle": handle, "parent": parent, "info": info})
        attributes: list[tuple[str, object]] = [] if kind is None else [("TCA_KIND", kind)]
        if options is not None:
            attributes.append(("TCA_OPTIONS", options))
        message["attrs"] = attributes
        yield from self._ip.nlm_request(message, message_type, flags)


def add_class(interface: Interface, classid: int, options: bytes, rate: Rate, *, change: bool = False) -> Request:
    """Add or `change` an HTB class directly below the root."""
    what = (
        f"tc class {'change' if change else 'add'} dev {interface.name} classid {format_classid(classid)} rate {rate}"
    )
    flags = 0 if change else NLM_F_CREATE | NLM_F_EXCL
    htb = attribute(_TCA_KIND, b"htb\0") + attribute(_TCA_OPTIONS, options)
    return tc_request(what, RTM_NEWTCLASS, flags, interface.index, classid, classid & 0xFFFF_0000, htb)


def delete_class(interface: Interface, classid: int) -> Request:
    """Delete a class and its leaf qdisc with all that is queued in it."""
    what = f"tc class del dev {interface.name} classid {format_classid(classid)}"
    return tc_request(what, RTM_DELTCLASS, 0, interface.index, classid, 0)


def add_leaf(interface: Interface, qdisc: Qdisc, *, replace: bool = False) -> Request:
    """Add the queue of a class, or `replace` it."""
    what = f"tc qdisc {'replace' if replace else 'add'} dev {interface.name} {qdisc.kind}"
    flags = NLM_F_CREATE | (NLM_F_REPLACE if replace else NLM_F_EXCL)
    body = attribute(_TCA_KIND, qdisc.kind.encode() + b"\0") + attribute(_TCA_OPTIONS, qdisc.options or b"")
    return tc_request(what, RTM_NEWQDISC, flags, interface.index, qdisc.handle, qdisc.parent, body)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()


def format_handle(handle: int) -> str:
    """`4d50:` as tc writes it."""
    return f"{handle >> 16:x}:"


def format_classid(classid: int) -> str:
    """`4d50:2` as tc writes it."""
    return f"{classid >> 16:x}:{classid & 0xFFFF:x}"
