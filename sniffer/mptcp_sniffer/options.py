"""MPTCP options of the opening segments: MP_CAPABLE and MP_JOIN in SYN and SYN/ACK.

RFC 8684 (version 1) and RFC 6824 (version 0). Lengths are those of the RFCs and of Linux
(net/mptcp/protocol.h, TCPOLEN_MPTCP_*); anything else is malformed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_sniffer.segment import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterator

_KIND_END: Final = 0
_KIND_NOP: Final = 1
_KIND_MPTCP: Final = 30
"""Assigned by IANA to MPTCP (RFC 8684, section 8.1)."""

_SUPPORTED_VERSIONS: Final = frozenset({0, 1})
_KEY_BYTES: Final = 8
_BACKUP_FLAG: Final = 0x01


class Subtype(IntEnum):
    """Upper four bits of the option's third byte (RFC 8684, section 8.2)."""

    MP_CAPABLE = 0x0
    MP_JOIN = 0x1


class MpCapable(NamedTuple):
    """MP_CAPABLE: opens a connection. `key` is the sender's, None where the version does not send it."""

    version: int
    key: bytes | None


class MpJoinSyn(NamedTuple):
    """MP_JOIN of a SYN: asks to add a subflow to the connection with this token."""

    backup: bool
    address_id: int
    token: int


class MpJoinSynAck(NamedTuple):
    """MP_JOIN of a SYN/ACK: the proxy knew the token."""

    backup: bool
    address_id: int


Handshake = MpCapable | MpJoinSyn | MpJoinSynAck


def decode_handshake(options: bytes, *, ack: bool) -> Handshake | None:
    """The MPTCP handshake option of a SYN (`ack` false) or SYN/ACK; None if there is none that we know.

    `options` are the TCP options as raw bytes; the option is found wherever it stands. Raises Malformed for
    wrong lengths and for a segment with several handshake options, which Linux ignores too (net/mptcp/subflow.c).
    """
    found = [
        _decode_capable(body, ack=ack) if body[0] >> 4 == Subtype.MP_CAPABLE else _decode_join(body, ack=ack)
        for body in mptcp_options(options)
        if body[0] >> 4 in (Subtype.MP_CAPABLE, Subtype.MP_JOIN)
    ]
    if len(found) > 1:
        raise Malformed("several MPTCP handshake options in one segment")
    return found[0] if found else None


def mptcp_options(options: bytes) -> Iterator[bytes]:
    """The bodies (after kind and length, never empty) of all options of kind 30. Raises Malformed."""
    offset = 0
    while offset < len(options) and options[offset] != _KIND_END:
        if options[offset] == _KIND_NOP:
            offset += 1
            continue
        length = options[offset + 1] if offset + 1 < len(options) else 0
        if length < 2 or offset + length > len(options):
            raise Malformed(f"TCP option of length {length} with {len(options) - offset} bytes left")
        if options[offset] == _KIND_MPTCP:
            if length == 2:
                raise Malformed("MPTCP option without a subtype")
            yield options[offset + 2 : offset + length]
        offset += length


def _decode_capable(body: bytes, *, ack: bool) -> MpCapable | None:
    version = body[0] & 0x0F
    if version not in _SUPPORTED_VERSIONS:
        return None
    # Version 1 moved the client's key from the SYN to the third ACK (RFC 8684, section 3.1).
    has_key = ack or version == 0
    if len(body) != (2 + _KEY_BYTES if has_key else 2):
        raise Malformed(f"MP_CAPABLE of {len(body) + 2} bytes")
    return MpCapable(version, body[2:] if has_key else None)


def _decode_join(body: bytes, *, ack: bool) -> MpJoinSyn | MpJoinSynAck:
    backup, address_id = bool(body[0] & _BACKUP_FLAG), body[1] if len(body) > 1 else 0
    # flags, address ID, then token and nonce (SYN), or truncated HMAC and nonce (SYN/ACK).
    if len(body) != (14 if ack else 10):
        raise Malformed(f"MP_JOIN of {len(body) + 2} bytes")
    if ack:
        return MpJoinSynAck(backup, address_id)
    return MpJoinSyn(backup, address_id, int.from_bytes(body[2:6]))
