"""The interface's own root qdisc: recorded before we replace it, and put back exactly as it was.

A qdisc with handle 0 is the kernel's default: deleting ours brings it back. Any other was configured by somebody; we
replay its kind, handle and netlink options, which works for the kinds whose dump is also a valid request.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttled.kernel.netlink import Qdisc
from mptcp_throttled.state_file import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

_FORMAT_VERSION: Final = 1
_REPLAYABLE_KINDS: Final = frozenset({"pfifo", "bfifo", "fq_codel", "codel", "fq", "sfq", "pie"})


class OriginalQdisc:
    """The recorded root qdisc of one interface, in a file of the state directory."""

    def __init__(self, state_directory: Path, interface: str) -> None:
        self._path = state_directory / f"original-qdisc-{interface}.json"

    def record(self, qdisc: Qdisc) -> None:
        """Write it down durably. Raises OSError."""
        document = {
            "version": _FORMAT_VERSION,
            "kind": qdisc.kind,
            "handle": qdisc.handle,
            "options": None if qdisc.options is None else qdisc.options.hex(),
        }
        write_atomically(self._path, json.dumps(document))

    def load(self) -> Qdisc | None:
        """What was recorded; None if nothing usable is on record."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["version"] != _FORMAT_VERSION:
                return None
            options = document["options"]
            return Qdisc(
                str(document["kind"]),
                int(document["handle"]),
                TC_H_ROOT,
                None if options is None else bytes.fromhex(options),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def forget(self) -> None:
        """It is back in its place."""
        self._path.unlink(missing_ok=True)


def can_be_put_back(qdisc: Qdisc) -> bool:
    """Whether replacing this root qdisc is reversible."""
    return qdisc.handle == 0 or (qdisc.kind in _REPLAYABLE_KINDS and not qdisc.has_size_table)
