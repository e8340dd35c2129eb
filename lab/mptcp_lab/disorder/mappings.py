"""Where the data of a packet belong in its MPTCP connection (RFC 8684, section 3.3.1)."""

from __future__ import annotations

from typing import Final, NamedTuple

from mptcp_sniffer.options import Subtype, mptcp_options
from mptcp_sniffer.segment import Flag, Malformed

_CAPABLE_WITH_DATA: Final = (20, 22)  # without and with a checksum
# Flags of DSS
_DSS_ACK: Final = 0x01
_DSS_ACK_64: Final = 0x02
_DSS_MAPPING: Final = 0x04
_DSS_SEQUENCE_64: Final = 0x08


class DataMapping(NamedTuple):
    """Where data of a subflow belong in the connection (RFC 8684, section 3.3.1).

    The `length` bytes from `subflow_sequence` on are those from `data_sequence` on; the subflow's first byte has the
    number 1. Of `data_sequence` only the lower `bits` (32 or 64) are known; None: these are the first bytes of the
    connection (section 3.1).
    """

    data_sequence: int | None
    bits: int
    subflow_sequence: int
    length: int


def data_mapping(options: bytes, flags: int) -> DataMapping | None:
    """The mapping of the data in a segment with these raw TCP `options` and TCP flags; None if it has none.

    What is malformed has none, and an infinite mapping, after which the connection is plain TCP, is none.
    """
    try:
        for body in mptcp_options(options):
            subtype = body[0] >> 4 if body else None
            if subtype == Subtype.DSS:
                return _dss_mapping(body)
            if subtype == Subtype.MP_CAPABLE and len(body) in _CAPABLE_WITH_DATA and not flags & Flag.SYN:
                return DataMapping(None, 64, 1, int.from_bytes(body[18:20]))
    except Malformed:
        pass
    return None


def _dss_mapping(body: bytes) -> DataMapping | None:
    """RFC 8684, section 3.3: flags, perhaps an acknowledgment, perhaps a mapping, perhaps a checksum."""
    if len(body) < 2 or not body[1] & _DSS_MAPPING:
        return None
    start = 2
    if body[1] & _DSS_ACK:
        start += 8 if body[1] & _DSS_ACK_64 else 4
    width = 8 if body[1] & _DSS_SEQUENCE_64 else 4
    end = start + width + 6
    if len(body) not in (end, end + 2):
        return None
    sequence, subflow = int.from_bytes(body[start : start + width]), int.from_bytes(body[end - 6 : end - 2])
    length = int.from_bytes(body[end - 2 : end])
    return DataMapping(sequence, 8 * width, subflow, length) if length else None
