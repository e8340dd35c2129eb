"""The kinds of netlink messages that the services exchange with the kernel, each through pyroute2 and through our code.

pyroute2 gets the options of tc as raw bytes: that is its fastest way.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyroute2 import DiagSocket, IPRoute, IPSet, netlink
from pyroute2.ipset import PortEntry
from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST, rtnl
from pyroute2.netlink.diag import inet_diag_msg, inet_diag_req
from pyroute2.netlink.nfnetlink import ipset as nfnl_ipset
from pyroute2.netlink.rtnl.marshal import MarshalRtnl
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from mptcp_lab.traffic import IPPROTO_MPTCP
from mptcp_sniffer.kernel_events import KernelEvents
from mptcp_sniffer.kernel_list import list_subflows
from mptcp_throttle.linux.inet_diag import ESTABLISHED, list_request, parse_socket
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_codec import Message, attribute, attributes, messages, pack, status
from mptcp_throttle.linux.netlink_socket import NetlinkSocket, Request
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.classes import ipset
from mptcp_throttled.kernel.classes.elements import ELEMENT_BYTES, Element, decode_element, encode_element
from mptcp_throttled.kernel.htb import htb, tc
from mptcp_throttled.vocabulary import class_ids
from mptcp_throttled.vocabulary.class_ids import classid

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

ENCODE, DECODE, ROUND_TRIP = "encode", "decode", "round trip"
FIRST_JOIN, JOIN, RESYNC, QUICK, RARE = "first JOIN", "JOIN", "resync, restart", "each second", "rare"
OURS, PYROUTE2 = "ours", "pyroute2"


class Case(NamedTuple):
    """A phase of a kind of message, through pyroute2 and through our code; `ours` is None if we have none for it.

    Phases: encode a request, decode an answer, and the round trip, which is both and what the kernel does in between.
    `path`: when it is sent; `done_by`: who does it in production. Before each call `prepare` brings the kernel into the
    state that it needs.
    """

    message: str
    phase: str
    path: str
    pyroute2: Call
    ours: Call | None
    done_by: str = OURS
    prepare: Call = lambda: None


def cases(interface: str, classes: int, sockets: int) -> Iterator[Case]:
    """All cases, in this network namespace; each is to be measured before the next one is asked for."""
    yield from _Tc(interface).cases(classes)
    yield from _Ipset().cases()
    yield from _sockets(sockets)
    yield Case(
        "open and close a socket",
        ROUND_TRIP,
        "restart",
        lambda: IPRoute(ext_ack=True).close(),
        lambda: NetlinkSocket(socket.NETLINK_ROUTE).close(),
        "both",
    )


class _RawTcMessage(netlink.nlmsg):  # type: ignore[misc]
    prefix = "TCA_"
    fields = tcmsg.fields
    nla_map = ((1, "TCA_KIND", "asciiz"), (2, "TCA_OPTIONS", "cdata"))


class _Tc:
    def __init__(self, interface: str) -> None:
        self._on = tc.Interface(socket.if_nametoindex(interface), interface)
        self._tc = tc.TrafficControl()
        self._ip = IPRoute(ext_ack=True)
        self._ip.status["nlm_generator"] = False

    def cases(self, classes: int) -> Iterator[Case]:
        """Changes of single classes first: to add or delete one takes the longer the more there are."""
        on, add_filter = self._on, self._add_filter
        add_root = partial(tc.add_qdisc, on, htb.root_qdisc(0), replace=True)
        delete_root = partial(tc.tc_request, "delete", rtnl.RTM_DELQDISC, 0, on.index, 0, rtnl.TC_H_ROOT)
        delete_filters = partial(tc.tc_request, "delete", rtnl.RTM_DELTFILTER, 0, on.index, 0, class_ids.HANDLE)
        yield from self._change("replace root qdisc", FIRST_JOIN, OURS, add_root, delete_root)
        yield from self._change("add filter", FIRST_JOIN, OURS, add_filter, delete_filters)
        yield from self._change("delete filters", RARE, PYROUTE2, delete_filters, add_filter)
        yield from self._change("delete root qdisc", RARE, PYROUTE2, delete_root, add_root)
        self._tc.carry_out([add_root(), add_filter()])
        add = partial(tc.add_class, on, class_ids.classid(_MINOR), _OPTIONS, _RATE)
        delete = partial(tc.delete_class, on, class_ids.classid(_MINOR))
        yield from self._change("add class", JOIN, OURS, add, delete)
        yield from self._change("change class", JOIN, OURS, partial(add, change=True), add)
        yield from self._change("add leaf", JOIN, OURS, partial(tc.add_qdisc, on, htb.leaf_qdisc(_MINOR)), delete, add)
        yield from self._change("delete class", JOIN, OURS, delete, add)
        asked = [(request, tc.parse_message(request.payload)) for request in self._classes(_MANY)]
        yield Case(
            f"add {len(_MANY)} classes with leaves",
            ROUND_TRIP,
            RESYNC,
            lambda: self._ask(*asked),
            lambda: self._carry_out(self._classes(_MANY)),
            prepare=self._delete_many,
        )
        yield self._notification(delete(), add())
        acknowledgment = pack(netlink.NLMSG_ERROR, 0, 1, bytes(20))
        ours = partial(_parsed, status, acknowledgment)
        yield Case("acknowledgment", DECODE, JOIN, _parsing(acknowledgment), ours)
        self._delete_many()
        self._tc.carry_out(self._classes(range(2, classes + 2)))
        yield from self._dump(f"list {classes} leaves", rtnl.RTM_GETQDISC, 0, self._tc.qdiscs)
        yield from self._dump(f"list {classes} classes", rtnl.RTM_GETTCLASS, 0, partial(self._tc.htb_classes, on))
        filters = partial(self._tc.filters, on, class_ids.HANDLE)
        yield from self._dump("list filters", rtnl.RTM_GETTFILTER, class_ids.HANDLE, filters)

    def _change(self, name: str, path: str, done_by: str, build: Build, *before: Build) -> Iterator[Case]:
        request = build()
        values = tc.parse_message(request.payload)
        yield Case(name, ENCODE, path, lambda: _tc_message(values).encode(), lambda: _packed(build()), done_by)
        yield Case(
            name,
            ROUND_TRIP,
            path,
            lambda: self._ask((request, values)),
            lambda: self._carry_out([build()]),
            done_by,
            lambda: self._tc.carry_out([build() for build in before]),
        )

    def _dump(self, name: str, type_: int, parent: int, ours: Call) -> Iterator[Case]:
        with NetlinkSocket(socket.NETLINK_ROUTE) as plain:
            payloads = plain.dump(tc.tc_request(name, type_, 0, self._on.index, 0, parent))
        theirs = _decoding(tcmsg, type_, payloads, _read_tc)
        yield Case(name, DECODE, RESYNC, theirs, lambda: list(map(tc.parse_message, payloads)))
        message = _message(tcmsg, index=self._on.index, parent=parent)
        ask = partial(self._ip.nlm_request, message, type_, NLM_F_REQUEST | netlink.NLM_F_DUMP)
        yield Case(name, ROUND_TRIP, RESYNC, lambda: list(map(_read_tc, ask())), ours)

    def _notification(self, *changes: Request) -> Case:
        with NetlinkSocket(socket.NETLINK_ROUTE, rtnl.RTMGRP_TC) as subscribed:
            self._tc.carry_out(changes)
            data = b"".join(pack(*message) for message in subscribed.notifications())
        ours = partial(_parsed, lambda message: tc.parse_message(message.payload).interface, data)
        return Case("notification of a class", DECODE, "others' changes", _parsing(data), ours)

    def _ask(self, *asked: tuple[Request, tc.TcMessage]) -> None:
        for request, values in asked:
            self._ip.nlm_request(_tc_message(values), request.type, NLM_F_REQUEST | NLM_F_ACK | request.flags)

    def _carry_out(self, requests: Sequence[Request]) -> None:
        _require_done(self._tc.carry_out(requests))

    def _classes(self, minors: range) -> list[Request]:
        pairs = (
            (
                tc.add_class(self._on, classid(minor), _OPTIONS, _RATE),
                tc.add_qdisc(self._on, htb.leaf_qdisc(minor)),
            )
            for minor in minors
        )
        return [request for pair in pairs for request in pair]

    def _delete_many(self) -> None:
        self._tc.carry_out([tc.delete_class(self._on, class_ids.classid(minor)) for minor in _MANY])

    def _add_filter(self) -> Request:
        kind, handle, info, options = htb.mark_filter(class_ids.MarkedTraffic(_MASK, (_PORT,)))
        body = attribute(1, kind.encode() + b"\0") + attribute(2, options or b"")
        flags = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
        return tc.tc_request("add", rtnl.RTM_NEWTFILTER, flags, self._on.index, handle, class_ids.HANDLE, info, body)


class _Ipset:
    def __init__(self) -> None:
        self._theirs = IPSet()
        self._ours = ipset.OwnSets()
        self._plain = NetlinkSocket(netlink.NETLINK_NETFILTER)
        self._set, self._new = ipset.OwnSet(4, _PORT), ipset.OwnSet(4, _PORT, new=True)
        clients = [IPv4Address("10.1.0.2") + number for number in range(_ELEMENTS)]
        self._elements = [Element(client, 40000, _PROXY, 0x0002_0000, _MASK) for client in clients]

    def cases(self) -> Iterator[Case]:
        self._ours.create(self._set)
        yield from self._alteration("add a mark", JOIN, "add", 1)
        yield from self._alteration("delete a mark", JOIN, "delete", 1)
        yield from self._alteration(f"add {_ELEMENTS} marks", RESYNC, "add", _ELEMENTS)
        yield from self._alteration(f"delete {_ELEMENTS} marks", "all lifted", "delete", _ELEMENTS)
        self._ours.add(self._set, list(map(encode_element, self._elements)))
        listed = partial(self._theirs.headers, self._set.name)
        yield Case("list sets", ROUND_TRIP, QUICK, lambda: list(listed()), self._ours.present)
        yield from self._list_elements()
        new, old = self._new, self._set
        create = partial(
            self._theirs.create, new.name, ipset.SET_TYPE, socket.AF_INET, maxelem=ipset.MAX_MARKS, skbinfo=True
        )
        ours = self._carrying_out(partial(ipset.create_request, new, ipset.MAX_MARKS))
        yield Case("create set", ROUND_TRIP, FIRST_JOIN, create, ours, prepare=self._destroy_new)
        self._create_new()
        names = [attribute(number, one.name.encode() + b"\0") for number, one in ((2, new), (3, old))]
        ours = self._carrying_out(partial(ipset.ipset_request, "swap", nfnl_ipset.IPSET_CMD_SWAP, *names))
        yield Case("swap sets", ROUND_TRIP, RARE, partial(self._theirs.swap, new.name, old.name), ours, PYROUTE2)
        ours = self._carrying_out(partial(ipset.ipset_request, "destroy", nfnl_ipset.IPSET_CMD_DESTROY, names[0]))
        theirs = partial(self._theirs.destroy, new.name)
        yield Case("destroy set", ROUND_TRIP, RARE, theirs, ours, PYROUTE2, self._create_new)

    def _alteration(self, name: str, path: str, verb: str, count: int) -> Iterator[Case]:
        elements = self._elements[:count]
        adds = verb == "add"
        command = nfnl_ipset.IPSET_CMD_ADD if adds else nfnl_ipset.IPSET_CMD_DEL
        alter, undo = (self._ours.add, self._ours.delete) if adds else (self._ours.delete, self._ours.add)

        def encoded() -> list[bytes]:
            return list(map(encode_element, elements))

        def theirs() -> None:
            for one in elements:
                entry = str(one.client), PortEntry(one.port, protocol=socket.IPPROTO_TCP), str(one.proxy)
                mark = {"skbmark": (one.mark, one.mask)} if adds else {}
                getattr(self._theirs, verb)(self._set.name, entry, etype="ip,port,ip", **mark)

        yield Case(
            name,
            ENCODE,
            path,
            lambda: [_mark_message(self._set.name, command, one).encode() for one in elements],
            lambda: _packed(ipset.elements_request(verb, command, self._set, encoded())),
        )
        prepare = partial(undo, self._set, encoded())
        yield Case(name, ROUND_TRIP, path, theirs, lambda: alter(self._set, encoded()), prepare=prepare)

    def _list_elements(self) -> Iterator[Case]:
        named = attribute(2, self._set.name.encode() + b"\0")
        request = ipset.ipset_request("list", nfnl_ipset.IPSET_CMD_LIST, named)
        payloads = self._plain.dump(request)
        name, size = f"list {_ELEMENTS} marks", ELEMENT_BYTES[4]

        def read(rows: Iterator[bytes]) -> list[object]:
            return [decode_element(row[begin : begin + size], 4) for row in rows for begin in range(0, len(row), size)]

        yield Case(
            name,
            DECODE,
            RESYNC,
            _decoding(nfnl_ipset.ipset_msg, request.type, payloads, _read_marks),
            lambda: read(attributes(payload, 4).get(8, b"") for payload in payloads),
        )
        yield Case(
            name,
            ROUND_TRIP,
            RESYNC,
            lambda: list(map(_read_marks, self._theirs.list(self._set.name))),
            lambda: read(self._ours.elements(self._set)),
        )

    def _carrying_out(self, build: Build) -> Call:
        return lambda: _require_done(self._plain.carry_out([build()]))

    def _create_new(self) -> None:
        with suppress(KernelError):
            self._ours.create(self._new)

    def _destroy_new(self) -> None:
        with suppress(KernelError):
            self._ours.destroy(self._new)


def _sockets(count: int) -> Iterator[Case]:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    listener.bind(("127.0.0.1", _PORT))
    listener.listen(count)
    _kept_open = [_connection(listener) for _ in range(count)]
    requests = [list_request(family, ESTABLISHED, _PORT) for family in (socket.AF_INET, socket.AF_INET6)]
    with NetlinkSocket(netlink.NETLINK_SOCK_DIAG) as plain:
        payloads = [payload for request in requests for payload in plain.dump(request)]
    diag = DiagSocket()
    diag.bind()
    diag.status["nlm_generator"] = False
    wanted = {_ULP_INFO}
    asked = {"sdiag_family": socket.AF_INET, "sdiag_protocol": socket.IPPROTO_TCP, "idiag_ext": 2}
    asked |= {"idiag_states": ESTABLISHED, "idiag_sport": _PORT}

    def theirs() -> None:
        for family in (socket.AF_INET, socket.AF_INET6):
            for found in diag.get_sock_stats(family, ESTABLISHED, extensions=2, sport=_PORT):
                _read_socket(found)

    name = f"list {count} sockets"
    build = partial(list_request, socket.AF_INET, ESTABLISHED, _PORT)
    yield Case(name, ENCODE, QUICK, lambda: _message(inet_diag_req, **asked).encode(), lambda: _packed(build()))
    yield Case(
        name,
        DECODE,
        QUICK,
        _decoding(inet_diag_msg, requests[0].type, payloads, _read_socket),
        lambda: [parse_socket(payload, wanted) for payload in payloads],
    )
    yield Case(name, ROUND_TRIP, QUICK, theirs, lambda: list_subflows((_PORT,)))
    yield Case(
        "subscribe to MPTCP events", ROUND_TRIP, "restart", lambda: KernelEvents((_PORT,)).close(), None, PYROUTE2
    )


def _connection(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    client.connect(listener.getsockname())
    return client, listener.accept()[0]


def _message(kind: type[netlink.nlmsg], **fields: object) -> netlink.nlmsg:
    message = kind()
    message.update(fields)
    return message


def _tc_message(values: tc.TcMessage) -> netlink.nlmsg:
    named: list[tuple[str, object]] = []
    if 1 in values.attributes:
        named.append(("TCA_KIND", values.attributes[1].rstrip(b"\0").decode()))
    if 2 in values.attributes:
        named.append(("TCA_OPTIONS", values.attributes[2]))
    index, handle, parent, info, _ = values
    return _message(_RawTcMessage, index=index, handle=handle, parent=parent, info=info, attrs=named)


def _mark_message(name: str, command: int, one: Element) -> netlink.nlmsg:
    entry = [
        ["IPSET_ATTR_IP_FROM", {"attrs": [["IPSET_ATTR_IPADDR_IPV4", str(one.client)]]}],
        ["IPSET_ATTR_PORT", one.port],
        ["IPSET_ATTR_PROTO", socket.IPPROTO_TCP],
        ["IPSET_ATTR_IP2", {"attrs": [["IPSET_ATTR_IPADDR_IPV4", str(one.proxy)]]}],
        ["IPSET_ATTR_SKBMARK", (one.mark, one.mask)],
    ]
    named = [["IPSET_ATTR_PROTOCOL", 6], ["IPSET_ATTR_SETNAME", name], ["IPSET_ATTR_DATA", {"attrs": entry}]]
    message = _message(nfnl_ipset.ipset_msg, attrs=named)
    message["header"]["type"] = nfnl_ipset.NFNL_SUBSYS_IPSET << 8 | command
    return message


def _decoding(kind: type[netlink.nlmsg], type_: int, payloads: Sequence[bytes], read: Callable[[Any], object]) -> Call:
    """Decode answers through pyroute2, and read what we need of them."""
    raw = [pack(type_, 0, 1, payload) for payload in payloads]

    def decode() -> None:
        for data in raw:
            message = kind(data)
            message.decode()
            read(message)

    return decode


def _parsing(data: bytes) -> Call:
    marshal = MarshalRtnl()
    return lambda: list(marshal.parse(data))


def _parsed(read: Callable[[Message], object], data: bytes) -> list[object]:
    return list(map(read, messages(data)))


def _read_tc(found: Any) -> object:  # noqa: ANN401
    return found["handle"], found["parent"], found.get_attr("TCA_KIND"), found.get_attr("TCA_OPTIONS")


def _read_marks(found: Any) -> object:  # noqa: ANN401
    entries = found.get_attr("IPSET_ATTR_ADT")
    listed = [] if entries is None else entries.get_attrs("IPSET_ATTR_DATA")
    return [one.get_attr("IPSET_ATTR_SKBMARK") for one in listed]


def _read_socket(found: Any) -> object:  # noqa: ANN401
    return found["idiag_src"], found["idiag_dst"], found["idiag_dport"], found.get_attr("INET_DIAG_ULP_INFO")


def _packed(request: Request) -> bytes:
    return pack(request.type, request.flags | NLM_F_REQUEST | NLM_F_ACK, 1, request.payload)


def _require_done(refusals: Sequence[KernelError | None]) -> None:
    for refusal in filter(None, refusals):
        raise refusal
