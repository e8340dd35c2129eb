"""Netlink messages and their attributes as bytes: pyroute2 takes half a millisecond to encode or decode one."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

# include/uapi/linux/netlink.h: struct nlmsghdr and nlattr
HEADER: Final = Struct("=IHHII")
_ATTRIBUTE: Final = Struct("=HH")
_HEADER_BYTES: Final = _ATTRIBUTE.size
_unpack_header: Final = _ATTRIBUTE.unpack_from
_KIND_MASK: Final = 0x3FFF  # without the flags of nested attributes and of byte order


class Message(NamedTuple):
    """A message as it came; `flags` are NLM_F_..., `number` is that of the request it answers."""

    type: int
    flags: int
    number: int
    payload: bytes


def pack(kind: int, flags: int, number: int, body: bytes) -> bytes:
    """A message for the kernel."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, number, 0) + body


def messages(data: bytes) -> Iterator[Message]:
    """The messages in a datagram."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, flags, number, _ = HEADER.unpack_from(data, offset)
        yield Message(kind, flags, number, data[offset + HEADER.size : offset + length])
        offset += (length + 3) & ~3


def attributes(
    data: bytes, offset: int = 0, before: Container[int] = (), only: Container[int] | None = None
) -> dict[int, bytes]:
    """Netlink attributes by type, without their flags: from `offset` to the first of the types `before`.

    With `only`, just those of the types in it: what is not taken out costs half.
    """
    found, last = {}, len(data) - _HEADER_BYTES
    while offset <= last:
        length, kind = _unpack_header(data, offset)
        kind &= _KIND_MASK
        if length < _HEADER_BYTES or kind in before:
            break
        if only is None or kind in only:
            found[kind] = data[offset + _HEADER_BYTES : offset + length]
        offset += (length + 3) & ~3
    return found


def attribute(kind: int, payload: bytes) -> bytes:
    """One netlink attribute."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)
