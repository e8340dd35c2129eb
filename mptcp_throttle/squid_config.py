"""Squid's configuration file, as far as `doctor` and `setup` look at it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path
from typing import Final

CONFIGURATION: Final = Path("/etc/squid/squid.conf")
_LOCAL_ACLS: Final = frozenset({"localhost", "manager"})
_MOST_INCLUDED: Final = 16  # Squid's own bound: src/cache_cf.cc, parseManyConfigFiles
_ENOUGH_BYTES: Final = 16 << 20  # a quarter of what config/squid/mptcp-throttle.conf has, and 32 times the default
_UNITS: Final = {"": 1, "B": 1, "BYTES": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def read_lines(file: Path, depth: int = 0) -> Iterator[str]:
    """The lines of a file, and of those that it includes in their places. Raises OSError."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if words[:1] != ["include"]:
            yield line
        elif depth < _MOST_INCLUDED:
            for pattern in words[1:]:
                for included in sorted(glob(pattern)):
                    yield from read_lines(Path(included), depth + 1)


def http_ports(lines: Iterable[str]) -> set[int]:
    """The ports of all `http_port` lines: `3128`, `10.0.0.1:3128` or `[::]:3128`, and options."""
    matches = (re.match(r"\s*http_port\s+(?:\S*:)?(\d+)(?:\s|$)", line) for line in lines)
    return {int(port[1]) for port in matches if port is not None}


def serves_hosts(lines: Iterable[str]) -> bool:
    """Whether some `http_access allow` concerns other hosts than this, as in Debian's configuration none does."""
    allowed = [line.split()[2:] for line in lines if re.match(r"\s*http_access\s+allow\s", line)]
    return any(_LOCAL_ACLS.isdisjoint(acls) for acls in allowed)


def has_large_buffer(lines: Iterable[str]) -> bool:
    """Whether fast uploads fit into the request buffer (Squid bug 5405)."""
    sizes = list(_buffer_sizes(lines))
    return bool(sizes) and sizes[-1] >= _ENOUGH_BYTES


def _buffer_sizes(lines: Iterable[str]) -> Iterator[float]:
    """Each `client_request_buffer_max_size`, in bytes; the last one counts."""
    for line in lines:
        size = re.match(r"\s*client_request_buffer_max_size\s+(\d+(?:\.\d+)?)\s*([A-Za-z]*)", line)
        if size is not None:
            yield float(size[1]) * _UNITS.get(size[2].upper(), 1)
