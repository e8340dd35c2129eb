"""Reading a BPF ring buffer (BPF_MAP_TYPE_RINGBUF) through its memory mapping.

libbpf's own reader calls back. ctypes makes a callback of executable memory, which systemd's MemoryDenyWriteExecute may
forbid; this reader needs none.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from struct import Struct
from typing import Final

from mptcp_throttle.linux.kernel_error import os_errors

# kernel/bpf/ringbuf.c: a page with the consumer's position, a page with the producer's, then the data, mapped twice
# so that a record is never split. A record has a header of 8 bytes and is padded to 8 bytes.
# Native formats: a position is read and written as one word.
_POSITION: Final = Struct("@Q")
_LENGTH: Final = Struct("@I")
_HEADER_BYTES: Final = 8
_BUSY: Final = 1 << 31
_DISCARDED: Final = 1 << 30


class RingBuffer:
    """The records of a ring buffer of `size` bytes, each once. For one thread. Raises KernelError."""

    def __init__(self, descriptor: int, size: int) -> None:
        page = mmap.PAGESIZE
        self._mask = size - 1
        with os_errors("map the ring buffer"):
            self._consumer = mmap.mmap(descriptor, page)
            self._producer = mmap.mmap(descriptor, page + 2 * size, prot=mmap.PROT_READ, offset=page)

    def __iter__(self) -> Iterator[bytes]:
        """The records that are complete. One that was handed out may be overwritten once the next is asked for."""
        (at,) = _POSITION.unpack_from(self._consumer)
        while at < _POSITION.unpack_from(self._producer)[0]:
            start = mmap.PAGESIZE + (at & self._mask)
            (header,) = _LENGTH.unpack_from(self._producer, start)
            if header & _BUSY:
                return
            length = header & ~_DISCARDED
            if not header & _DISCARDED:
                yield self._producer[start + _HEADER_BYTES : start + _HEADER_BYTES + length]
            at += (_HEADER_BYTES + length + 7) & ~7
            _POSITION.pack_into(self._consumer, 0, at)

    def close(self) -> None:
        """Unmap it."""
        self._consumer.close()
        self._producer.close()
