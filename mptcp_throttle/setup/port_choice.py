"""The ports of the proxy: what the operator has named, or what listens on them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from mptcp_throttle.errors import EX_COMMAND_LINE, UserError
from mptcp_throttle.setup.host_facts import HostFacts, Listener
from mptcp_throttle.setup.wording import listed

PROXIES: Final = ("squid", "nginx", "haproxy", "sing-box", "xray", "ssserver", "ss-server")
"""The names of programs that are proxies. Others may listen with MPTCP, too: programs in Go do so by default."""

OWN_OPTIONS: Final = {
    "sing-box": '"tcp_multi_path": true',
    "xray": '"streamSettings": {"sockopt": {"tcpMptcp": true}}',
    "ssserver": '"mptcp": true',
}
"""Proxies that use no shared libc, so that mptcpize cannot help them, and what their configuration has for MPTCP."""

_MOST_PORTS: Final = 16


def reachable(listeners: Iterable[Listener]) -> Iterator[Listener]:
    """Those that other hosts can connect to."""
    return (one for one in listeners if not one.address.is_loopback)


def mptcp_ports(listeners: Iterable[Listener]) -> set[int]:
    """Those of the sockets that accept MPTCP."""
    return {one.port for one in listeners if one.mptcp}


def choose_ports(facts: HostFacts, named: Collection[int]) -> tuple[int, ...]:
    """The ports. Raises UserError."""
    listeners = [*reachable(facts.listeners)]
    if len(set(named)) > _MOST_PORTS:
        raise UserError(f"setup: --port: {len(set(named))} ports; allowed: up to {_MOST_PORTS}", EX_COMMAND_LINE)
    found = set(named) or _found(listeners)
    if not found:
        plain = f" (plain TCP: {_by_program(listeners)})" if listeners else ""
        start = "start the proxy"
        if facts.squid is not None:
            http_ports = listed(map(str, sorted(facts.squid.ports)))
            start = "start Squid" + (f", whose http_port is {http_ports}" if http_ports else "")
        raise UserError(
            f"setup: nothing listens for other hosts with MPTCP{plain}; allowed: {start}, or name a port with --port",
            os.EX_UNAVAILABLE,
        )
    if len(found) > _MOST_PORTS:
        raise UserError(
            f"setup: the proxy listens on {len(found)} ports; allowed: up to {_MOST_PORTS}, named with --port",
            EX_COMMAND_LINE,
        )
    return tuple(sorted(found))


def _found(listeners: Collection[Listener]) -> set[int]:
    with_mptcp = mptcp_ports(listeners)
    of_proxies = {one.port for one in listeners if one.program in PROXIES}
    plain = of_proxies - with_mptcp
    if of_proxies & with_mptcp:
        return of_proxies & with_mptcp
    if plain and with_mptcp:
        others = _by_program(one for one in listeners if one.mptcp)
        proxies = _by_program(one for one in listeners if one.port in plain)
        raise UserError(
            f"setup: no known proxy accepts MPTCP ({proxies}), but other programs do ({others}); allowed: --port, once"
            " for each port of the proxy",
            EX_COMMAND_LINE,
        )
    return with_mptcp or plain


def _by_program(listeners: Iterable[Listener]) -> str:
    pairs = sorted({(one.port, one.program or "unknown") for one in listeners})
    return listed(f"{port} by {program}" for port, program in pairs)


def others_with_mptcp(facts: HostFacts, ports: Collection[int]) -> str | None:
    """What else accepts MPTCP on ports that are none of these; None if nothing does."""
    others = [one for one in reachable(facts.listeners) if one.mptcp and one.port not in ports]
    return _by_program(others) if others else None


def why_ports(listening: Iterable[Listener], ports: Collection[int], *, named: bool) -> str:
    """What listens on these ports, and whether the operator has named them."""
    listening = tuple(listening)
    reasons = []
    for port in ports:
        here = [one for one in listening if one.port == port]
        owners = sorted({str(one.owner) for one in here if one.owner is not None}) or ["a process that is not known"]
        if not here:
            reasons.append(f"nobody listens on {port} yet")
        elif any(one.mptcp for one in here):
            reasons.append(f"{listed(owners)} listens on {port} with MPTCP")
        else:
            reasons.append(f"{listed(owners)} listens on {port}, with plain TCP until it is started with MPTCP")
    return ("named with --port: " if named else "") + "; ".join(reasons)
