"""Properties of `options.decode` for any bytes, with `scapy_layers`, written from the same RFCs, as the oracle."""

from __future__ import annotations

from scapy.layers.inet import TCP

from mptcp_lab import scapy_layers as layers
from mptcp_sniffer import options

_TCP_FIXED_BYTES = 20
_ANY_HMAC = b"hmachmac"


def check(data: bytes) -> None:
    """Decode `data`: the TCP flags in the first byte, then the options."""
    flags, raw = data[:1].ljust(1, b"\0")[0], data[1:]
    decoded, malformed = options.decode(raw, flags)
    assert 0 <= malformed + len(decoded) <= len(raw)
    for option in decoded:
        again = on_the_wire(layer_of(option))
        assert options.decode(again, flags) == ((option,), 0), f"{option} became {again.hex()}"


def layer_of(option: options.Option) -> layers.MptcpOption:
    """The Scapy layer of a decoded option."""
    match option:
        case options.MpCapable(version, sender_key, receiver_key):
            return layers.MpCapableOption(version=version, sender_key=sender_key, receiver_key=receiver_key)
        case options.MpJoinSyn(backup, address_id, token, nonce):
            return layers.MpJoinSynOption(
                backup=backup, address_id=address_id, receiver_token=token, sender_random_number=nonce
            )
        case options.MpJoinSynAck(backup, address_id, hmac, nonce):
            return layers.MpJoinSynAckOption(
                backup=backup, address_id=address_id, sender_truncated_hmac=hmac, sender_random_number=nonce
            )
        case options.MpJoinAck(hmac):
            return layers.MpJoinAckOption(sender_hmac=hmac)
        case options.AddAddr(address_id, address, port, echo):
            proof = None if echo else _ANY_HMAC
            return layers.AddAddrOption(
                echo=echo, address_id=address_id, address=address, port=port, truncated_hmac=proof
            )
        case options.RemoveAddr(address_ids):
            return layers.RemoveAddrOption(address_ids=list(address_ids))
        case options.MpPrio(backup, address_id):
            return layers.MpPrioOption(backup=backup, address_id=address_id)
        case options.MpFail(data_sequence):
            return layers.MpFailOption(data_sequence_number=data_sequence)
        case options.MpFastclose(receiver_key):
            return layers.MpFastcloseOption(receiver_key=receiver_key)
        case options.MpTcpRst(transient, reason):
            return layers.MpTcpRstOption(flags="T" if transient else 0, reason=reason)


def on_the_wire(layer: layers.MptcpOption) -> bytes:
    """The options of a TCP header that Scapy builds from this layer."""
    return bytes(TCP(options=[(layers.NAME, layer)]))[_TCP_FIXED_BYTES:]
