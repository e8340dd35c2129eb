"""The bytes of a capture file as it is stored: in a file or on standard input, compressed or not.

The first bytes tell how it is compressed, not the name. It is decompressed while it is read: memory is bounded.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import threading
import zlib
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from mptcp_lab.capture_reader.capture_file import Damaged
from mptcp_throttle.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from _typeshed import WriteableBuffer

STANDARD_INPUT: Final = Path("-")

_CHUNK_BYTES: Final = 2**16
_MAGIC_BYTES: Final = 6
_MAX_XZ_BYTES: Final = 2**27
"""Memory for decompressing: the limit that zstd has by default. A file of `xz -9` needs half of it."""


@contextmanager
def open_capture(path: Path) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file, or for `-` of standard input.

    Raises OSError; UserError if the file needs a program that is not installed. Within the context, errors of
    decompression become Damaged.
    """
    with _open(path) as file:
        head = b""
        while len(head) < _MAGIC_BYTES and (read := file.read(_MAGIC_BYTES - len(head))):
            head += read
        decompress = next((named for magic, named in _DECOMPRESSORS.items() if head.startswith(magic)), _copy)
        if decompress is _unzstd and shutil.which("zstd") is None:
            raise UserError(f"{path}: is compressed by zstd, which is not installed", os.EX_UNAVAILABLE)
        with closing(decompress(chain([head], iter(partial(file.read, _CHUNK_BYTES), b"")))) as chunks:
            try:
                yield _buffered(chunks)
            except EOFError as error:
                raise Damaged("is truncated") from error
            except (zlib.error, lzma.LZMAError, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # The others are of gzip and bz2.
                raise Damaged(f"cannot be decompressed: {error}") from error


def _open(path: Path) -> io.FileIO:
    """Unbuffered: what has a buffer has a lock, and `_feed` may wait for standard input for ever."""
    if path == STANDARD_INPUT:
        return io.FileIO(0, closefd=False)
    return io.FileIO(path)


class _Chunks(io.RawIOBase):
    """The file that consists of these chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _buffered(chunks: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Chunks(chunks))


def _copy(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield from chunks


def _gunzip(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    with gzip.GzipFile(fileobj=_buffered(chunks)) as file:
        yield from iter(partial(file.read1, _CHUNK_BYTES), b"")


def _bunzip2(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    return _streams(chunks, bz2.BZ2Decompressor)


def _unxz(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    return _streams(chunks, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES))


def _streams(
    chunks: Iterator[bytes], start: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
) -> Generator[bytes, None, None]:
    """The streams of a file, one after another. Unlike LZMAFile it bounds memory, and takes no garbage for an end."""
    stream = start()
    for chunk in chunks:
        data = chunk
        while data or not stream.needs_input:
            if stream.eof:
                data = data.lstrip(b"\0")  # padding
                if not data:
                    break
                stream = start()
            yield stream.decompress(data, _CHUNK_BYTES)
            data = stream.unused_data if stream.eof else b""
    if not stream.eof:
        raise EOFError


def _unzstd(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Decompress with a program, because Python has no zstd before 3.14."""
    process = subprocess.Popen(["zstd", "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, messages = cast(io.BufferedReader, process.stdout), cast(BinaryIO, process.stderr)
    threading.Thread(target=_feed, args=(process.stdin, chunks), daemon=True).start()
    with output, messages:
        try:
            yield from iter(partial(output.read1, _CHUNK_BYTES), b"")
            if process.wait():
                first, _, _ = messages.read(_CHUNK_BYTES).decode(errors="replace").strip().partition("\n")
                raise Damaged(f"cannot be decompressed: zstd: {first.rpartition(': ')[2].strip()}")
        finally:
            process.kill()
            process.wait()


def _feed(pipe: BinaryIO, chunks: Iterable[bytes]) -> None:
    """Write until either end is closed. If reading fails, zstd finds the file truncated."""
    with suppress(OSError, ValueError), pipe:
        pipe.writelines(chunks)


_DECOMPRESSORS: Final[dict[bytes, Callable[[Iterator[bytes]], Generator[bytes, None, None]]]] = {
    b"\x1f\x8b": _gunzip,
    b"BZh": _bunzip2,
    b"\xfd7zXZ\0": _unxz,
    b"\x28\xb5\x2f\xfd": _unzstd,
}
