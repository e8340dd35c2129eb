"""Tokens and HMACs that authenticate the handshakes (RFC 8684 and RFC 6824, sections 3.1 and 3.2)."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NamedTuple

from mptcp_sniffer.options import MpJoinAck, MpJoinSyn, MpJoinSynAck
from mptcp_throttle.model import Token

_HASHES: Final = {0: "sha1", 1: "sha256"}


class Keys(NamedTuple):
    """The keys that client and proxy exchanged when they opened a connection."""

    version: int
    client: bytes
    proxy: bytes


def token_of(version: int, key: bytes) -> Token:
    """The token of the connection whose proxy has this key: the most significant 32 bits of its hash."""
    return Token(int.from_bytes(hashlib.new(_HASHES[version], key).digest()[:4]))


def is_client_hmac(keys: Keys, syn: MpJoinSyn, synack: MpJoinSynAck, ack: MpJoinAck) -> bool:
    """Whether the third ACK of a JOIN comes from the client that opened the connection (HMAC-A)."""
    expected = _hmac(keys.version, keys.client + keys.proxy, syn.nonce + synack.nonce)
    return hmac.compare_digest(expected[: len(ack.hmac)], ack.hmac)


def is_proxy_hmac(keys: Keys, syn: MpJoinSyn, synack: MpJoinSynAck) -> bool:
    """Whether the SYN/ACK of a JOIN comes from the proxy of the connection (HMAC-B, truncated)."""
    expected = _hmac(keys.version, keys.proxy + keys.client, synack.nonce + syn.nonce)
    return hmac.compare_digest(expected[: len(synack.hmac)], synack.hmac)


def _hmac(version: int, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, _HASHES[version])
