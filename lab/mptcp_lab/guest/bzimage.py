"""The kernel proper (ELF) inside a bzImage (Documentation/arch/x86/boot.rst).

qemu boots an ELF kernel through its PVH entry point (CONFIG_PVH): decompressing a bzImage under emulation takes long.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

_SECTOR: Final = 512
_MAGIC: Final = slice(0x202, 0x206)
_HEADER: Final = 0x24C + 4  # up to payload_length
_DECOMPRESSORS: Final[dict[bytes, tuple[str, ...]]] = {
    b"\x28\xb5\x2f\xfd": ("zstd", "-dcq"),
    b"\x02\x21\x4c\x18": ("lz4", "-dcq"),  # the legacy format, which has no end mark
}


@dataclass(frozen=True, slots=True)
class Payload:
    """The compressed kernel, and the command that decompresses it from stdin to stdout."""

    data: bytes
    command: tuple[str, ...]

    @classmethod
    def of(cls, image: bytes) -> Self:
        """The payload of a bzImage. Raises ValueError if it has none, or one that we cannot decompress."""
        if len(image) < _HEADER or image[_MAGIC] != b"HdrS":
            raise ValueError("is not a Linux bzImage")
        setup_sectors = image[0x1F1] or 4
        offset, length = struct.unpack_from("<II", image, 0x248)
        start = (setup_sectors + 1) * _SECTOR + offset
        # The build appends the size of the decompressed kernel, 4 bytes that belong to no compressed format.
        data = image[start : start + length - 4]
        command = _DECOMPRESSORS.get(data[:4])
        if command is None:
            raise ValueError(f"its kernel is compressed in an unknown way ({data[:4].hex()}); allowed: zstd, lz4")
        return cls(data, command)
