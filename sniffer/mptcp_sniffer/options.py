"""Decodes MPTCP options: RFC 8684 (version 1) and RFC 6824 (version 0).

Part of the hot path. Lengths are those of the RFCs and of Linux (net/mptcp/protocol.h, TCPOLEN_MPTCP_*). As in Linux
(net/mptcp/options.c), a malformed MPTCP option is skipped, and a TCP option that exceeds the header ends the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from mptcp_sniffer.segment import Flag, Malformed

KIND: Final = 30
"""The TCP option kind assigned to MPTCP (RFC 8684, section 8.1)."""

KIND_END: Final = 0
KIND_NOP: Final = 1

_SUPPORTED_VERSIONS: Final = frozenset({0, 1})
_EXTENSIBILITY: Final = 0x40  # flag B
_CRYPTO_HMAC: Final = 0x01  # flag H: SHA-1 in version 0, SHA-256 in version 1
_BACKUP: Final = 0x01
_ECHO: Final = 0x01
_HMAC_BYTES: Final = 8
_APPENDED_PRIORITY: Final = bytes([1, 30, 3])  # NOP; kind, and length with the byte that follows
_MAX_REMOVED_ADDRESSES: Final = 8  # net/mptcp/protocol.h, MPTCP_RM_IDS_MAX


class Subtype(IntEnum):
    """Upper four bits of the option's third byte (RFC 8684, section 8.2)."""

    MP_CAPABLE = 0x0
    MP_JOIN = 0x1
    DSS = 0x2
    ADD_ADDR = 0x3
    REMOVE_ADDR = 0x4
    MP_PRIO = 0x5
    MP_FAIL = 0x6
    MP_FASTCLOSE = 0x7
    MP_TCPRST = 0x8


class MpCapable(NamedTuple):
    """MP_CAPABLE opens a connection; the keys are None where the version and segment do not carry them."""

    version: int
    sender_key: bytes | None
    receiver_key: bytes | None


class MpJoinSyn(NamedTuple):
    """MP_JOIN of a SYN: the request to add a subflow to the connection with this token."""

    backup: bool
    address_id: int
    token: int
    nonce: bytes


class MpJoinSynAck(NamedTuple):
    """MP_JOIN of a SYN/ACK: authenticates the proxy with the leftmost 8 bytes of its HMAC."""

    backup: bool
    address_id: int
    hmac: bytes
    nonce: bytes


class MpJoinAck(NamedTuple):
    """MP_JOIN of the third ACK: authenticates the client with the leftmost 20 bytes of its HMAC."""

    hmac: bytes


class AddAddr(NamedTuple):
    """ADD_ADDR offers an address to the peer, or confirms (`echo`) the offer of the peer."""

    address_id: int
    address: IPv4Address | IPv6Address
    port: int | None
    echo: bool


class RemoveAddr(NamedTuple):
    """REMOVE_ADDR: the sender has lost the addresses with these ids."""

    address_ids: tuple[int, ...]


class MpPrio(NamedTuple):
    """MP_PRIO changes the backup flag of the subflow it travels on, or (version 0) of the sender's address id."""

    backup: bool
    address_id: int | None


class MpFail(NamedTuple):
    """MP_FAIL: a checksum failed at this data sequence number; a lone subflow falls back to TCP."""

    data_sequence: int


class MpFastclose(NamedTuple):
    """MP_FASTCLOSE ends the connection at once; `receiver_key` authenticates the sender."""

    receiver_key: bytes


class MpTcpRst(NamedTuple):
    """MP_TCPRST: why a subflow is reset (RFC 8684, section 3.6)."""

    transient: bool
    reason: int


Option = (
    MpCapable | MpJoinSyn | MpJoinSynAck | MpJoinAck | AddAddr | RemoveAddr | MpPrio | MpFail | MpFastclose | MpTcpRst
)


class Decoded(NamedTuple):
    """The MPTCP options of a segment in order, without DSS and unknown options, and how many were malformed."""

    options: tuple[Option, ...]
    malformed: int


def decode(options: bytes, flags: int) -> Decoded:
    """The MPTCP options among the raw TCP `options` of a segment with these TCP flags. Never raises."""
    decoded: list[Option] = []
    malformed = 0
    try:
        for body in mptcp_options(options):
            try:
                option = _decode_body(body, flags)
            except Malformed:
                malformed += 1
                continue
            if option is not None:
                decoded.append(option)
    except Malformed:
        malformed += 1
    return Decoded(tuple(decoded), malformed)


def without_appended_priority(options: bytes) -> bytes:
    """Raw TCP `options` of the proxy without the MP_PRIO that the daemon's program for uplinks appends.

    That one has a NOP in front of it; the kernel puts a NOP behind its own (net/mptcp/options.c, mptcp_write_options).
    """
    is_appended = options[-4:-1] == _APPENDED_PRIORITY and options[-1] >> 4 == Subtype.MP_PRIO
    return options[:-4] if is_appended else options


