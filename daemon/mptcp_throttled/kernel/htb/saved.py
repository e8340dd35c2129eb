"""The saved qdisc of an interface: its own root qdisc with all below it, recorded before we replace it.

A qdisc with handle 0 is the kernel's default, which comes back when ours is deleted. Any other was configured, and is
restored from its kind, handle and netlink options. This works for kinds whose dump is also a valid request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.errors import listed
from mptcp_throttle.linux.c_layout import MAX_U32
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_codec import attribute, attributes
from mptcp_throttle.linux.qdisc_kinds import RESTORABLE
from mptcp_throttled.kernel.net_namespace import netns_cookie
from mptcp_throttled.kernel.tc import Qdisc
from mptcp_throttled.vocabulary.class_ids import MAJOR, format_handle

_FORMAT_VERSION: Final = 1
_MAX_NAMED: Final = 3
_MICROSECONDS: Final = Struct("=I")
_ROUNDED: Final = {"codel": (1024, {1, 3, 5}), "fq_codel": (1024, {1, 3, 7}), "pie": (64, {1})}
"""Kinds that count times in units of so many nanoseconds (include/net/codel.h, include/net/pkt_sched.h); which options
are such times: target, interval and ce_threshold (include/uapi/linux/pkt_sched.h)."""
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
    if root is None:
        return ()
    tree, rest = [root], [qdisc for qdisc in qdiscs if qdisc.handle and qdisc is not root]
    for parent in tree:
        tree += [qdisc for qdisc in rest if qdisc.parent & MAJOR == parent.handle]
        rest = [qdisc for qdisc in rest if qdisc.parent & MAJOR != parent.handle]
    return tuple(tree)


def why_not_restorable(tree: Sequence[Qdisc]) -> str | None:
    """The first qdisc that cannot be restored exactly, and why; None if all can."""
    for qdisc in tree:
        name = f"qdisc {_name(qdisc)}"
        if qdisc.kind not in RESTORABLE:
            return f"{name} is of a kind"
        if qdisc.has_size_table:
            return f"{name} has a size table"
    return None


def request_for(saved: Qdisc) -> Qdisc:
    """What to add, so that the kernel shows the saved qdisc.

    Some kinds round a time down to their unit when they take it, and to a microsecond when they show it. What they show
    would become a microsecond shorter with each restore.
    """
    if saved.kind not in _ROUNDED or saved.options is None:
        return saved
    unit, times = _ROUNDED[saved.kind]
    options = attributes(saved.options)
    for type_ in options.keys() & times:
        if len(options[type_]) == _MICROSECONDS.size:
            (shown,) = _MICROSECONDS.unpack(options[type_])
            options[type_] = _MICROSECONDS.pack(min(shown + bool(shown * 1000 % unit), MAX_U32))
    return saved._replace(options=b"".join(attribute(type_, payload) for type_, payload in options.items()))


def differences(saved: Sequence[Qdisc], now: Sequence[Qdisc]) -> str:
    """Which qdiscs are missing, added or different, at most a few of each; empty if none is.

    The order means nothing: tc lists the qdiscs by a hash of their handles, the last one added first.
    """
    before, after = {qdisc.handle: qdisc for qdisc in saved}, {qdisc.handle: qdisc for qdisc in now}
    qdiscs = {
        "missing": [_name(qdisc) for qdisc in saved if qdisc.handle not in after],
        "added": [_name(qdisc) for qdisc in now if qdisc.handle not in before],
        "different": [
            f"{_name(qdisc)} ({', '.join(changes)})"
            for handle, qdisc in after.items()
            if handle in before and (changes := _changed_fields(before[handle], qdisc))
        ],
    }
    return "; ".join(f"{what} {listed(names, _MAX_NAMED)}" for what, names in qdiscs.items() if names)


def _name(qdisc: Qdisc) -> str:
    return f"{qdisc.kind} {format_handle(qdisc.handle)}"


def _changed_fields(before: Qdisc, after: Qdisc) -> list[str]:
    return [name for name, old, new in zip(Qdisc._fields, before, after, strict=True) if old != new]


class SavedQdiscStore:
    """The records: one file per interface in the run directory, by interface index because names can change.

    The run directory is emptied by a reboot, after which an interface has its default qdisc again. The records of
    another network namespace, such as that of a container which has ended, count as none.
    """

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory

    def write(self, index: int, saved: SavedQdiscs) -> None:
        """Record the qdiscs of an interface durably. Raises OSError."""
        document = {
            "version": _FORMAT_VERSION,
            "namespace": _namespace(),
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
            if document["version"] != _FORMAT_VERSION or document.get("namespace") not in {None, _namespace()}:
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


def _namespace() -> int | None:
    with suppress(KernelError):
        return netns_cookie()
    return None


def _decode(data: dict[str, object]) -> Qdisc:
    options = data["options"]
    qdisc = Qdisc(
        str(data["kind"]),
        int(str(data["handle"])),
        int(str(data["parent"])),
        None if options is None else bytes.fromhex(str(options)),
    )
    if not (qdisc.kind.isascii() and 0 <= qdisc.handle <= MAX_U32 and 0 <= qdisc.parent <= MAX_U32):
        raise ValueError(f"{_name(qdisc)} cannot be a qdisc")
    return qdisc
