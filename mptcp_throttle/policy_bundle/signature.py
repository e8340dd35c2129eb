"""The signature of a policy: Ed25519 (RFC 8032). Whoever publishes has the private key, each proxy the public one.

So neither the server nor a proxy can make a policy that another proxy adopts.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from mptcp_throttle.durable_file import synchronise
from mptcp_throttle.errors import UserError
from mptcp_throttle.policy_bundle.bundle import MAX_ENCODED, Bundle

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_PURPOSE: Final = b"mptcp-throttle policy 1\n"
"""It is signed, too, so that no signature for another purpose, made with the same key, is one for a policy."""

_HEADER: Final = len(_PURPOSE) + len(base64.b64encode(bytes(_SIGNATURE_BYTES))) + 1
MAX_SIGNED: Final = _HEADER + MAX_ENCODED
_MOST_KEY_FILE_BYTES: Final = 10_000


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The key with which a proxy checks signatures; as text, 44 characters of Base64."""

    content: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """From that text. Raises ValueError."""
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            content = b""
        if len(content) != _KEY_BYTES:
            raise ValueError("is no public key; allowed: the 44 characters that `mptcp-throttle fleet new-key` prints")
        return cls(content)

    def has_signed(self, signature: bytes, content: bytes) -> bool:
        """Whether the signature is that of the private key for this content. Raises UserError without the library."""
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        except ImportError as error:
            raise _missing_library() from error
        try:
            Ed25519PublicKey.from_public_bytes(self.content).verify(signature, content)
        except InvalidSignature:
            return False
        return True

    def __str__(self) -> str:
        return base64.b64encode(self.content).decode("ascii")


class PrivateKey:
    """The key with which a publisher signs: a file in PEM (PKCS #8), as `openssl genpkey -algorithm ed25519` makes."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def new(cls) -> Self:
        """A new one. Raises UserError without the library."""
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ImportError as error:
            raise _missing_library() from error
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> Self:
        """The key in a file that only its owner can read. Raises UserError."""
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as error:
            raise _missing_library() from error
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(_MOST_KEY_FILE_BYTES)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}", os.EX_NOPERM) from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(f"{path}: others than its owner may use it; allowed: `chmod 600 {path}`", os.EX_NOPERM)
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: is no private key without a password; allowed: one in PEM") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise UserError(f"{path}: is a private key of another kind; allowed: Ed25519")
        return cls(key)

    def write(self, path: Path) -> None:
        """Keep it in a new file that only its owner can read. Raises UserError, also if there is such a file."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        content = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with open(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                path.unlink(missing_ok=True)  # it would be in the way of the next attempt
                raise
            synchronise(path.parent)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}", os.EX_NOPERM) from error

    @property
    def public(self) -> PublicKey:
        """Its public key."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, bundle: Bundle) -> bytes:
        """The bundle with its signature: the purpose, the signature in Base64, a line end, and the encoded bundle."""
        content = bundle.encode()
        signature = base64.b64encode(self._key.sign(_PURPOSE + content))
        return _PURPOSE + signature + b"\n" + content


def checked(signed: bytes, keys: Sequence[PublicKey], fleet: str) -> Bundle:
    """The bundle for this fleet that the private key of one of these has signed.

    Nothing of it is parsed before that is proved. Raises ValueError with the reason if it is none.
    """
    if len(signed) > MAX_SIGNED:
        raise ValueError(f"has {len(signed)} bytes; allowed: up to {MAX_SIGNED}")
    header, content = signed[:_HEADER], signed[_HEADER:]
    if not header.startswith(_PURPOSE) or not header.endswith(b"\n") or len(header) != _HEADER:
        raise ValueError("is no signed policy")
    try:
        signature = base64.b64decode(header[len(_PURPOSE) : -1], validate=True)
    except binascii.Error as error:
        raise ValueError("is no signed policy") from error
    if not any(key.has_signed(signature, _PURPOSE + content) for key in keys):
        raise ValueError("is not signed with a key of fleet.policy.keys")
    bundle = Bundle.decode(content)
    if bundle.fleet != fleet:
        raise ValueError(f"is for fleet {bundle.fleet}; allowed: {fleet}")
    return bundle


def require_library() -> None:
    """Raise UserError if signatures cannot be checked here."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        raise _missing_library() from error


def _missing_library() -> UserError:
    return UserError("policies of a fleet need the Python package cryptography", os.EX_UNAVAILABLE)
