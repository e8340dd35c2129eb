"""The control group: a share of connections, by a keyed hash of their tokens, whose downloads have no cap.

The kernel programs decide alone whether a connection is in it (`kernel/bpf/control_group.h`), by the same hash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.model import Token

KEY_BYTES: Final = 16

_HASHES: Final = 2**32
_WORD: Final = 2**64 - 1
_KEY: Final = Struct("<QQ")
_BLOCK: Final = Struct("<Q")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control group: a `share` of all connections, as a fraction of 1; `key` decides which."""

    share: float = 0.0
    key: bytes = field(default=bytes(KEY_BYTES), repr=False)

    @property
    def bound(self) -> int:
        """A connection is in the group if the lowest 32 bits of its hash are below this."""
        return round(self.share * _HASHES)

    def has(self, token: Token) -> bool:
        """Whether a connection is in the group."""
        bound = self.bound
        return bound > 0 and siphash(self.key, token.to_bytes(4, "little")) % _HASHES < bound


NO_CONTROL_GROUP: Final = ControlGroup()


class EndedConnection(NamedTuple):
    """A connection whose last subflow has closed.

    It took `seconds` from its beginning to the last data that the client has acknowledged; 0: there was none. `sent`
    are bytes of payload, of which `sent_with_cap` over networks with a cap.
    """

    token: Token
    is_control: bool
    seconds: float
    sent: int
    sent_with_cap: int


def siphash(key: bytes, message: bytes) -> int:
    """SipHash-2-4 of a message with a key of 16 bytes (Aumasson and Bernstein, 2012)."""
    k0, k1 = _KEY.unpack(key)
    state = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    padding = bytes(-(len(message) + 1) % _BLOCK.size)
    for (block,) in _BLOCK.iter_unpack(message + padding + bytes([len(message) % 256])):
        v0, v1, v2, v3 = _rounds(2, state[0], state[1], state[2], state[3] ^ block)
        state = v0 ^ block, v1, v2, v3
    v0, v1, v2, v3 = _rounds(4, state[0], state[1], state[2] ^ 0xFF, state[3])
    return v0 ^ v1 ^ v2 ^ v3


def _rounds(number: int, v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    for _ in range(number):
        # Rotations by 13, 16, 32, 17, 21 and 32 bits, not as a function: a whole table is decided at once.
        v0, v2 = (v0 + v1) & _WORD, (v2 + v3) & _WORD
        v1 = (v1 << 13 & _WORD | v1 >> 51) ^ v0
        v3 = (v3 << 16 & _WORD | v3 >> 48) ^ v2
        v0 = ((v0 << 32 & _WORD | v0 >> 32) + v3) & _WORD
        v2 = (v2 + v1) & _WORD
        v1 = (v1 << 17 & _WORD | v1 >> 47) ^ v2
        v3 = (v3 << 21 & _WORD | v3 >> 43) ^ v0
        v2 = v2 << 32 & _WORD | v2 >> 32
    return v0, v1, v2, v3
