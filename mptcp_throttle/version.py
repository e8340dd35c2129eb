"""The version of all our programs: they are installed together."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata


@lru_cache
def version() -> str:
    """That of the installed package."""
    return metadata.version("mptcp-throttle")
