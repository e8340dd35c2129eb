"""`mptcp-throttle doctor`: checks the kernel, the proxy and both services, and names a remedy for each problem."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import Json, RpcClient, RpcError

_ENABLED: Final = Path("/proc/sys/net/mptcp/enabled")
_INTERFACES: Final = Path("/sys/class/net")
_SEND_BUFFERS: Final = Path("/proc/sys/net/ipv4/tcp_wmem")
_SEND_BUFFER_BYTES: Final = 1 << 20
_UNSENT: Final = Path("/proc/sys/net/ipv4/tcp_notsent_lowat")
_UNSENT_BYTES: Final = 1 << 14
_SINGLE_PAGES: Final = Path("/proc/sys/net/core/high_order_alloc_disable")
_HEEDS_NOTSENT_LOWAT: Final = (6, 9)
_REMEDY: Final = "in systemd/sysctl.d/mptcp-throttle.conf"
_OLD_REMEDY: Final = "in systemd/sysctl.d/mptcp-throttle-before-6.9.conf"


class Finding(NamedTuple):
    """The result of one check: its `problem`, None if there is none; `harm`: the problem prevents caps."""

    subject: str
    problem: str | None = None
    harm: bool = True


def examine(config: Config, timeout: float) -> list[Finding]:
    """Check this host and both services, each of which has `timeout` seconds to answer."""
    return [
        _kernel(),
        _send_buffers(),
        _unsent(),
        _interface(config.proxy.interface),
        *_listeners(config.proxy.ports),
        *_sniffer(_ask(config.sockets.sniffer, timeout)),
        *_daemon(_ask(config.sockets.daemon, timeout)),
    ]


def _kernel() -> Finding:
    try:
        enabled = _ENABLED.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return Finding("kernel", "has no MPTCP (CONFIG_MPTCP)")
    return Finding("kernel", None if enabled == "1" else "MPTCP is off; `sysctl net.mptcp.enabled=1`")


def _send_buffers() -> Finding:
    _, initial, _ = map(int, _SEND_BUFFERS.read_text(encoding="ascii").split())
    problem = f"start at {initial} bytes: a connection capped from the start may stay slow for long"
    remedy = f"net.ipv4.tcp_wmem {_REMEDY}"
    return Finding("send buffers", None if initial >= _SEND_BUFFER_BYTES else f"{problem}; {remedy}", harm=False)


def heeds_notsent_lowat() -> bool:
    """Whether MPTCP on this kernel honours tcp_notsent_lowat: since Linux 6.9 (mptcp_send_limit)."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    return version is None or (int(version[1]), int(version[2])) >= _HEEDS_NOTSENT_LOWAT


def _unsent() -> Finding:
    if not heeds_notsent_lowat():
        return _unsent_before_6_9()
    unsent = int(_UNSENT.read_text(encoding="ascii"))
    problem = f"may be {unsent} bytes per connection: the reader waits for those already given to a capped subflow"
    remedy = f"net.ipv4.tcp_notsent_lowat {_REMEDY}"
    return Finding("unsent data", None if unsent <= _UNSENT_BYTES else f"{problem}; {remedy}", harm=False)


def _unsent_before_6_9() -> Finding:
    # Only the initial network namespace has it; it applies to the whole host.
    small = not _SINGLE_PAGES.exists() or _SINGLE_PAGES.read_text(encoding="ascii").strip() == "1"
    problem = "is given to subflows in pieces of 32 kB: the reader waits for those of a capped subflow"
    remedy = f"net.core.high_order_alloc_disable {_OLD_REMEDY}"
    return Finding("unsent data", None if small else f"{problem}; {remedy}", harm=False)


def _interface(name: str) -> Finding:
    known = (_INTERFACES / name).exists()
    return Finding("interface", None if known else f"{name} does not exist; allowed: one of {_names(_INTERFACES)}")


def _names(directory: Path) -> str:
    return ", ".join(sorted(entry.name for entry in directory.iterdir()))


def _listeners(ports: Sequence[int]) -> Iterator[Finding]:
    for port in ports:
        subject = f"proxy port {port}"
        if _listens("-M", port):
            yield Finding(subject)
        elif _listens("-t", port):
            yield Finding(subject, "is listened on without MPTCP; start the proxy with `mptcpize run`")
        else:
            yield Finding(subject, "no process listens on it")


def _listens(protocol: str, port: int) -> bool:
    command = ["ss", "-H", "-l", "-n", protocol, "sport", "=", f":{port}"]
    try:
        return bool(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    except FileNotFoundError as error:
        raise UserError("ss: not found; it is part of iproute2", os.EX_UNAVAILABLE) from error


def _ask(socket: Path, timeout: float) -> Json | str:
    try:
        return RpcClient(socket, timeout).call("status")
    except RpcError as error:
        return str(error)


def _sniffer(status: Json | str) -> Iterator[Finding]:
    if isinstance(status, str):
        yield Finding("mptcp-sniffer", status)
        return
    yield Finding("mptcp-sniffer")
    if not status["capturing"]:
        yield Finding("capture", "none: the interface is missing or down")
    dropped, view = status["dropped"], status["kernel_view"]
    if dropped:
        yield Finding("capture", f"{dropped} frames dropped since its start: it cannot keep up", harm=False)
    if view["enabled"] and view["problem"]:
        yield Finding("kernel's list", view["problem"], harm=False)


def _daemon(status: Json | str) -> Iterator[Finding]:
    if isinstance(status, str):
        yield Finding("mptcp-throttled", status)
        return
    daemon, sniffer = status["daemon"], status["sniffer"]
    problems = [] if sniffer["connected"] else [f"has no table of connections: {sniffer['problem']}"]
    problems += [f"a rate is not enforced: {line}" for line in daemon["not_enforced"]]
    problems += [*daemon["errors"], *(f"reload refused: {problem}" for problem in daemon["config"]["problems"])]
    if daemon["pause"] is not None:
        problems.append("is paused; `mptcp-throttle resume`")
    yield from [Finding("mptcp-throttled", problem) for problem in problems] or [Finding("mptcp-throttled")]
    unpaced = daemon["unpaced"]
    cost = None if unpaced is None else f"none, so that a cap slows down the whole connection: {unpaced}"
    yield Finding("pacing", cost, harm=False)
    problem = daemon["deciding_problem"]
    if unpaced is None:
        cost = None if problem is None else f"does not decide; caps begin milliseconds later: {problem}"
        yield Finding("kernel program", cost, harm=False)
