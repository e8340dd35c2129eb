"""The saved qdisc of an interface: its own root qdisc with all below it, recorded before we replace it.

A qdisc with handle 0 is the kernel's default, which comes back when ours is deleted. Any other was configured, and is
restored from its kind, handle and netlink options. This works for kinds whose dump is also a valid request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.linux.qdisc_kinds import RESTORABLE
from mptcp_throttled.kernel.tc import Qdisc
from mptcp_throttled.vocabulary.class_ids import MAJOR, format_handle

_FORMAT_VERSION: Final = 1
_FILE_NAME: Final = re.compile(r"original-qdisc-(\d+)\.json")


@dataclass(frozen=True, slots=True)
class SavedQdiscs:
    """The configured qdiscs of an interface, parents first; empty if it had the kernel's default.

    `restoring`: a restore has begun. If the record still exists at a later start, the restore was interrupted.
    """

    qdiscs: tuple[Qdisc, ...]
    restoring: bool = False


def tree_of(qdiscs: Sequence[Qdisc]) -> tuple[Qdisc, ...]:
    """The configured qdiscs below and including a configured root, parents first; empty without such a root."""
    root = next((qdisc for qdisc in qdiscs if qdisc.parent == TC_H_ROOT and qdisc.handle), None)
    return () if root is None else (root, *_below(root, qdiscs))


def _below(parent: Qdisc, qdiscs: Sequence[Qdisc]) -> Iterator[Qdisc]:
    for qdisc in qdiscs:
        if qdisc.handle and qdisc.parent & MAJOR == parent.handle:
            yield qdisc
            yield from _below(qdisc, qdiscs)


def why_not_restorable(tree: Sequence[Qdisc]) -> str | None:
    """The first qdisc that cannot be restored exactly, and why; None if all can."""
    for qdisc in tree:
        name = f"qdisc {qdisc.kind} {format_handle(qdisc.handle)}"
        if qdisc.kind not in RESTORABLE:
            return f"{name} is of a kind"
        if qdisc.has_size_table:
            return f"{name} has a size table"
    return None


class SavedQdiscStore:
    """The records: one file per interface in the run directory, by interface index because names can change.

    The run directory is emptied by a reboot, after which an interface has its default qdisc again.
    """

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory

    def write(self, index: int, saved: SavedQdiscs) -> None:
        """Record the qdiscs of an interface durably. Raises OSError."""
        document = {
            "version": _FORMAT_VERSION,
            "restoring": saved.restoring,
            "qdiscs": [
                {
                    "kind": qdisc.kind,
                    "handle": qdisc.handle,
                    "parent": qdisc.parent,
                    "options": None if qdisc.options is None else qdisc.options.hex(),
                }
                for qdisc in saved.qdiscs
            ],
        }
        write_atomically(self._path(index), json.dumps(document))

    def load(self, index: int) -> SavedQdiscs | None:
        """The record of an interface; None if there is none or it is malformed. Raises OSError if it cannot be read."""
        try:
            document = json.loads(self._path(index).read_text(encoding="utf-8"))
            if document["version"] != _FORMAT_VERSION:
                return None
            return SavedQdiscs(tuple(_decode(qdisc) for qdisc in document["qdiscs"]), bool(document["restoring"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def indices(self) -> list[int]:
        """The indices of the interfaces that have a record."""
        if not self._directory.is_dir():
            return []
        names = (_FILE_NAME.fullmatch(entry.name) for entry in self._directory.iterdir())
        return sorted(int(name[1]) for name in names if name is not None)

    def forget(self, index: int) -> None:
        """Delete the record of an interface, if there is one."""
        self._path(index).unlink(missing_ok=True)

    def _path(self, index: int) -> Path:
        return self._directory / f"original-qdisc-{index}.json"


def _decode(data: dict[str, object]) -> Qdisc:
    options = data["options"]
    return Qdisc(
        str(data["kind"]),
        int(str(data["handle"])),
        int(str(data["parent"])),
        None if options is None else bytes.fromhex(str(options)),
    )
