"""The netlink messages that make our nftables tables, and whether what the kernel lists is what they make.

As nft(8) shows the table for IPv4:

    table ip mptcp-throttle {
        map subflows { type ipv4_addr . inet_service . ipv4_addr . inet_service : classid; }
        chain postrouting {
            type filter hook postrouting priority mangle; policy accept;  # or srcnat + 1
            meta priority set ip daddr . tcp dport . ip saddr . tcp sport map @subflows
        }
    }

A priority and not a mark: before Linux 6.13 no rule can set some bits of a mark to a value from a map and keep the
others (nft_bitwise.c).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from pyroute2.netlink import NLA_F_NESTED, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES, nftsocket

from mptcp_throttle.linux.netlink_codec import attribute, attributes, nested, text
from mptcp_throttle.linux.netlink_socket import Request
from mptcp_throttle.own_chains import BEFORE_NAT, OWN_TABLE
from mptcp_throttled.kernel.classes.nft_elements import KEY_BYTES, MAP_ELEMENT_BYTES

CHAIN: Final = "postrouting"
MAP: Final = "subflows"
FAMILIES: Final = {4: "ip", 6: "ip6"}

_NUMBERS: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_NFGENMSG: Final = Struct("!BBH")
_NUMBER: Final = Struct("!I")
_BATCH_BEGIN, _BATCH_END = 16, 17  # NFNL_MSG_BATCH_..., include/uapi/linux/netfilter/nfnetlink.h
_ELEMENTS_BYTES: Final = 60_000  # the length of an attribute has 16 bits

# include/uapi/linux/netfilter/nf_tables.h, NFTA_..., in its order; each table of attributes begins at 1.
_TABLE_NAME, _TABLE_FLAGS, _TABLE_USE = 1, 2, 3
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_USE, _CHAIN_TYPE, _CHAIN_FLAGS = 1, 3, 4, 5, 6, 7, 10
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2
_RULE_TABLE, _RULE_CHAIN, _RULE_EXPRESSIONS = 1, 2, 4
_SET_TABLE, _SET_NAME, _SET_FLAGS, _SET_KEY_TYPE, _SET_KEY_LEN, _SET_DATA_TYPE, _SET_DATA_LEN = 1, 2, 3, 4, 5, 6, 7
_SET_DESC, _SET_ID, _SET_TIMEOUT, _SET_USERDATA, _SET_EXPR, _SET_EXPRESSIONS = 9, 10, 11, 13, 17, 18
_DESC_SIZE: Final = 1
_ELEMENTS_TABLE, _ELEMENTS_SET, _ELEMENTS_LIST = 1, 2, 3
_GENERATION_ID: Final = 1
_EXPRESSION_NAME, _EXPRESSION_DATA = 1, 2
_LIST_ELEMENT: Final = 1
_DATA_VALUE: Final = 1

_ACCEPT: Final = 1
_POSTROUTING: Final = 4  # NF_INET_POST_ROUTING
_BASE_CHAIN: Final = 1  # NFT_CHAIN_BASE
_IS_MAP: Final = 8  # NFT_SET_MAP
# What nft(8) needs to show keys and values: its numbers of data types (include/datatype.h), and that a class has the
# byte order of the host (NFTNL_UDATA_SET_DATABYTEORDER, libnftnl).
_ADDRESS_TYPES: Final = {4: 7, 6: 8}
_PORT_TYPE, _CLASS_TYPE = 13, 23
_USERDATA: Final = bytes((1, 4, 1, 0, 0, 0))
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_META_PRIORITY, _META_L4PROTO = 2, 16
_FIRST_REGISTER: Final = 4  # in units of 4 bytes; the verdict is in front of it


class _Field(NamedTuple):
    header: int
    offset: int
    size: int


_FIELDS: Final = {
    version: (
        _Field(_NETWORK_HEADER, offset + size, size),  # destination address
        _Field(_TRANSPORT_HEADER, 2, 2),
        _Field(_NETWORK_HEADER, offset, size),
        _Field(_TRANSPORT_HEADER, 0, 2),
    )
    for version, offset, size in ((4, 12, 4), (6, 8, 16))
}


class _Expression(NamedTuple):
    name: str
    attributes: Mapping[int, bytes]


class Part(Enum):
    """A part of our table: the message that asks for it, and the attributes that name it. A header has no content."""

    TABLE = (nftsocket.NFT_MSG_GETTABLE, {_TABLE_NAME: OWN_TABLE})
    MAP_HEADER = (nftsocket.NFT_MSG_GETSET, {_SET_TABLE: OWN_TABLE, _SET_NAME: MAP})
    CHAIN_HEADER = (nftsocket.NFT_MSG_GETCHAIN, {_CHAIN_TABLE: OWN_TABLE, _CHAIN_NAME: CHAIN})
    RULES = (nftsocket.NFT_MSG_GETRULE, {_RULE_TABLE: OWN_TABLE})
    ELEMENTS = (nftsocket.NFT_MSG_GETSETELEM, {_ELEMENTS_TABLE: OWN_TABLE, _ELEMENTS_SET: MAP})


def batch(requests: Sequence[Request], *, commit: bool = True) -> list[Request]:
    """The requests as one transaction; without `commit`, the kernel checks and undoes them.

    It does that to a batch without an end (nfnetlink_rcv_batch, nfnetlink.c).
    """
    end = [_mark_of_batch(_BATCH_END)] if commit else []
    return [_mark_of_batch(_BATCH_BEGIN), *requests, *end]


def generation_request(what: str) -> Request:
    """Ask for the generation, which `generation_of` decodes."""
    return _request(what, nftsocket.NFT_MSG_GETGEN, socket.AF_UNSPEC, b"")


def part_request(what: str, part: Part, ip_version: int) -> Request:
    """Ask for a part of our table; a dump has its rules, and its elements, which `elements_of` decodes."""
    command, names = part.value
    body = b"".join(_string(type_, name) for type_, name in names.items())
    return _request(what, command, _NUMBERS[ip_version], body)


def answered(payload: bytes) -> dict[int, bytes]:
    """The attributes of an answer of the kernel."""
    return attributes(payload, _NFGENMSG.size)


def generation_of(present: Mapping[int, bytes]) -> int:
    """The number of changes of nftables."""
    return int(_NUMBER.unpack(present[_GENERATION_ID])[0])


def elements_of(present: Mapping[int, bytes]) -> bytes:
    """The encoded elements of a part of a dump, concatenated."""
    return present.get(_ELEMENTS_LIST, b"")


def delete_requests(ip_version: int) -> tuple[Request, ...]:
    """Delete our table, whether it exists or not."""
    family, name = _NUMBERS[ip_version], _string(_TABLE_NAME, OWN_TABLE)
    return (
        _request("", nftsocket.NFT_MSG_NEWTABLE, family, name, NLM_F_CREATE),
        _request("", nftsocket.NFT_MSG_DELTABLE, family, name),
    )


def make_requests(
    ip_version: int, elements: Sequence[bytes], priority: int = BEFORE_NAT, table: str = OWN_TABLE
) -> Iterator[Request]:
    """Make our table with these encoded elements, and its chain with this priority; there must be none of that name."""
    family = _NUMBERS[ip_version]
    new = NLM_F_CREATE | NLM_F_EXCL
    yield _request("", nftsocket.NFT_MSG_NEWTABLE, family, _string(_TABLE_NAME, table), new)
    made = (
        _string(_SET_TABLE, table),
        _string(_SET_NAME, MAP),
        attribute(_SET_ID, _NUMBER.pack(1)),
        _list(_map_attributes(ip_version)),
        attribute(_SET_USERDATA, _USERDATA),
    )
    yield _request("", nftsocket.NFT_MSG_NEWSET, family, b"".join(made), new)
    yield from _element_requests(nftsocket.NFT_MSG_NEWSETELEM, ip_version, table, elements)
    chain = (
        _string(_CHAIN_TABLE, table),
        _string(_CHAIN_NAME, CHAIN),
        _string(_CHAIN_TYPE, "filter"),
        attribute(_CHAIN_POLICY, _NUMBER.pack(_ACCEPT)),
        attribute(_CHAIN_HOOK | NLA_F_NESTED, _list(_hook(priority))),
    )
    yield _request("", nftsocket.NFT_MSG_NEWCHAIN, family, b"".join(chain), new)
    rule = (
        _string(_RULE_TABLE, table),
        _string(_RULE_CHAIN, CHAIN),
        attribute(_RULE_EXPRESSIONS | NLA_F_NESTED, b"".join(map(_encoded, _rule(ip_version)))),
    )
    yield _request("", nftsocket.NFT_MSG_NEWRULE, family, b"".join(rule), NLM_F_CREATE | NLM_F_APPEND)


def change_requests(ip_version: int, add: Sequence[bytes], delete: Sequence[bytes]) -> Iterator[Request]:
    """Delete and add encoded elements of our map."""
    yield from _element_requests(nftsocket.NFT_MSG_DELSETELEM, ip_version, OWN_TABLE, delete)
    yield from _element_requests(nftsocket.NFT_MSG_NEWSETELEM, ip_version, OWN_TABLE, add)


def is_table(present: Mapping[int, bytes]) -> bool:
    """Whether these are attributes of a table of ours: it holds a map and a chain."""
    return (present.get(_TABLE_FLAGS), present.get(_TABLE_USE)) == (_NUMBER.pack(0), _NUMBER.pack(2))


def is_map(present: Mapping[int, bytes], ip_version: int) -> bool:
    """Whether these are attributes of a map of ours."""
    return (
        _includes(present, _map_attributes(ip_version))
        and present.keys().isdisjoint({_SET_TIMEOUT, _SET_EXPR, _SET_EXPRESSIONS})
        and _DESC_SIZE not in attributes(present.get(_SET_DESC, b""))
    )


def is_chain(present: Mapping[int, bytes], priority: int) -> bool:
    """Whether these are attributes of a chain of ours with this priority: it has one rule, and none leads to it."""
    return (
        text(present.get(_CHAIN_TYPE, b"")) == "filter"
        and attributes(present.get(_CHAIN_HOOK, b"")) == _hook(priority)
        and present.get(_CHAIN_POLICY) == _NUMBER.pack(_ACCEPT)
        and present.get(_CHAIN_USE) == _NUMBER.pack(1)
        and present.get(_CHAIN_FLAGS, _NUMBER.pack(_BASE_CHAIN)) == _NUMBER.pack(_BASE_CHAIN)
    )


def is_rule(present: Mapping[int, bytes], ip_version: int) -> bool:
    """Whether these are attributes of the rule of our chain."""
    expressions = [attributes(expression) for expression in nested(present.get(_RULE_EXPRESSIONS, b""))]
    wanted = _rule(ip_version)
    names = [text(expression.get(_EXPRESSION_NAME, b"")) for expression in expressions]
    return (text(present.get(_RULE_CHAIN, b"")), names) == (CHAIN, [made.name for made in wanted]) and all(
        _includes(attributes(expression.get(_EXPRESSION_DATA, b"")), made.attributes)
        for expression, made in zip(expressions, wanted, strict=True)
    )


def _mark_of_batch(type_: int) -> Request:
    return Request("", type_, 0, _NFGENMSG.pack(socket.AF_UNSPEC, 0, NFNL_SUBSYS_NFTABLES))


def _request(what: str, command: int, family: int, body: bytes, flags: int = 0) -> Request:
    return Request(what, NFNL_SUBSYS_NFTABLES << 8 | command, flags, _NFGENMSG.pack(family, 0, 0) + body)


def _string(type_: int, value: str) -> bytes:
    return attribute(type_, value.encode() + b"\0")


def _list(present: Mapping[int, bytes]) -> bytes:
    return b"".join(attribute(type_, value) for type_, value in present.items())


def _includes(present: Mapping[int, bytes], wanted: Mapping[int, bytes]) -> bool:
    """Whether all `wanted` attributes are there; a newer kernel may add some."""
    return all(present.get(type_) == value for type_, value in wanted.items())


def _element_requests(command: int, ip_version: int, table: str, elements: Sequence[bytes]) -> Iterator[Request]:
    flags = NLM_F_CREATE | NLM_F_EXCL if command == nftsocket.NFT_MSG_NEWSETELEM else 0
    step = _ELEMENTS_BYTES // MAP_ELEMENT_BYTES[ip_version]
    for begin in range(0, len(elements), step):
        portion = attribute(_ELEMENTS_LIST | NLA_F_NESTED, b"".join(elements[begin : begin + step]))
        body = _string(_ELEMENTS_TABLE, table) + _string(_ELEMENTS_SET, MAP) + portion
        yield _request("", command, _NUMBERS[ip_version], body, flags)


def _hook(priority: int) -> dict[int, bytes]:
    return {_HOOK_NUMBER: _NUMBER.pack(_POSTROUTING), _HOOK_PRIORITY: _NUMBER.pack(priority & 0xFFFF_FFFF)}


def _map_attributes(ip_version: int) -> dict[int, bytes]:
    address = _ADDRESS_TYPES[ip_version]
    key_type = address << 18 | _PORT_TYPE << 12 | address << 6 | _PORT_TYPE
    numbers = {
        _SET_FLAGS: _IS_MAP,
        _SET_KEY_TYPE: key_type,
        _SET_KEY_LEN: KEY_BYTES[ip_version],
        _SET_DATA_TYPE: _CLASS_TYPE,
        _SET_DATA_LEN: 4,
    }
    return {type_: _NUMBER.pack(number) for type_, number in numbers.items()}


def _rule(ip_version: int) -> list[_Expression]:
    """Look up the fields of a TCP packet, and set its priority to what the map has; without it, go on."""
    first = _register(_FIRST_REGISTER)
    expressions = [
        _Expression("meta", {2: _NUMBER.pack(_META_L4PROTO), 1: first}),  # NFTA_META_KEY, NFTA_META_DREG
        # NFTA_CMP_SREG, NFTA_CMP_OP: equal, NFTA_CMP_DATA
        _Expression("cmp", {1: first, 2: _NUMBER.pack(0), 3: attribute(_DATA_VALUE, bytes([socket.IPPROTO_TCP]))}),
    ]
    register = _FIRST_REGISTER
    for field in _FIELDS[ip_version]:
        # NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN
        expressions.append(
            _Expression("payload", {1: _register(register), **dict(enumerate(map(_NUMBER.pack, field), start=2))})
        )
        register += -(-field.size // 4)
    # NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG, NFTA_LOOKUP_DREG, NFTA_LOOKUP_FLAGS: not inverted
    looked_up = {1: MAP.encode() + b"\0", 2: first, 3: first, 5: _NUMBER.pack(0)}
    return [
        *expressions,
        _Expression("lookup", looked_up),
        _Expression("meta", {2: _NUMBER.pack(_META_PRIORITY), 3: first}),  # NFTA_META_KEY, NFTA_META_SREG
    ]


def _register(word: int) -> bytes:
    """A register by its place in units of 4 bytes, as the kernel numbers it: those of 16 bytes have own numbers."""
    return _NUMBER.pack(word // 4 if word % 4 == 0 else word - 4 + 8)


def _encoded(expression: _Expression) -> bytes:
    data = attribute(_EXPRESSION_DATA | NLA_F_NESTED, _list(expression.attributes))
    return attribute(_LIST_ELEMENT | NLA_F_NESTED, _string(_EXPRESSION_NAME, expression.name) + data)
