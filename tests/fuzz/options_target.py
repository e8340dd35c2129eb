"""Properties of `options.decode` for any bytes, with `scapy_layers`, written from the same RFCs, as the oracle."""

from __future__ import annotations

from scapy.layers.inet import TCP

from mptcp_lab.scapy_layers import (
    NAME,
    AddAddrOption,
    MpCapableOption,
    MpFailOption,
    MpFastcloseOption,
    MpJoinAckOption,
    MpJoinSynAckOption,
    MpJoinSynOption,
    MpPrioOption,
    MptcpOption,
    MpTcpRstOption,
    RemoveAddrOption,
)
from mptcp_sniffer.options import (
    AddAddr,
    MpCapable,
    MpFail,
    MpFastclose,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MpPrio,
    MpTcpRst,
    Option,
    RemoveAddr,
    decode,
)

_TCP_FIXED_BYTES = 20
_ANY_HMAC = b"hmachmac"


def check(data: bytes) -> None:
    """Decode `data`: the TCP flags in the first byte, then the options."""
    flags, raw = data[:1].ljust(1, b"\0")[0], data[1:]
    options, malformed = decode(raw, flags)
    assert 0 <= malformed + len(options) <= len(raw)
    for option in options:
        again = on_the_wire(layer_of(option))
        assert decode(again, flags) == ((option,), 0), f"{option} became {again.hex()}"


def layer_of(option: Option) -> MptcpOption:
    """The Scapy layer of a decoded option."""
    match option:
        case MpCapable(version, sender_key, receiver_key):
            return MpCapableOption(version=version, sender_key=sender_key, receiver_key=receiver_key)
        case MpJoinSyn(backup, address_id, token, nonce):
            return MpJoinSynOption(
                backup=backup, address_id=address_id, receiver_token=token, sender_random_number=nonce
            )
        case MpJoinSynAck(backup, address_id, hmac, nonce):
            return MpJoinSynAckOption(
                backup=backup, address_id=address_id, sender_truncated_hmac=hmac, sender_random_number=nonce
            )
        case MpJoinAck(hmac):
            return MpJoinAckOption(sender_hmac=hmac)
        case AddAddr(address_id, address, port, echo):
            proof = None if echo else _ANY_HMAC
            return AddAddrOption(echo=echo, address_id=address_id, address=address, port=port, truncated_hmac=proof)
        case RemoveAddr(address_ids):
            return RemoveAddrOption(address_ids=list(address_ids))
        case MpPrio(backup, address_id):
            return MpPrioOption(backup=backup, address_id=address_id)
        case MpFail(data_sequence):
            return MpFailOption(data_sequence_number=data_sequence)
        case MpFastclose(receiver_key):
            return MpFastcloseOption(receiver_key=receiver_key)
        case MpTcpRst(transient, reason):
            return MpTcpRstOption(flags="T" if transient else 0, reason=reason)


def on_the_wire(layer: MptcpOption) -> bytes:
    """The options of a TCP header that Scapy builds from this layer."""
    return bytes(TCP(options=[(NAME, layer)]))[_TCP_FIXED_BYTES:]
