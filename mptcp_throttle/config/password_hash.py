"""The hash of a log-in password: reading it in a configuration file is not enough to log in."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final, Self

_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
# RFC 7914, section 2: 16 MB of memory and some tens of milliseconds.
_COST: Final = {"n": 2**14, "r": 8, "p": 1}


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A salt, and the scrypt hash (RFC 7914) of a password with it."""

    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: str) -> Self:
        """With a new salt."""
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(salt, _hash(password, salt))

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `scrypt:SALT:HASH`. Raises ValueError."""
        match = re.fullmatch(rf"scrypt:([0-9a-f]{{{2 * _SALT_BYTES}}}):([0-9a-f]{{{2 * _HASH_BYTES}}})", text, re.ASCII)
        if match is None:
            raise ValueError("allowed: a hash that `mptcp-throttle-web --new-password` has printed, or null")
        return cls(bytes.fromhex(match[1]), bytes.fromhex(match[2]))

    def matches(self, password: str) -> bool:
        """Whether it is the hash of this password; takes some tens of milliseconds."""
        return hmac.compare_digest(self.digest, _hash(password, self.salt))

    def __str__(self) -> str:
        return f"scrypt:{self.salt.hex()}:{self.digest.hex()}"


def _hash(password: str, salt: bytes) -> bytes:
    # JSON can carry half of a surrogate pair.
    return hashlib.scrypt(password.encode(errors="surrogatepass"), salt=salt, dklen=_HASH_BYTES, **_COST)
