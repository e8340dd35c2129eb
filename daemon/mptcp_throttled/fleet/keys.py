"""The names under which totals are at the server, and the field that each proxy writes there.

There is one hash for each budget, client and period: each proxy writes one field of it. No command names two hashes, so
a cluster can spread them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from mptcp_throttled.vocabulary.fleet import OwnTotal

PREFIX: Final = "mptcp-throttle"
PROXIES: Final = f"{PREFIX}:proxies".encode()
"""The hash of the proxies themselves: what each reports (`reports`)."""

MAX_FIELDS: Final = 128
"""Of a hash: 50 proxies, and ledgers that some of them have lost."""

_SECRET_CHARACTERS: Final = range(16, 65)  # blake2b takes 64 bytes
_DIGEST_BYTES: Final = 16


def checked_secret(text: str) -> bytes:
    """The secret of keyed hashes. Raises ValueError with what is allowed."""
    secret = text.encode()
    if len(secret) not in _SECRET_CHARACTERS:
        raise ValueError(f"has {len(secret)} characters; allowed: {_SECRET_CHARACTERS[0]} to {_SECRET_CHARACTERS[-1]}")
    return secret


def name_of(total: OwnTotal, secret: bytes | None) -> bytes:
    """Of the hash of a total: with a `secret`, only who has it can tell whose it is; None: it says so."""
    # The seconds of the period's start: proxies with different time zones have different periods.
    period = f"{PREFIX}:used:{int(total.period.start)}"
    subject = "" if total.subject is None else total.subject
    whose = f"{total.key.owner}:{total.key.budget.replace(' ', '-')}:{subject}"
    if secret is None:
        return f"{period}:{whose}".encode()
    # With the period, so that the server cannot tell whether two periods have the same client.
    digest = blake2b(f"{int(total.period.start)}:{whose}".encode(), key=secret, digest_size=_DIGEST_BYTES)
    return f"{period}:{digest.hexdigest()}".encode()


def field_of(proxy: str, ledger: str) -> str:
    """The field that a proxy writes in each hash: its name, and the identifier of its ledger.

    A ledger that is lost begins with another identifier. What the lost one has published stays, and counts.
    """
    return f"{proxy}.{ledger}"
