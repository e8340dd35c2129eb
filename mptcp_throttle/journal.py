"""Lines of the journal with fields: its native protocol (systemd's JOURNAL_NATIVE_PROTOCOL.md), one datagram per line.

Only for lines that have fields. The journal knows the unit of what comes over stderr from the connection, but that of
a datagram from its sender's process, and a program that fails may have ended before the journal looks.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET: Final = Path("/run/systemd/journal/socket")
# Picked arbitrarily: a journal that hangs must not stop the control loop for long.
_SEND_SECONDS: Final = 0.1
# Of a value, in characters: a datagram has to fit into the socket's buffer (net.core.wmem_default, 208 KiB).
_LONGEST: Final = 8192


def is_journal(descriptor: int) -> bool:
    """Whether this file descriptor is the connection to the journal that systemd has made (`JOURNAL_STREAM`)."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def send(fields: Mapping[str, str], path: Path = SOCKET) -> bool:
    """Send a line with these fields, one of which is `MESSAGE`; whether the journal has taken it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_SEND_SECONDS)
            sock.sendto(encode(fields), str(path))
    except OSError:
        return False
    return True


def encode(fields: Mapping[str, str]) -> bytes:
    """The datagram of these fields; values are cut at 8192 characters."""
    cut = ((name.encode(), value[:_LONGEST].encode(errors="replace")) for name, value in fields.items())
    return b"".join(_encoded(name, value) for name, value in cut)


def _encoded(name: bytes, value: bytes) -> bytes:
    if b"\n" in value:
        return b"%s\n%s%s\n" % (name, struct.pack("<Q", len(value)), value)
    return b"%s=%s\n" % (name, value)
