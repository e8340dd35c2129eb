"""The files of the package as installed: what differs from them has been edited."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

MAIN_FILE: Final = "mptcp-throttle.yaml"
NETWORK_FILES: Final = ("lte.yaml", "wifi.yaml")
SQUID_SERVICE: Final = "squid-service.conf"
SQUID_UPLOADS: Final = "squid-uploads.conf"


def shipped(name: str) -> str:
    """The text of one of these files."""
    return files("mptcp_throttle.setup").joinpath("shipped", name).read_text(encoding="utf-8")
