"""Encodes and decodes netlink messages and their attributes (include/uapi/linux/netlink.h).

For tc and nftables, lists of sockets, notifications and MPTCP events; all others go through pyroute2, which takes some
ten times as long: docs/explanation/own-code.md has the figures.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from struct import Struct
from typing import Final, NamedTuple

from pyroute2.netlink import NLM_F_ACK_TLVS, NLMSG_DONE, NLMSG_ERROR

_HEADER: Final = Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTE: Final = Struct("=HH")  # struct nlattr
_HEADER_BYTES: Final = _ATTRIBUTE.size
_unpack_header: Final = _ATTRIBUTE.unpack_from
_TYPE_MASK: Final = 0x3FFF  # NLA_TYPE_MASK: the two upper bits of an attribute's type are flags
_ERROR: Final = Struct("=i")
# Where the attributes of an extended acknowledgment begin: an error repeats the header of its request
# (NETLINK_CAP_ACK leaves out the rest of it), the end of a dump does not.
_EXTENDED_ACK_OFFSET: Final = {NLMSG_ERROR: _ERROR.size + _HEADER.size, NLMSG_DONE: _ERROR.size}
_NLMSGERR_ATTR_MSG: Final = 1


class Message(NamedTuple):
    """A received message: `flags` are NLM_F_..., `sequence` is that of the request it answers."""

    type: int
    flags: int
    sequence: int
    payload: bytes


def pack(type_: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """A message to the kernel."""
    return _HEADER.pack(_HEADER.size + len(payload), type_, flags, sequence, 0) + payload


def messages(datagram: bytes) -> Iterator[Message]:
    """The messages in a datagram. Raises ValueError at one that is cut, or shorter than its header."""
    offset = 0
    while offset + _HEADER.size <= len(datagram):
        length, type_, flags, sequence, _ = _HEADER.unpack_from(datagram, offset)
        if not _HEADER.size <= length <= len(datagram) - offset:
            raise ValueError(f"a message of {length} bytes where {len(datagram) - offset} are left")
        yield Message(type_, flags, sequence, datagram[offset + _HEADER.size : offset + length])
        offset += (length + 3) & ~3


def status(message: Message) -> tuple[int, str]:
    """What NLMSG_ERROR or NLMSG_DONE reports: an errno number (0: success), and the kernel's explanation if any.

    Raises struct.error if the message has no number.
    """
    number = -_ERROR.unpack_from(message.payload)[0]
    if not message.flags & NLM_F_ACK_TLVS:
        return number, ""
    details = attributes(message.payload, _EXTENDED_ACK_OFFSET[message.type])
    return number, text(details.get(_NLMSGERR_ATTR_MSG, b""))


def attributes(
    data: bytes, offset: int = 0, before: Container[int] = (), only: Container[int] | None = None
) -> dict[int, bytes]:
    """Netlink attributes by type, from `offset` to the first of the types `before`; flags of the type are dropped.

    As in the kernel (nla_ok, include/net/netlink.h), they end before one that is cut, or shorter than its header.
    With `only`, just the attributes of these types: leaving out the rest halves the time.
    """
    payloads, size = {}, len(data)
    last = size - _HEADER_BYTES
    while offset <= last:
        length, type_ = _unpack_header(data, offset)
        type_ &= _TYPE_MASK
        if length < _HEADER_BYTES or offset + length > size or type_ in before:
            break
        if only is None or type_ in only:
            payloads[type_] = data[offset + _HEADER_BYTES : offset + length]
        offset += (length + 3) & ~3
    return payloads


def nested(data: bytes) -> Iterator[bytes]:
    """The payloads of a list of netlink attributes that all have the same type; it ends where `attributes` do."""
    offset, last = 0, len(data) - _HEADER_BYTES
    while offset <= last:
        length, _ = _unpack_header(data, offset)
        if not _HEADER_BYTES <= length <= len(data) - offset:
            return
        yield data[offset + _HEADER_BYTES : offset + length]
        offset += (length + 3) & ~3


def attribute(type_: int, payload: bytes) -> bytes:
    """One netlink attribute, padded."""
    length = _HEADER_BYTES + len(payload)
    return _ATTRIBUTE.pack(length, type_) + payload + b"\0" * (-length % 4)


def text(payload: bytes) -> str:
    """The text of a string attribute; bytes that are not UTF-8 are replaced."""
    return payload.rstrip(b"\0").decode(errors="replace")
