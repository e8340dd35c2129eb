"""Checks of kernel parameters: MPTCP itself, and how much is given to a capped subflow."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mptcp_throttle.cli.doctor.finding import Finding, Host

_MPTCP: Final = Path("/proc/sys/net/mptcp")
_SEND_BUFFERS: Final = Path("/proc/sys/net/ipv4/tcp_wmem")
_SEND_BUFFER_BYTES: Final = 1 << 20
_UNSENT: Final = Path("/proc/sys/net/ipv4/tcp_notsent_lowat")
_UNSENT_BYTES: Final = 1 << 14
_SINGLE_PAGES: Final = Path("/proc/sys/net/core/high_order_alloc_disable")
_HEEDS_NOTSENT_LOWAT: Final = (6, 9)
_RECOMMENDED: Final = "in systemd/sysctl.d/mptcp-throttle.conf"
_RECOMMENDED_BEFORE_6_9: Final = "in systemd/sysctl.d/mptcp-throttle-before-6.9.conf"


def mptcp(_: Host) -> Iterator[Finding]:
    """Whether the kernel has MPTCP, and it is on."""
    enabled = _parameter("enabled")
    if enabled is None:
        yield Finding("kernel", "has no MPTCP", "use one with CONFIG_MPTCP")
    else:
        problem = None if enabled == "1" else "MPTCP is off"
        yield Finding("kernel", problem, problem and "`sysctl net.mptcp.enabled=1`")


def send_buffers(_: Host) -> Iterator[Finding]:
    """Whether the send buffers of connections that are capped from the start are large enough."""
    initial = int(_SEND_BUFFERS.read_text(encoding="ascii").split()[1])
    if initial >= _SEND_BUFFER_BYTES:
        yield Finding("send buffers")
        return
    problem = f"start at {initial} bytes: a connection capped from the start may stay slow for long"
    yield Finding("send buffers", problem, f"net.ipv4.tcp_wmem {_RECOMMENDED}", harm=False)


def heeds_notsent_lowat() -> bool:
    """Whether MPTCP on this kernel honours tcp_notsent_lowat: since Linux 6.9 (mptcp_send_limit)."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    return version is None or (int(version[1]), int(version[2])) >= _HEEDS_NOTSENT_LOWAT


def unsent_data(_: Host) -> Iterator[Finding]:
    """Whether a capped subflow is given little at a time."""
    yield _unsent() if heeds_notsent_lowat() else _unsent_before_6_9()


def _unsent() -> Finding:
    unsent = int(_UNSENT.read_text(encoding="ascii"))
    if unsent <= _UNSENT_BYTES:
        return Finding("unsent data")
    problem = f"may be {unsent} bytes per connection: the reader waits for those already given to a capped subflow"
    return Finding("unsent data", problem, f"net.ipv4.tcp_notsent_lowat {_RECOMMENDED}", harm=False)


def _unsent_before_6_9() -> Finding:
    # Only the initial network namespace has it; it applies to the whole host.
    if not _SINGLE_PAGES.exists() or _SINGLE_PAGES.read_text(encoding="ascii").strip() == "1":
        return Finding("unsent data")
    problem = "is given to subflows in pieces of 32 kB: the reader waits for those of a capped subflow"
    remedy = f"net.core.high_order_alloc_disable {_RECOMMENDED_BEFORE_6_9}"
    return Finding("unsent data", problem, remedy, harm=False)


def _parameter(name: str) -> str | None:
    """A parameter below net.mptcp; None if the kernel has none of that name."""
    try:
        return (_MPTCP / name).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
