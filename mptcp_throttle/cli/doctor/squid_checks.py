"""A check of Squid's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Final

from mptcp_throttle.cli.doctor.finding import Host
from mptcp_throttle.findings import Finding

_CONFIGURATION: Final = Path("/etc/squid/squid.conf")
_MOST_INCLUDED: Final = 16  # Squid's own bound: src/cache_cf.cc, parseManyConfigFiles
_ENOUGH_BYTES: Final = 16 << 20  # a quarter of what config/squid/mptcp-throttle.conf has, and 32 times the default
_UNITS: Final = {"": 1, "B": 1, "BYTES": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def uploads(host: Host) -> Iterator[Finding]:
    """Whether Squid ends uploads that are faster than their server; only where uplinks have a rate."""
    subject = "uploads through Squid"
    if all(network.uplink_cap is None and network.uplink_limit is None for network in host.config.networks):
        return
    try:
        if not _CONFIGURATION.exists():
            return
        sizes = list(_buffer_sizes(_CONFIGURATION, 0))
    except OSError as error:
        yield Finding(subject, unchecked=f"{error.filename}: cannot be read: {error.strerror}")
        return
    if sizes and sizes[-1] >= _ENOUGH_BYTES:
        yield Finding(subject)
        return
    problem = "Squid may end them when its request buffer is full (Squid bug 5405)"
    remedy = "install config/squid/mptcp-throttle.conf in /etc/squid/conf.d, and restart Squid"
    yield Finding(subject, problem, remedy, harm=False)


def _buffer_sizes(file: Path, depth: int) -> Iterator[float]:
    """Each `client_request_buffer_max_size`, in bytes; the last one counts. Raises OSError."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if words[:1] == ["include"] and depth < _MOST_INCLUDED:
            for pattern in words[1:]:
                for included in sorted(glob(pattern)):
                    yield from _buffer_sizes(Path(included), depth + 1)
        size = re.match(r"\s*client_request_buffer_max_size\s+(\d+(?:\.\d+)?)\s*([A-Za-z]*)", line)
        if size is not None:
            yield float(size[1]) * _UNITS.get(size[2].upper(), 1)
