"""Checks of the proxy: its interface and its ports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mptcp_throttle.cli.doctor.finding import Finding, Host
from mptcp_throttle.cli.doctor.programs import output_of
from mptcp_throttle.errors import UserError

_INTERFACES: Final = Path("/sys/class/net")


def interface(host: Host) -> Iterator[Finding]:
    """Whether the configured interface exists."""
    name = host.config.proxy.interface
    if (_INTERFACES / name).exists():
        yield Finding("interface")
        return
    names = ", ".join(sorted(entry.name for entry in _INTERFACES.iterdir()))
    yield Finding("interface", f"{name} does not exist; allowed: one of {names}", "set proxy.interface")


def listeners(host: Host) -> Iterator[Finding]:
    """Whether somebody listens on each port of the proxy, with MPTCP."""
    for port in host.config.proxy.ports:
        subject = f"proxy port {port}"
        if _listens("-M", port):
            yield Finding(subject)
        elif _listens("-t", port):
            yield Finding(subject, "is listened on without MPTCP", "start the proxy with `mptcpize run`")
        else:
            yield Finding(subject, "no process listens on it", "start the proxy, or set proxy.ports")


def _listens(protocol: str, port: int) -> bool:
    shown = output_of("ss", "-H", "-l", "-n", protocol, "sport", "=", f":{port}")
    if shown is None:
        raise UserError("ss: not found; it is part of iproute2", os.EX_UNAVAILABLE)
    return bool(shown.strip())
