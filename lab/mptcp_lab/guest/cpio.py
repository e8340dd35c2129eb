"""The archive format of an initramfs: cpio "newc" (Documentation/driver-api/early-userspace/buffer-format.rst)."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRAILER: Final = "TRAILER!!!"
_ALIGNMENT: Final = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory of root's: its path without a leading slash, its type and permissions, its content."""

    path: str
    mode: int
    content: bytes = b""


def directory(path: str) -> Entry:
    """An empty directory; its parent must come before it."""
    return Entry(path, stat.S_IFDIR | 0o755)


def file(path: str, content: bytes | str, *, executable: bool = False) -> Entry:
    """A file; its directory must come before it."""
    mode = stat.S_IFREG | (0o755 if executable else 0o644)
    return Entry(path, mode, content.encode() if isinstance(content, str) else content)


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of these entries, in this order."""
    members = (*entries, Entry(_TRAILER, 0))
    return b"".join(_member(number, entry) for number, entry in enumerate(members, start=1))


def _member(inode: int, entry: Entry) -> bytes:
    name = entry.path.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, file size, device (2), device of a device file (2), name size, checksum
    fields = (inode, entry.mode, 0, 0, 1, 0, len(entry.content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
