"""The BPF objects of some processes, and what their maps have.

A program, link or map exists while a process has a descriptor of it, or while it is attached. The links of our programs
end with their descriptors, and filters are counted at their interface.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.process import descriptor_texts
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfMap, BpfObject

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROGRAM: Final = Path(__file__).parents[1] / "benchmarks" / "bpf" / "storage.bpf.o"
_KINDS: Final = ("prog", "link", "map")
# enum bpf_map_type (include/uapi/linux/bpf.h)
_HASH, _ARRAY, _LRU_HASH, _LPM_TRIE, _SK_STORAGE = 1, 2, 9, 11, 24
_TAKEN: Final = b"taken"  # daemon/mptcp_throttled/kernel/bpf/steering.bpf.c: which numbers of slots are taken


class BpfIds(NamedTuple):
    """The ids of programs, links and maps."""

    programs: frozenset[int]
    links: frozenset[int]
    maps: frozenset[int]


class _MapInfo(ctypes.Structure):
    """struct bpf_map_info (include/uapi/linux/bpf.h), up to the name."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
    )


class MapContents(NamedTuple):
    """What some maps have together.

    `entries` are those of hashes and tries, `slots` the numbers of steered subflows that are taken, and `stored` the
    values of socket storage.
    """

    entries: int
    slots: int
    stored: int


def _libbpf() -> ctypes.CDLL:
    return ctypes.CDLL("libbpf.so.1", use_errno=True)


def ids_of(pids: Iterable[int]) -> BpfIds:
    """The ids of the objects that these processes have descriptors of."""
    shown = "".join(text for pid in pids for text in descriptor_texts(pid))
    return BpfIds(*(frozenset(map(int, re.findall(rf"^{kind}_id:\s*(\d+)", shown, re.MULTILINE))) for kind in _KINDS))


def contents(ids: Iterable[int]) -> MapContents:
    """The contents of the maps with these ids, without those that are gone by then. Raises KernelError.

    Only sockets of this thread's network namespace count.
    """
    entries, slots, stored = 0, 0, 0
    for map_id in ids:
        with suppress(FileNotFoundError):
            of_map = _contents_of(map_id)
            entries, slots, stored = entries + of_map.entries, slots + of_map.slots, stored + of_map.stored
    return MapContents(entries, slots, stored)


def _contents_of(map_id: int) -> MapContents:
    """Raises FileNotFoundError if there is no such map any more, and KernelError."""
    descriptor = _libbpf().bpf_map_get_fd_by_id(map_id)
    if descriptor < 0:
        raise FileNotFoundError
    try:
        info, size = _MapInfo(), ctypes.c_uint32(ctypes.sizeof(_MapInfo))
        if _libbpf().bpf_obj_get_info_by_fd(descriptor, ctypes.byref(info), ctypes.byref(size)) != 0:
            raise KernelError(f"read map {map_id}", ctypes.get_errno())
        map_ = BpfMap(descriptor, info.key_size, info.value_size)
        if info.type in (_HASH, _LRU_HASH, _LPM_TRIE):
            return MapContents(len(map_.all_keys()), 0, 0)
        if info.type == _ARRAY and info.name == _TAKEN:
            return MapContents(0, _taken(descriptor, info.max_entries), 0)
        return MapContents(0, 0, _stored(map_) if info.type == _SK_STORAGE else 0)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, number: int) -> int:
    """How many of the first `number` elements of an array of u32 are not 0."""
    keys, values = (ctypes.c_uint32 * number)(), (ctypes.c_uint32 * number)()
    count, position = ctypes.c_uint32(number), ctypes.c_uint32()
    result = _libbpf().bpf_map_lookup_batch(
        descriptor, None, ctypes.byref(position), keys, values, ctypes.byref(count), None
    )
    if result < 0 and ctypes.get_errno() != errno.ENOENT:  # ENOENT: the array has no more
        raise KernelError("read an array", ctypes.get_errno())
    return sum(map(bool, values))


def _stored(map_: BpfMap) -> int:
    """How many sockets have a value in this map. A program is loaded for each: no object of ours keeps the map."""
    with closing(BpfObject(_PROGRAM, shared={"values": map_})) as program:
        return len(program.iterate("list_sockets"))


def make_map() -> int:
    """A new map of this process, for its descriptor. Raises KernelError."""
    descriptor: int = _libbpf().bpf_map_create(_HASH, b"soak", 4, 4, 1, None)
    if descriptor < 0:
        raise KernelError("make a map", ctypes.get_errno())
    return descriptor
