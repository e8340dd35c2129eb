"""Checks of Squid's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path
from typing import Final

from mptcp_throttle.cli.doctor.finding import Host
from mptcp_throttle.findings import Finding

_CONFIGURATION: Final = Path("/etc/squid/squid.conf")
_LOCAL_ACLS: Final = frozenset({"localhost", "manager"})
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
        sizes = list(_buffer_sizes(_lines(_CONFIGURATION, 0)))
    except OSError as error:
        yield Finding(subject, unchecked=f"{error.filename}: cannot be read: {error.strerror}")
        return
    if sizes and sizes[-1] >= _ENOUGH_BYTES:
        yield Finding(subject)
        return
    problem = "Squid may end them when its request buffer is full (Squid bug 5405)"
    example = "/usr/share/doc/mptcp-throttle/examples/squid/mptcp-throttle.conf"
    remedy = f"install {example} in /etc/squid/conf.d, and restart Squid"
    yield Finding(subject, problem, remedy, harm=False)


def access(host: Host) -> Iterator[Finding]:
    """Whether Squid, where it is the proxy, serves more than this host, as Debian's configuration does not."""
    subject = "access to Squid"
    try:
        lines = list(_lines(_CONFIGURATION, 0))
    except OSError:
        return  # no Squid, or `uploads` says so
    if not _http_ports(lines) & {*host.config.proxy.ports}:
        return
    allowed = [line.split()[2:] for line in lines if re.match(r"\s*http_access\s+allow\s", line)]
    if any(_LOCAL_ACLS.isdisjoint(acls) for acls in allowed):
        yield Finding(subject)
        return
    problem = "its http_access allows nobody but this host, so it denies the clients"
    remedy = "`http_access allow` for the subnets of the clients, in a file in /etc/squid/conf.d, and restart Squid"
    yield Finding(subject, problem, remedy, harm=False)


def remedy_for_port(port: int) -> str:
    """What else to do where nobody listens on a port of the proxy: Debian's Squid listens on 3128. May be empty."""
    try:
        ports = _http_ports(_lines(_CONFIGURATION, 0))
    except OSError:
        return ""
    if not ports or port in ports:
        return ""
    listed = ", ".join(map(str, sorted(ports)))
    return (
        f"; Squid's http_port is {listed}: set proxy.ports to it, or write `http_port {port}` into a file in"
        " /etc/squid/conf.d, and `http_access allow` for the subnets of the clients"
    )


def _http_ports(lines: Iterable[str]) -> set[int]:
    """The ports of all `http_port` lines: `3128`, `10.0.0.1:3128` or `[::]:3128`, and options."""
    found = (re.match(r"\s*http_port\s+(?:\S*:)?(\d+)(?:\s|$)", line) for line in lines)
    return {int(port[1]) for port in found if port is not None}


def _buffer_sizes(lines: Iterable[str]) -> Iterator[float]:
    """Each `client_request_buffer_max_size`, in bytes; the last one counts."""
    for line in lines:
        size = re.match(r"\s*client_request_buffer_max_size\s+(\d+(?:\.\d+)?)\s*([A-Za-z]*)", line)
        if size is not None:
            yield float(size[1]) * _UNITS.get(size[2].upper(), 1)


def _lines(file: Path, depth: int) -> Iterator[str]:
    """The lines of a file, and of those that it includes in their places. Raises OSError."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if words[:1] != ["include"]:
            yield line
        elif depth < _MOST_INCLUDED:
            for pattern in words[1:]:
                for included in sorted(glob(pattern)):
                    yield from _lines(Path(included), depth + 1)
