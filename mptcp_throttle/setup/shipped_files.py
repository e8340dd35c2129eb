"""The files of the package as installed: what differs from them has been edited."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_DIRECTORY: Final = Path(__file__).parent / "shipped"

MAIN_FILE: Final = "mptcp-throttle.yaml"
NETWORK_FILES: Final = ("lte.yaml", "wifi.yaml")
SQUID_SERVICE: Final = "squid-service.conf"
SQUID_UPLOADS: Final = "squid-uploads.conf"


def shipped(name: str) -> str:
    """The text of one of these files."""
    return (_DIRECTORY / name).read_text(encoding="utf-8")
