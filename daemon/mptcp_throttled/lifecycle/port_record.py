"""On which ports sockets may have paces and classes from us: recorded for whoever frees them after a daemon was killed.

The configuration does not say which: its ports may have changed since that daemon was started, or it is invalid now.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from mptcp_throttle.durable_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_FORMAT_VERSION: Final = 1
_END_OF_PORTS: Final = 65536


class PortRecord:
    """A file in the daemon's directory, which a reboot empties."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ports.json"

    def write(self, ports: Collection[int]) -> None:
        """Record the ports. Raises OSError."""
        write_atomically(self._path, json.dumps({"version": _FORMAT_VERSION, "ports": sorted(ports)}))

    def load(self) -> frozenset[int]:
        """The recorded ports; none if there is no record, or a malformed one. Raises OSError if it cannot be read."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            ports = frozenset(map(int, document["ports"])) if document["version"] == _FORMAT_VERSION else frozenset()
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return frozenset()
        return ports if all(0 < port < _END_OF_PORTS for port in ports) else frozenset()
