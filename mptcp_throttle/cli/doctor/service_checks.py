"""Checks of both services: what they answer, and what systemd says of those that fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mptcp_throttle.cli.doctor.proxy_checks import END_HERE
from mptcp_throttle.findings import Finding, Host, daemon_findings, not_captured
from mptcp_throttle.programs import ProgramFailed
from mptcp_throttle.systemd_unit import SERVICES, Unit, last_line, read_unit

_OPTIONAL: Final = ("mptcp-throttled-cleanup", "mptcp-throttle-web", "mptcp-throttle-namespace")
_LARGER_BUFFER: Final = (
    "a larger sniffer.capture_buffer, and `systemctl restart mptcp-sniffer mptcp-throttled`, which resets the count"
)


def sniffer(host: Host) -> Iterator[Finding]:
    """What the sniffer says of its capture and of the kernel list."""
    status = host.sniffer
    if isinstance(status, str):
        yield _unanswered("mptcp-sniffer", status, host.config.sockets.sniffer)
        return
    yield Finding("mptcp-sniffer")
    missing = not_captured(status)
    if missing is not None:
        remedy = "set the interface up, or correct proxy.interface or proxy.interfaces"
        yield Finding("capture", missing, remedy, harm=not status["captured"])
    dropped, view = status["dropped"], status["kernel_view"]
    if dropped:
        problem = f"{dropped} frames dropped since its start: it cannot keep up"
        yield Finding("capture", problem, _LARGER_BUFFER, harm=False)
    if view["enabled"] and view["problem"]:
        yield Finding("kernel list", view["problem"], "CAP_NET_ADMIN, as in mptcp-sniffer.service", harm=False)
    if view.get("unlisted") is not None:  # missing while an earlier version runs
        yield Finding("kernel list", view["unlisted"], END_HERE)


def daemon(host: Host) -> Iterator[Finding]:
    """What the daemon says: errors, rates that are not enforced, and features that are not in place."""
    status = host.daemon
    if isinstance(status, str):
        yield _unanswered("mptcp-throttled", status, host.config.sockets.daemon)
        return
    yield from daemon_findings(status)


def _unanswered(name: str, why: str, socket: Path) -> Finding:
    if _is_forbidden(socket):
        return Finding(name, unchecked=why)
    return Finding(name, why, f"`systemctl start {name}`; if it ends again, `journalctl -u {name}` says why")


def _is_forbidden(socket: Path) -> bool:
    """Whether this user may not use a socket, so that nothing is known of its service."""
    try:
        socket.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(socket, os.W_OK)


def units(_: Host) -> Iterator[Finding]:
    """Why systemd's services have failed, with the reason from their last exit."""
    for name in (*SERVICES, *_OPTIONAL):
        try:
            unit = read_unit(name)
        except ProgramFailed as error:
            yield Finding(f"{name}.service", unchecked=str(error))
            continue
        if unit is not None and (name in SERVICES or unit.failing):
            yield _judge(unit, harm=name in SERVICES)


def _judge(unit: Unit, *, harm: bool) -> Finding:
    remedy = f"`systemctl status {unit.Id}` and `journalctl -u {unit.Id}`"
    if unit.failing:
        return Finding(unit.Id, f"has failed: {unit.last_exit}; {_reason(unit)}", remedy, harm)
    if unit.LoadState != "loaded":
        return Finding(unit.Id, f"cannot be started: {unit.LoadState}", remedy, harm=False)
    if unit.ActiveState == "inactive":
        return Finding(unit.Id, "is not started", f"`systemctl enable --now {unit.Id}`", harm=False)
    if unit.ActiveState not in {"active", "reloading"}:
        return Finding(unit.Id, f"is {unit.ActiveState}", remedy, harm=False)
    if int(unit.NRestarts):
        counted = f"has failed before; restarts since then: {unit.NRestarts}"
        return Finding(unit.Id, counted, f"{remedy}; `systemctl reset-failed {unit.Id}` resets the count", harm=False)
    return Finding(unit.Id)


def _reason(unit: Unit) -> str:
    try:
        line = last_line(unit)
    except ProgramFailed as error:
        return f"its last line cannot be read: {error}"
    return "the journal has no line of it" if line is None else f"its last line: {line}"
