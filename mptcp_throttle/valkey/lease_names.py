"""Where proxies that share rates are at the server: the hash with all their names, and that of each."""

from __future__ import annotations

from typing import Final

NAMES: Final = b"mptcp-throttle:leases"
"""Each proxy adds its own name, and has no right to remove one: it could hide the others, and take their parts."""

RECORD: Final = b"record"
"""In the hash of a proxy what it says of itself, while it shares rates and for 10 min after."""


def hash_of(proxy: str) -> bytes:
    """The name of the hash that only this proxy writes."""
    return f"mptcp-throttle:lease:{proxy}:stated".encode()
