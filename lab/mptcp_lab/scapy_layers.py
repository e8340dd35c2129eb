"""MPTCP options (RFC 8684 and RFC 6824) as Scapy layers, for building, dissecting and display.

Importing this module adds option kind 30 to Scapy's TCP layer, as Scapy's contributed layers do:

    >>> TCP(flags="S", options=[("MPTCP", MpJoinSynOption(receiver_token=0x613A7ED5, address_id=2))])
    >>> sniff(filter="tcp", prn=lambda packet: packet.show())

The length of an option decides which form of its subtype it is. Unknown and malformed options stay `(30, bytes)`, and
such tuples can be built as before. The sniffer decodes with the faster `mptcp_sniffer.options`; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, ClassVar, Final

from scapy import fields
from scapy.layers.inet import TCP, TCPerror, TCPOptionsField
from scapy.packet import Packet

from mptcp_sniffer.options import KIND, Subtype

NAME: Final = "MPTCP"
"""The name of kind 30 in `TCP.options`."""

_RESET_REASONS: Final = {
    0: "unspecified",
    1: "MPTCP-specific",
    2: "lack of resources",
    3: "administratively prohibited",
    4: "too much outstanding data",
    5: "unacceptable performance",
    6: "middlebox interference",
}
"""RFC 8684, section 3.6."""


class _OptionalField(fields.ConditionalField):  # type: ignore[misc]
    """A field that is built unless it is None, and dissected if the number of bytes left implies it."""

    def __init__(self, field: Any, is_there: Callable[[int], bool] = bool) -> None:  # noqa: ANN401
        super().__init__(field, lambda packet: packet.getfieldval(field.name) is not None)
        self._is_there = is_there

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Any]:
        return self.fld.getfield(pkt, s) if self._is_there(len(s)) else (s, None)


class _AddressField(fields.Field):  # type: ignore[misc]
    """An IPv6 address if at least 16 bytes are left, else an IPv4 address."""

    def any2i(self, _pkt: Packet | None, x: str | IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
        return ip_address(x)

    def i2repr(self, _pkt: Packet | None, x: IPv4Address | IPv6Address) -> str:
        return str(x)

    def addfield(self, _pkt: Packet, s: bytes, val: IPv4Address | IPv6Address) -> bytes:
        return s + val.packed

    def getfield(self, _pkt: Packet, s: bytes) -> tuple[bytes, IPv4Address | IPv6Address]:
        size = 16 if len(s) >= 16 else 4
        return s[size:], ip_address(s[:size])


def _subtype(value: Subtype) -> fields.Field:
    return fields.BitEnumField("subtype", value, 4, {subtype.value: subtype.name for subtype in Subtype})


def _wide(name: str, present: str, eight_bytes: str) -> fields.Field:
    """A number of the DSS option: present if one flag is set, with 8 instead of 4 bytes if a second flag is."""
    return fields.ConditionalField(
        fields.MultipleTypeField(
            [(fields.LongField(name, 0), lambda dss: eight_bytes in dss.flags)], fields.IntField(name, 0)
        ),
        lambda dss: present in dss.flags,
    )


class MptcpOption(Packet):  # type: ignore[misc]
    """An option without kind and length. `lengths` are its possible lengths in bytes."""

    lengths: ClassVar[tuple[int, ...]]

    @classmethod
    def fits(cls, body: bytes) -> bool:
        """Whether `body`, of the right subtype, has this form."""
        return len(body) in cls.lengths


class MpCapableOption(MptcpOption):
    """RFC 8684, section 3.1: without a key (SYN), with one key (SYN of version 0, SYN/ACK) or two (ACK)."""

    name = "MP_CAPABLE"
    lengths = (2, 10, 18, 20, 22)
    fields_desc: ClassVar = [
        _subtype(Subtype.MP_CAPABLE),
        fields.BitField("version", 1, 4),
        fields.FlagsField("flags", "H", 8, "HGFEDCBA"),
        _OptionalField(fields.XStrFixedLenField("sender_key", None, 8)),
        _OptionalField(fields.XStrFixedLenField("receiver_key", None, 8)),
        _OptionalField(fields.ShortField("data_level_length", None)),
        _OptionalField(fields.XShortField("checksum", None)),
    ]

    @classmethod
    def fits(cls, body: bytes) -> bool:
        """By length, and for versions 0 and 1 only."""
        return super().fits(body) and body[0] & 0x0F in (0, 1)


class MpJoinSynOption(MptcpOption):
    """RFC 8684, section 3.2, figure 5."""

    name = "MP_JOIN of a SYN"
    lengths = (10,)
    fields_desc: ClassVar = [
        _subtype(Subtype.MP_JOIN),
        fields.BitField("reserved", 0, 3),
        fields.BitField("backup", 0, 1),
        fields.ByteField("address_id", 0),
        fields.XIntField("receiver_token", 0),
        fields.XStrFixedLenField("sender_random_number", bytes(4), 4),
    ]


class MpJoinSynAckOption(MptcpOption):
    """RFC 8684, section 3.2, figure 6."""

    name = "MP_JOIN of a SYN/ACK"
    lengths = (14,)
    fields_desc: ClassVar = [
        _subtype(Subtype.MP_JOIN),
        fields.BitField("reserved", 0, 3),
        fields.BitField("backup", 0, 1),
        fields.ByteField("address_id", 0),
        fields.XStrFixedLenField("sender_truncated_hmac", bytes(8), 8),
        fields.XStrFixedLenField("sender_random_number", bytes(4), 4),
    ]


class MpJoinAckOption(MptcpOption):
    """RFC 8684, section 3.2, figure 7."""

    name = "MP_JOIN of an ACK"
    lengths = (22,)
    fields_desc: ClassVar = [
        _subtype(Subtype.MP_JOIN),
        fields.BitField("reserved", 0, 12),
        fields.XStrFixedLenField("sender_hmac", bytes(20), 20),
    ]


class DssOption(MptcpOption):
    """RFC 8684, section 3.3. Flags: A data ACK, a with 8 bytes; M mapping, m with a DSN of 8 bytes; F DATA_FIN."""

    name = "DSS"
    fields_desc: ClassVar = [
        _subtype(Subtype.DSS),
        fields.BitField("reserved", 0, 7),
        fields.FlagsField("flags", 0, 5, "AaMmF"),
        _wide("data_ack", "A", "a"),
        _wide("data_sequence_number", "M", "m"),
        fields.ConditionalField(fields.IntField("subflow_sequence_number", 0), lambda dss: "M" in dss.flags),
        fields.ConditionalField(fields.ShortField("data_level_length", 0), lambda dss: "M" in dss.flags),
        _OptionalField(fields.XShortField("checksum", None)),
    ]

    @classmethod
    def fits(cls, body: bytes) -> bool:
        """By its flags, with or without a checksum; like Linux, even if there is no mapping to check."""
        if len(body) < 2:
            return False
        has_ack, ack8, has_map, dsn8 = (bool(body[1] & bit) for bit in (0x01, 0x02, 0x04, 0x08))
        length = 2 + has_ack * (8 if ack8 else 4) + has_map * (14 if dsn8 else 10)
        return len(body) in (length, length + 2)


class AddAddrOption(MptcpOption):
    """RFC 8684, section 3.4.1, version 1: an echo has no HMAC."""

    name = "ADD_ADDR"
    fields_desc: ClassVar = [
        _subtype(Subtype.ADD_ADDR),
        fields.BitField("reserved", 0, 3),
        fields.BitField("echo", 0, 1),
        fields.ByteField("address_id", 0),
        _AddressField("address", IPv4Address(0)),
        _OptionalField(fields.ShortField("port", None), lambda left: left % 8 == 2),
        _OptionalField(fields.XStrFixedLenField("truncated_hmac", None, 8)),
    ]

    @classmethod
    def fits(cls, body: bytes) -> bool:
        """By the echo flag."""
        return len(body) in ((6, 8, 18, 20) if body[0] & 1 else (14, 16, 26, 28))


class AddAddrV0Option(MptcpOption):
    """RFC 6824, section 3.4.1, version 0: with the IP version and without an HMAC."""

    name = "ADD_ADDR of version 0"
    fields_desc: ClassVar = [
        _subtype(Subtype.ADD_ADDR),
        fields.BitField("ipver", 4, 4),
        fields.ByteField("address_id", 0),
        _AddressField("address", IPv4Address(0)),
        _OptionalField(fields.ShortField("port", None)),
    ]

    @classmethod
    def fits(cls, body: bytes) -> bool:
        """By the IP version."""
        return len(body) in {4: (6, 8), 6: (18, 20)}.get(body[0] & 0x0F, ())


class RemoveAddrOption(MptcpOption):
    """RFC 8684, section 3.4.2; Linux accepts up to 8 address ids."""

    name = "REMOVE_ADDR"
    lengths = tuple(range(2, 10))
    fields_desc: ClassVar = [
        _subtype(Subtype.REMOVE_ADDR),
        fields.BitField("reserved", 0, 4),
        fields.FieldListField("address_ids", [], fields.ByteField("", 0)),
    ]


class MpPrioOption(MptcpOption):
    """RFC 8684, section 3.3.8; version 0 may have an address id."""

    name = "MP_PRIO"
    lengths = (1, 2)
    fields_desc: ClassVar = [
        _subtype(Subtype.MP_PRIO),
        fields.BitField("reserved", 0, 3),
        fields.BitField("backup", 0, 1),
        _OptionalField(fields.ByteField("address_id", None)),
    ]


class MpFailOption(MptcpOption):
    """RFC 8684, section 3.7."""

    name = "MP_FAIL"
    lengths = (10,)
    fields_desc: ClassVar = [
        _subtype(Subtype.MP_FAIL),
        fields.BitField("reserved", 0, 12),
        fields.LongField("data_sequence_number", 0),
    ]


class MpFastcloseOption(MptcpOption):
    """RFC 8684, section 3.5."""

    name = "MP_FASTCLOSE"
    lengths = (10,)
    fields_desc: ClassVar = [
        _subtype(Subtype.MP_FASTCLOSE),
        fields.BitField("reserved", 0, 12),
        fields.XStrFixedLenField("receiver_key", bytes(8), 8),
    ]


class MpTcpRstOption(MptcpOption):
    """RFC 8684, section 3.6. Flag T: the condition is transient."""

    name = "MP_TCPRST"
    lengths = (2,)
    fields_desc: ClassVar = [
        _subtype(Subtype.MP_TCPRST),
        fields.FlagsField("flags", 0, 4, "TWVU"),
        fields.ByteEnumField("reason", 0, _RESET_REASONS),
    ]


_FORMS: Final = {
    subtype: tuple(form for form in MptcpOption.__subclasses__() if form.fields_desc[0].default == subtype)
    for subtype in Subtype
}


class _OptionsField(TCPOptionsField):  # type: ignore[misc]
    """Scapy's TCP options with MPTCP."""

    def m2i(self, pkt: Packet, x: bytes) -> list[tuple[str | int, Any]]:
        options: list[tuple[str | int, Any]] = super().m2i(pkt, x)
        # Scapy returns the available bytes of a truncated option; its length byte is greater.
        is_cut_off = bool(options) and options[-1][0] == KIND and x[-len(options[-1][1]) - 1] != len(options[-1][1]) + 2
        whole = len(options) - is_cut_off
        return [_with_layer(*option) for option in options[:whole]] + options[whole:]

    def i2m(self, pkt: Packet, x: list[tuple[str | int, Any]]) -> bytes:
        raw = [(KIND, bytes(value)) if name == NAME else (name, value) for name, value in x]
        return bytes(super().i2m(pkt, raw))


def _with_layer(name: str | int, value: Any) -> tuple[str | int, Any]:  # noqa: ANN401
    if name == KIND and value:
        for form in _FORMS.get(value[0] >> 4, ()):
            if form.fits(value):
                return NAME, form(value)
    return name, value


for _header in (TCP, TCPerror):
    _header.fields_desc[-1] = _OptionsField("options", "")
    # Scapy caches the default fields of a layer at its first packet.
    Packet.class_default_fields.pop(_header, None)
