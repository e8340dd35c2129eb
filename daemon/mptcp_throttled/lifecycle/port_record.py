"""On which ports sockets may have paces and classes from us: recorded for the next start or clean-up after a kill.

The configuration does not say which: its ports may have changed since that daemon was started, or it is invalid now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.errors import UserError
from mptcp_throttle.ports import NO_PORTS, Ports

_FORMAT_VERSION: Final = 1


class PortRecord:
    """A file in the daemon's directory, which a reboot empties."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ports.json"

    def write(self, ports: Ports) -> None:
        """Record the ports. Raises UserError if the file cannot be written."""
        with _file_errors_as_user_errors():
            write_atomically(self._path, json.dumps({"version": _FORMAT_VERSION, "ports": ports.items}))

    def load(self) -> Ports:
        """The recorded ports; none if there is no record, or a malformed one. Raises UserError if it cannot be read."""
        with _file_errors_as_user_errors():
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else "{}"
        try:
            document = json.loads(text)
            return Ports.parse(document["ports"]) if document["version"] == _FORMAT_VERSION else NO_PORTS
        except (ValueError, KeyError, TypeError):
            return NO_PORTS


@contextmanager
def _file_errors_as_user_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be used: {error.strerror}", os.EX_NOPERM) from error
