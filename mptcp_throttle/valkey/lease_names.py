"""The keys at the server of proxies that share rates: the hash with all their names, and the hash of each."""

from __future__ import annotations

from typing import Final

NAMES: Final = b"mptcp-throttle:leases"
"""Each proxy adds its own name. None has the right to remove a name: it could hide others, and take their parts."""

RECORD: Final = b"record"
"""The field of a proxy's hash with what it says of itself, while it shares rates and for 10 min after."""


def hash_of(proxy: str) -> bytes:
    """The name of the hash that only this proxy writes."""
    return f"mptcp-throttle:lease:{proxy}:stated".encode()
