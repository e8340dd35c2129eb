"""The kinds of netlink messages that the services exchange with the kernel, each through pyroute2 and through our code.

pyroute2 gets the options of tc as raw bytes: that is its fastest way.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyroute2 import DiagSocket, IPRoute, IPSet
from pyroute2.ipset import PortEntry
from pyroute2.netlink import (
    NETLINK_NETFILTER,
    NETLINK_SOCK_DIAG,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    NLMSG_ERROR,
    nlmsg,
)
from pyroute2.netlink.diag import inet_diag_msg, inet_diag_req
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_IPSET
from pyroute2.netlink.nfnetlink.ipset import (
    IPSET_CMD_ADD,
    IPSET_CMD_DEL,
    IPSET_CMD_DESTROY,
    IPSET_CMD_LIST,
    IPSET_CMD_SWAP,
    ipset_msg,
)
from pyroute2.netlink.rtnl import (
    RTM_DELQDISC,
    RTM_DELTFILTER,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_GETTFILTER,
    RTM_NEWTFILTER,
    RTMGRP_TC,
    TC_H_ROOT,
)
from pyroute2.netlink.rtnl.marshal import MarshalRtnl
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from mptcp_sniffer.kernel_list import KernelEvents, list_subflows
from mptcp_throttle.linux.inet_diag import SS_ESTABLISHED, list_request, parse_socket
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_codec import attribute, attributes, messages, pack, status
from mptcp_throttle.linux.netlink_socket import NetlinkSocket, Request
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import htb, tc
from mptcp_throttled.kernel.marking import ipset
from mptcp_throttled.kernel.marking.elements import ELEMENT_BYTES, Element, decode_element, encode_element
from mptcp_throttled.kernel.marking.ipset import MAX_MARKS, SET_TYPE, OwnSet, OwnSets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Call = Callable[[], object]
    Build = Callable[[], Request]

_PORT: Final = 8080
_RATE: Final = Rate(1_000_000)
_OPTIONS: Final = htb.class_options(_RATE)
_MINOR: Final = 0xFFF0
_MANY: Final = range(0xE000, 0xE020)
_ELEMENTS: Final = 1000
_MASK: Final = 0xFFFF_0000
_PROXY: Final = IPv4Address("10.3.0.2")
_ULP_INFO: Final = 19  # INET_DIAG_ULP_INFO
_IPPROTO_MPTCP: Final = 262

FIRST_JOIN, JOIN, RESYNC, QUICK, RARE = "first JOIN", "JOIN", "resync, restart", "each second", "rare"
OURS, PYROUTE2 = "ours", "pyroute2"


class Pair(NamedTuple):
    """The same through pyroute2 and through our code; None if we have no code for it."""

    pyroute2: Call
    ours: Call | None


class Kind(NamedTuple):
    """A kind of message, the path on which it is sent, and who does it in production.

    `encode` is about a request, `decode` about an answer, `round_trip` is both and what the kernel does in between;
    before it, `prepare` brings the kernel into the state that it needs.
    """

    name: str
    path: str
    done_by: str
    encode: Pair | None = None
    decode: Pair | None = None
    round_trip: Pair | None = None
    prepare: Call = lambda: None


def kinds(interface: str, classes: int, sockets: int) -> Iterator[Kind]:
    """All kinds, in this network namespace; each is to be measured before the next one is asked for."""
    yield from _Tc(interface).kinds(classes)
    yield from _Ipset().kinds()
    yield from _sockets(sockets)
    opened = Pair(lambda: IPRoute(ext_ack=True).close(), lambda: NetlinkSocket(socket.NETLINK_ROUTE).close())
    yield Kind("open and close a socket", "restart", "both", round_trip=opened)


class _RawTcMessage(nlmsg):  # type: ignore[misc]
    prefix = "TCA_"
    fields = tcmsg.fields
    nla_map = ((1, "TCA_KIND", "asciiz"), (2, "TCA_OPTIONS", "cdata"))


class _Tc:
    def __init__(self, interface: str) -> None:
        self._on = tc.Interface(socket.if_nametoindex(interface), interface)
        self._tc = tc.TrafficControl()
        self._ip = IPRoute(ext_ack=True)
        self._ip.status["nlm_generator"] = False

    def kinds(self, classes: int) -> Iterator[Kind]:
        """Changes of single classes first: to add or delete one takes the longer the more there are."""
        on = self._on
        add_root = partial(tc.add_qdisc, on, htb.root_qdisc(0), replace=True)
        yield self._change("replace root qdisc", FIRST_JOIN, OURS, add_root, self._delete_root)
        yield self._change("add filter", FIRST_JOIN, OURS, self._add_filter, self._delete_filters)
        yield self._change("delete filters", RARE, PYROUTE2, self._delete_filters, self._add_filter)
        yield self._change("delete root qdisc", RARE, PYROUTE2, self._delete_root, add_root)
        self._try(add_root(), self._add_filter())
        add = partial(tc.add_class, on, htb.classid(_MINOR), _OPTIONS, _RATE)
        delete = partial(tc.delete_class, on, htb.classid(_MINOR))
        yield self._change("add class", JOIN, OURS, add, delete)
        yield self._change("change class", JOIN, OURS, partial(add, change=True), add)
        yield self._change("add leaf", JOIN, OURS, partial(tc.add_qdisc, on, htb.leaf_qdisc(_MINOR)), delete, add)
        yield self._change("delete class", JOIN, OURS, delete, add)
        yield self._batch()
        yield self._notification(delete(), add())
        yield self._acknowledgement()
        self._delete_many()
        self._try(*self._classes(range(2, classes + 2)))
        yield self._dump(f"list {classes} leaves", RTM_GETQDISC, 0, self._tc.qdiscs)
        yield self._dump(f"list {classes} classes", RTM_GETTCLASS, 0, partial(self._tc.htb_classes, on))
        yield self._dump("list filters", RTM_GETTFILTER, htb.HANDLE, partial(self._tc.filters, on, htb.HANDLE))

    def _change(self, name: str, path: str, done_by: str, build: Build, *before: Build) -> Kind:
        request = build()
        values = tc.parse_message(request.payload)
        return Kind(
            name,
            path,
            done_by,
            encode=Pair(lambda: _encoded(_tc_message(values)), lambda: _packed(build())),
            round_trip=Pair(lambda: self._ask((request, values)), lambda: self._carry_out(build())),
            prepare=lambda: self._try(*(build() for build in before)),
        )

    def _batch(self) -> Kind:
        asked = [(request, tc.parse_message(request.payload)) for request in self._classes(_MANY)]
        round_trip = Pair(
            lambda: self._ask(*asked),
            lambda: self._carry_out(*self._classes(_MANY)),
        )
        name = f"add {len(_MANY)} classes with leaves"
        return Kind(name, RESYNC, OURS, round_trip=round_trip, prepare=self._delete_many)

    def _dump(self, name: str, type_: int, parent: int, ours: Call) -> Kind:
        with NetlinkSocket(socket.NETLINK_ROUTE) as plain:
            payloads = plain.dump(tc.tc_request(name, type_, 0, self._on.index, 0, parent))
        raw = [pack(type_, 0, 1, payload) for payload in payloads]
        message = tcmsg()
        message.update(index=self._on.index, parent=parent)
        flags = NLM_F_REQUEST | NLM_F_DUMP
        return Kind(
            name,
            RESYNC,
            OURS,
            decode=Pair(
                lambda: [_read(_decoded(tcmsg(one))) for one in raw], lambda: list(map(tc.parse_message, payloads))
            ),
            round_trip=Pair(lambda: [_read(found) for found in self._ip.nlm_request(message, type_, flags)], ours),
        )

    def _notification(self, *changes: Request) -> Kind:
        with NetlinkSocket(socket.NETLINK_ROUTE, RTMGRP_TC) as subscribed:
            self._try(*changes)
            data = b"".join(pack(*message) for message in subscribed.notifications())
        marshal = MarshalRtnl()
        decode = Pair(
            lambda: [message["index"] for message in marshal.parse(data)],
            lambda: [tc.parse_message(message.payload).interface for message in messages(data)],
        )
        return Kind("notification of a class", "others' changes", OURS, decode=decode)

    def _acknowledgement(self) -> Kind:
        data = pack(NLMSG_ERROR, 0, 1, bytes(20))
        marshal = MarshalRtnl()
        decode = Pair(lambda: list(marshal.parse(data)), lambda: list(map(status, messages(data))))
        return Kind("acknowledgement", JOIN, OURS, decode=decode)

    def _ask(self, *asked: tuple[Request, tc.TcMessage]) -> None:
        for request, values in asked:
            flags = NLM_F_REQUEST | NLM_F_ACK | request.flags
            self._ip.nlm_request(_tc_message(values), request.type, flags)

    def _classes(self, minors: range) -> Iterator[Request]:
        for minor in minors:
            yield tc.add_class(self._on, htb.classid(minor), _OPTIONS, _RATE)
            yield tc.add_qdisc(self._on, htb.leaf_qdisc(minor))

    def _delete_many(self) -> None:
        self._try(*(tc.delete_class(self._on, htb.classid(minor)) for minor in _MANY))

    def _delete_root(self) -> Request:
        return tc.tc_request("delete", RTM_DELQDISC, 0, self._on.index, 0, TC_H_ROOT)

    def _delete_filters(self) -> Request:
        return tc.tc_request("delete", RTM_DELTFILTER, 0, self._on.index, 0, htb.HANDLE)

    def _add_filter(self) -> Request:
        kind, handle, info, options = htb.mark_filter(htb.Marking(_MASK, (_PORT,)))
        body = attribute(1, kind.encode() + b"\0") + attribute(2, options or b"")
        flags = NLM_F_CREATE | NLM_F_EXCL
        return tc.tc_request("add", RTM_NEWTFILTER, flags, self._on.index, handle, htb.HANDLE, info, body)

    def _try(self, *requests: Request) -> None:
        self._tc.carry_out(requests)

    def _carry_out(self, *requests: Request) -> None:
        _require_done(self._tc.carry_out(requests))


class _Ipset:
    def __init__(self) -> None:
        self._theirs = IPSet()
        self._ours = OwnSets()
        self._plain = NetlinkSocket(NETLINK_NETFILTER)
        self._set, self._new = OwnSet(4, _PORT), OwnSet(4, _PORT, new=True)
        clients = [IPv4Address("10.1.0.2") + number for number in range(_ELEMENTS)]
        self._elements = [Element(client, 40000, _PROXY, 0x0002_0000, _MASK) for client in clients]
        self._encoded = [encode_element(element) for element in self._elements]

    def kinds(self) -> Iterator[Kind]:
        self._ours.create(self._set)
        yield self._alteration("add a mark", JOIN, "add", IPSET_CMD_ADD, 1)
        yield self._alteration("delete a mark", JOIN, "delete", IPSET_CMD_DEL, 1)
        yield self._alteration(f"add {_ELEMENTS} marks", RESYNC, "add", IPSET_CMD_ADD, _ELEMENTS)
        yield self._alteration(f"delete {_ELEMENTS} marks", "all lifted", "delete", IPSET_CMD_DEL, _ELEMENTS)
        self._ours.add(self._set, self._encoded)
        listed = Pair(lambda: list(self._theirs.headers(self._set.name)), self._ours.present)
        yield Kind("list sets", QUICK, OURS, round_trip=listed)
        yield self._list_elements()
        new = self._new
        yield self._command(
            "create set",
            FIRST_JOIN,
            OURS,
            lambda: self._theirs.create(new.name, SET_TYPE, socket.AF_INET, maxelem=MAX_MARKS, skbinfo=True),
            partial(ipset.create_request, new, MAX_MARKS),
            lambda: self._destroy(new),
        )
        self._create(new)
        names = [attribute(number, one.name.encode() + b"\0") for number, one in ((2, new), (3, self._set))]
        swap = partial(ipset.ipset_request, "swap", IPSET_CMD_SWAP, *names)
        yield self._command("swap sets", RARE, PYROUTE2, lambda: self._theirs.swap(new.name, self._set.name), swap)
        destroy = partial(ipset.ipset_request, "destroy", IPSET_CMD_DESTROY, names[0])
        yield self._command(
            "destroy set",
            RARE,
            PYROUTE2,
            lambda: self._theirs.destroy(new.name),
            destroy,
            lambda: self._create(new),
        )

    def _alteration(self, name: str, path: str, verb: str, command: int, count: int) -> Kind:
        elements, encoded = self._elements[:count], self._encoded[:count]
        ours = self._ours.add if verb == "add" else self._ours.delete
        undo = self._ours.delete if verb == "add" else self._ours.add

        def theirs() -> None:
            for one in elements:
                entry = (str(one.client), PortEntry(one.port, protocol=socket.IPPROTO_TCP), str(one.proxy))
                if verb == "add":
                    mark = one.mark, one.mask
                    self._theirs.add(self._set.name, entry, etype="ip,port,ip", skbmark=mark)
                else:
                    self._theirs.delete(self._set.name, entry, etype="ip,port,ip")

        encode = Pair(
            lambda: [_encoded(_mark_message(self._set.name, command, one)) for one in elements],
            lambda: _packed(ipset.elements_request(verb, command, self._set, list(map(encode_element, elements)))),
        )
        round_trip = Pair(theirs, lambda: ours(self._set, list(map(encode_element, elements))))
        return Kind(name, path, OURS, encode, None, round_trip, lambda: undo(self._set, encoded))

    def _list_elements(self) -> Kind:
        name = attribute(2, self._set.name.encode() + b"\0")
        payloads = self._plain.dump(ipset.ipset_request("list", IPSET_CMD_LIST, name))
        raw = [pack(NFNL_SUBSYS_IPSET << 8 | IPSET_CMD_LIST, 0, 1, payload) for payload in payloads]
        decode = Pair(
            lambda: [_marks(_decoded(ipset_msg(one))) for one in raw],
            lambda: _our_marks(attributes(payload, 4).get(8, b"") for payload in payloads),
        )
        round_trip = Pair(
            lambda: [_marks(one) for one in self._theirs.list(self._set.name)],
            lambda: _our_marks(self._ours.elements(self._set)),
        )
        return Kind(f"list {_ELEMENTS} marks", RESYNC, OURS, decode=decode, round_trip=round_trip)

    def _command(
        self, name: str, path: str, done_by: str, theirs: Call, build: Build, prepare: Call = lambda: None
    ) -> Kind:
        round_trip = Pair(theirs, lambda: _require_done(self._plain.carry_out([build()])))
        return Kind(name, path, done_by, round_trip=round_trip, prepare=prepare)

    def _create(self, own: OwnSet) -> None:
        with suppress(KernelError):
            self._ours.create(own)

    def _destroy(self, own: OwnSet) -> None:
        with suppress(KernelError):
            self._ours.destroy(own)


def _sockets(count: int) -> Iterator[Kind]:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, _IPPROTO_MPTCP)
    listener.bind(("127.0.0.1", _PORT))
    listener.listen(count)
    connections = [_connection(listener) for _ in range(count)]
    families = socket.AF_INET, socket.AF_INET6
    with NetlinkSocket(NETLINK_SOCK_DIAG) as plain:
        payloads = [one for family in families for one in plain.dump(list_request(family, SS_ESTABLISHED, _PORT))]
    raw = [pack(20, 0, 1, payload) for payload in payloads]
    diag = DiagSocket()
    diag.bind()
    diag.status["nlm_generator"] = False
    wanted = {_ULP_INFO}

    def theirs() -> None:
        for family in families:
            found = diag.get_sock_stats(family, 1 << SS_ESTABLISHED, extensions=2, sport=_PORT)
            list(map(_read_socket, found))

    yield Kind(
        f"list {count} sockets",
        QUICK,
        OURS,
        encode=Pair(
            lambda: _encoded(_socket_request(socket.AF_INET)),
            lambda: _packed(list_request(socket.AF_INET, SS_ESTABLISHED, _PORT)),
        ),
        decode=Pair(
            lambda: [_read_socket(_decoded(inet_diag_msg(one))) for one in raw],
            lambda: [parse_socket(payload, wanted) for payload in payloads],
        ),
        round_trip=Pair(theirs, lambda: list_subflows((_PORT,))),
    )
    subscribed = Pair(lambda: KernelEvents().__exit__(), None)
    yield Kind("subscribe to MPTCP events", "restart", PYROUTE2, round_trip=subscribed)
    with KernelEvents() as events:

        def cause() -> None:
            connections.append(_connection(listener))
            select.select([events], [], [])

        yield Kind("receive an MPTCP event", JOIN, PYROUTE2, round_trip=Pair(events.drain, None), prepare=cause)


def _connection(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, _IPPROTO_MPTCP)
    client.connect(listener.getsockname())
    return client, listener.accept()[0]


def _socket_request(family: int) -> nlmsg:
    request = inet_diag_req()
    request.update(
        sdiag_family=family,
        sdiag_protocol=socket.IPPROTO_TCP,
        idiag_ext=2,
        idiag_states=1 << SS_ESTABLISHED,
        idiag_sport=_PORT,
    )
    return request


def _read_socket(found: Any) -> object:  # noqa: ANN401
    return found["idiag_src"], found["idiag_dst"], found["idiag_dport"], found.get_attr("INET_DIAG_ULP_INFO")


def _tc_message(values: tc.TcMessage) -> nlmsg:
    message = _RawTcMessage()
    message.update(index=values.interface, handle=values.handle, parent=values.parent, info=values.info)
    named: list[tuple[str, object]] = []
    if 1 in values.attributes:
        named.append(("TCA_KIND", values.attributes[1].rstrip(b"\0").decode()))
    if 2 in values.attributes:
        named.append(("TCA_OPTIONS", values.attributes[2]))
    message["attrs"] = named
    return message


def _mark_message(name: str, command: int, one: Element) -> nlmsg:
    message = ipset_msg()
    message["header"]["type"] = NFNL_SUBSYS_IPSET << 8 | command
    entry = [
        ["IPSET_ATTR_IP_FROM", {"attrs": [["IPSET_ATTR_IPADDR_IPV4", str(one.client)]]}],
        ["IPSET_ATTR_PORT", one.port],
        ["IPSET_ATTR_PROTO", socket.IPPROTO_TCP],
        ["IPSET_ATTR_IP2", {"attrs": [["IPSET_ATTR_IPADDR_IPV4", str(one.proxy)]]}],
        ["IPSET_ATTR_SKBMARK", (one.mark, one.mask)],
    ]
    message["attrs"] = [
        ["IPSET_ATTR_PROTOCOL", 6],
        ["IPSET_ATTR_SETNAME", name],
        ["IPSET_ATTR_DATA", {"attrs": entry}],
    ]
    return message


def _marks(found: Any) -> list[object]:  # noqa: ANN401
    entries = found.get_attr("IPSET_ATTR_ADT")
    listed = [] if entries is None else entries.get_attrs("IPSET_ATTR_DATA")
    return [one.get_attr("IPSET_ATTR_SKBMARK") for one in listed]


def _our_marks(rows: Iterator[bytes]) -> list[object]:
    size = ELEMENT_BYTES[4]
    return [decode_element(row[begin : begin + size], 4) for row in rows for begin in range(0, len(row), size)]


def _encoded(message: nlmsg) -> bytes:
    message.encode()
    return bytes(message.data)


def _decoded(message: nlmsg) -> nlmsg:
    message.decode()
    return message


def _read(found: Any) -> object:  # noqa: ANN401
    return found["handle"], found["parent"], found.get_attr("TCA_KIND"), found.get_attr("TCA_OPTIONS")


def _packed(request: Request) -> bytes:
    return pack(request.type, request.flags | NLM_F_REQUEST | NLM_F_ACK, 1, request.payload)


def _require_done(refusals: Sequence[KernelError | None]) -> None:
    for refusal in filter(None, refusals):
        raise refusal
