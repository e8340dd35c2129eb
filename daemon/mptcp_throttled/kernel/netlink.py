"""The few tc messages we exchange with the kernel, on top of pyroute2.

Qdiscs and filters travel with their options as raw bytes: a qdisc we replace must come back exactly as it was, and
pyroute2 decodes neither all kinds nor classic BPF. Classes use pyroute2's own HTB encoding.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink import (
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NLM_F_REQUEST,
    nlmsg,
)
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import (
    RTM_DELQDISC,
    RTM_GETQDISC,
    RTM_GETTFILTER,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    TC_H_ROOT,
)
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from mptcp_throttle.units import Rate
from mptcp_throttled.kernel_state import KernelError

_DO: Final = NLM_F_REQUEST | NLM_F_ACK


class _RawTcMessage(nlmsg):  # type: ignore[misc]
    prefix = "TCA_"
    fields = tcmsg.fields
    nla_map = ((1, "TCA_KIND", "asciiz"), (2, "TCA_OPTIONS", "cdata"), (8, "TCA_STAB", "cdata"))


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
    """An HTB class, with its rates in bytes/s."""

    classid: int
    rate: int
    ceil: int


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        detail = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], str) else ""
        raise KernelError(what, error.code, detail) from error
    except OSError as error:
        raise KernelError(what, error.errno or errno.EIO) from error


class TrafficControl:
    """tc of one interface, found by name at each use since interfaces come and go. All methods raise KernelError."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._ip = IPRoute(ext_ack=True)
        # IPRoute accepts nlm_generator but only its base class stores it (pyroute2 0.9.7); nlm_request reads it.
        self._ip.status["nlm_generator"] = True
        for message_type in (RTM_NEWQDISC, RTM_NEWTFILTER):
            self._ip.register_policy(message_type, _RawTcMessage)

    def index(self) -> int:
        """The interface index. Raises KernelError with ENODEV if there is no such interface."""
        with _translated(f"look up interface {self._interface}"):
            found = self._ip.link_lookup(ifname=self._interface)
        if not found:
            raise KernelError(f"interface {self._interface} does not exist", errno.ENODEV)
        return int(found[0])

    def qdiscs(self) -> list[Qdisc]:
        """All qdiscs of the interface."""
        index = self.index()
        with _translated(f"tc qdisc show dev {self._interface}"):
            # The kernel ignores the interface in a request for all qdiscs.
            return [
                Qdisc(
                    str(m.get_attr("TCA_KIND")),
                    m["handle"],
                    m["parent"],
                    m.get_attr("TCA_OPTIONS"),
                    m.get_attr("TCA_STAB") is not None,
                )
                for m in self._request(RTM_GETQDISC, NLM_F_REQUEST | NLM_F_DUMP, index)
                if m["index"] == index
            ]

    def add_qdisc(self, qdisc: Qdisc, *, replace: bool = False) -> None:
        """Add a qdisc, or `replace` the one at its parent."""
        flags = _DO | NLM_F_CREATE | (NLM_F_REPLACE if replace else NLM_F_EXCL)
        with _translated(f"tc qdisc add dev {self._interface} {qdisc.kind}"):
            list(
                self._request(RTM_NEWQDISC, flags, self.index(), qdisc.kind, qdisc.options, qdisc.handle, qdisc.parent)
            )

    def delete_root(self) -> None:
        """Delete the root qdisc; the kernel puts its default there."""
        with _translated(f"tc qdisc del dev {self._interface} root"):
            list(self._request(RTM_DELQDISC, _DO, self.index(), parent=TC_H_ROOT))

    def filters(self, parent: int) -> list[Filter]:
        """The filters of a qdisc."""
        with _translated(f"tc filter show dev {self._interface}"):
            return [
                Filter(str(m.get_attr("TCA_KIND")), m["handle"], m["info"], m.get_attr("TCA_OPTIONS"))
                for m in self._request(RTM_GETTFILTER, NLM_F_REQUEST | NLM_F_DUMP, self.index(), parent=parent)
                # Every filter is dumped a second time, with handle 0, for its priority as a whole.
                if m["handle"]
            ]

    def add_filter(self, parent: int, filter_: Filter) -> None:
        """Add a filter to a qdisc."""
        with _translated(f"tc filter add dev {self._interface} {filter_.kind}"):
            list(
                self._request(
                    RTM_NEWTFILTER,
                    _DO | NLM_F_CREATE | NLM_F_EXCL,
                    self.index(),
                    filter_.kind,
                    filter_.options,
                    filter_.handle,
                    parent,
                    filter_.info,
                )
            )

    def htb_classes(self) -> list[HtbClass]:
        """The HTB classes of the interface."""
        with _translated(f"tc class show dev {self._interface}"):
            classes = []
            for message in self._ip.get_classes(self.index()):
                options = message.get_attr("TCA_OPTIONS")
                parameters = None if options is None else options.get_attr("TCA_HTB_PARMS")
                if message.get_attr("TCA_KIND") == "htb" and parameters is not None:
                    classes.append(HtbClass(message["handle"], parameters["rate"], parameters["ceil"]))
            return classes

    def put_htb_class(self, classid: int, rate: Rate, burst_bytes: int, quantum_bytes: int, *, change: bool) -> None:
        """Add or `change` a class directly below the root, with its ceil at its rate: a cap is a cap."""
        command = "change-class" if change else "add-class"
        with _translated(f"tc {command} dev {self._interface} {format_classid(classid)} rate {rate}"):
            self._ip.tc(
                command,
                "htb",
                self.index(),
                classid,
                parent=classid & 0xFFFF_0000,
                rate=rate.bytes_per_second,
                ceil=rate.bytes_per_second,
                burst=burst_bytes,
                cburst=burst_bytes,
                quantum=quantum_bytes,
            )

    def delete_class(self, classid: int) -> None:
        """Delete a class and its leaf qdisc with all that is queued in it."""
        with _translated(f"tc class del dev {self._interface} classid {format_classid(classid)}"):
            # Naming the kind makes pyroute2 encode options that the request must not have.
            self._ip.tc("del-class", index=self.index(), handle=classid)

    def knows_qdisc(self, kind: str) -> bool:
        """Whether the kernel has this qdisc, without changing anything.

        A request without options makes qdisc_create (net/sched/sch_api.c) load the kind, and HTB refuse it.
        """
        try:
            list(
                self._request(RTM_NEWQDISC, _DO | NLM_F_CREATE | NLM_F_REPLACE, self.index(), kind, None, 0, TC_H_ROOT)
            )
        except NetlinkError as error:
            return int(error.code) != errno.ENOENT
        return True

    def _request(
        self,
        message_type: int,
        flags: int,
        index: int,
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


def all_root_qdiscs() -> list[tuple[str, Qdisc]]:
    """Interface name and root qdisc of every interface. Raises KernelError."""
    with _translated("ip link show"), IPRoute() as ip:
        names = [str(link.get_attr("IFLA_IFNAME")) for link in ip.get_links()]
    found = []
    for name in names:
        roots = (qdisc for qdisc in TrafficControl(name).qdiscs() if qdisc.parent == TC_H_ROOT)
        found += [(name, root) for root in roots]
    return found


def format_classid(classid: int) -> str:
    """`4d50:2` as tc writes it."""
    return f"{classid >> 16:x}:{classid & 0xFFFF:x}"