def mptcp_options(options: bytes) -> Iterator[bytes]:
    """The bodies (after kind and length) of all options of kind 30. Raises Malformed."""
    offset, end = 0, len(options)
    while offset < end and (kind := options[offset]) != KIND_END:
        if kind == KIND_NOP:
            offset += 1
            continue
        length = options[offset + 1] if offset + 1 < end else 0
        following = offset + length
        if length < 2 or following > end:
            raise Malformed(f"TCP option of length {length} with {end - offset} bytes left")
        if kind == KIND:
            yield options[offset + 2 : following]
        offset = following


def _decode_body(body: bytes, flags: int) -> Option | None:
    if not body:
        raise Malformed("MPTCP option without a subtype")
    decoder = _DECODERS.get(body[0] >> 4)
    return None if decoder is None else decoder(body, flags)


def _require(body: bytes, *lengths: int) -> None:
    if len(body) not in lengths:
        raise Malformed(f"MPTCP option of subtype {body[0] >> 4} with {len(body) + 2} bytes")


def _capable(body: bytes, flags: int) -> MpCapable | None:
    version = body[0] & 0x0F
    if version not in _SUPPORTED_VERSIONS:
        return None
    if not flags & Flag.SYN:
        # Version 1 may add the length of the data in the segment, and then a checksum (RFC 8684, section 3.1).
        _require(body, 18, 20, 22) if version else _require(body, 18)
    elif flags & Flag.ACK or version == 0:
        _require(body, 10)
    else:
        # Version 1 moved the client's key from the SYN to the third ACK.
        _require(body, 2)
    if body[1] & _EXTENSIBILITY or not body[1] & _CRYPTO_HMAC:
        return None  # to be ignored (same section): the extension, or the algorithm of the token, is not known
    return MpCapable(version, body[2:10] or None, body[10:18] or None)


def _join(body: bytes, flags: int) -> MpJoinSyn | MpJoinSynAck | MpJoinAck:
    backup = bool(body[0] & _BACKUP)
    if not flags & Flag.SYN:
        _require(body, 22)
        return MpJoinAck(body[2:])
    if flags & Flag.ACK:
        _require(body, 14)
        return MpJoinSynAck(backup, body[1], body[2:10], body[10:])
    _require(body, 10)
    return MpJoinSyn(backup, body[1], int.from_bytes(body[2:6]), body[6:])


def _add_addr(body: bytes, _flags: int) -> AddAddr:
    # Version 1 has an HMAC unless it is an echo; version 0 has no HMAC, and the IP version in place of flags.
    _require(body, *(2 + address + port + hmac for address in (4, 16) for port in (0, 2) for hmac in (0, 8)))
    rest = body[2:]
    address = IPv4Address(rest[:4]) if len(rest) < 16 else IPv6Address(rest[:16])
    rest = rest[len(address.packed) :]
    echo, has_hmac = bool(body[0] & _ECHO), len(rest) >= _HMAC_BYTES
    is_version_0 = body[0] & 0x0F == address.version
    if echo == has_hmac and not is_version_0:
        raise Malformed(f"ADD_ADDR of {len(body) + 2} bytes with flags {body[0] & 0x0F:#x}")
    port = rest[:2] if len(rest) % _HMAC_BYTES else b""
    return AddAddr(body[1], address, int.from_bytes(port) if port else None, echo)


def _remove_addr(body: bytes, _flags: int) -> RemoveAddr:
    _require(body, *range(2, 2 + _MAX_REMOVED_ADDRESSES))
    return RemoveAddr(tuple(body[1:]))


def _prio(body: bytes, _flags: int) -> MpPrio:
    _require(body, 1, 2)
    return MpPrio(bool(body[0] & _BACKUP), body[1] if len(body) == 2 else None)


def _fail(body: bytes, _flags: int) -> MpFail:
    _require(body, 10)
    return MpFail(int.from_bytes(body[2:]))


def _fastclose(body: bytes, _flags: int) -> MpFastclose:
    _require(body, 10)
    return MpFastclose(body[2:])


def _tcprst(body: bytes, _flags: int) -> MpTcpRst:
    _require(body, 2)
    return MpTcpRst(bool(body[0] & 0x01), body[1])


_DECODERS: Final[dict[int, Callable[[bytes, int], Option | None]]] = {
    Subtype.MP_CAPABLE: _capable,
    Subtype.MP_JOIN: _join,
    Subtype.ADD_ADDR: _add_addr,
    Subtype.REMOVE_ADDR: _remove_addr,
    Subtype.MP_PRIO: _prio,
    Subtype.MP_FAIL: _fail,
    Subtype.MP_FASTCLOSE: _fastclose,
    Subtype.MP_TCPRST: _tcprst,
}
