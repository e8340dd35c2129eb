"""The proxy's ports and interfaces: what the operator has named, or else what the strongest evidence shows."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from mptcp_throttle.config.schema import MAX_PORT_ITEMS
from mptcp_throttle.errors import EX_COMMAND_LINE, UserError, listed
from mptcp_throttle.ports import Ports
from mptcp_throttle.setup.host_facts import HostFacts, Interface, Listener

PROXIES: Final = ("squid", "nginx", "haproxy", "sing-box", "xray", "ssserver", "ss-server")
"""The names of programs that are proxies. Others may listen with MPTCP, too: programs in Go do so by default."""


def choose_ports(facts: HostFacts, named: Ports) -> Ports:
    """The ports. Raises UserError."""
    listeners = [listener for listener in facts.listeners if listener.is_reachable]
    ports = named or Ports.of(_ports_of_proxies(listeners))
    if not ports:
        plain = f" (plain TCP: {_by_program(listeners)})" if listeners else ""
        start = "start the proxy"
        if facts.squid is not None:
            http_ports = listed(sorted(facts.squid.ports))
            start = "start Squid" + (f", whose http_port is {http_ports}" if http_ports else "")
        raise UserError(
            f"setup: no program listens with MPTCP for other hosts{plain}; allowed: {start}, or --port",
            os.EX_UNAVAILABLE,
        )
    if len(ports.items) > MAX_PORT_ITEMS:
        which = "--port:" if named else "the proxy listens on"
        raise UserError(
            f"setup: {which} {len(ports.items)} ports and ranges; allowed: up to {MAX_PORT_ITEMS}, such as --port"
            " 20000-29999",
            EX_COMMAND_LINE,
        )
    return ports


def _ports_of_proxies(listeners: Collection[Listener]) -> set[int]:
    with_mptcp = {listener.port for listener in listeners if listener.mptcp}
    of_proxies = {listener.port for listener in listeners if listener.program in PROXIES}
    plain = of_proxies - with_mptcp
    if of_proxies & with_mptcp:
        return of_proxies & with_mptcp
    if with_mptcp:
        programs = _by_program(listener for listener in listeners if listener.mptcp)
        proxies = f" ({_by_program(listener for listener in listeners if listener.port in plain)})" if plain else ""
        raise UserError(
            f"setup: no known proxy accepts MPTCP{proxies}, but other programs do ({programs}); allowed: --port,"
            " once for each port of the proxy, as setup does not know these programs",
            EX_COMMAND_LINE,
        )
    return plain


def _by_program(listeners: Iterable[Listener]) -> str:
    pairs = sorted({(listener.port, listener.program or "unknown") for listener in listeners})
    return listed(f"{port} by {program}" for port, program in pairs)


def unchosen_with_mptcp(facts: HostFacts, ports: Ports) -> str:
    """What accepts MPTCP on ports that are none of these; may be empty."""
    return _by_program(
        listener
        for listener in facts.listeners
        if listener.is_reachable and listener.mptcp and listener.port not in ports
    )


def why_ports(listening: Collection[Listener], ports: Ports, *, named: bool) -> str:
    """What listens on these ports, and whether the operator has named them."""
    reasons = (reason for each in ports.ranges for reason in _why(listening, Ports((each,))))
    return ("named with --port: " if named else "") + "; ".join(reasons)


def _why(listening: Collection[Listener], ports: Ports) -> Iterator[str]:
    used = ports & Ports.of(listener.port for listener in listening)
    with_mptcp = ports & Ports.of(listener.port for listener in listening if listener.mptcp)
    plain = ", with plain TCP until it is started with MPTCP"
    for some, how in ((with_mptcp, " with MPTCP"), (used - with_mptcp, plain)):
        if some:
            owners = {str(listener.owner) for listener in listening if listener.port in some and listener.owner}
            yield f"{listed(sorted(owners) or ['an unknown process'])} listens on {listed(some.items)}{how}"
    if ports - used:
        yield f"nothing listens on {listed((ports - used).items)} yet"


class _Candidates(NamedTuple):
    """Interfaces, and what speaks for them; `all_count`: it speaks for each, so that several can be chosen."""

    names: set[str]
    why: str
    all_count: bool


def choose_interfaces(
    facts: HostFacts, named: Collection[str], listening: Collection[Listener]
) -> tuple[list[str], str]:
    """The names, and why, for a proxy that listens on these sockets. Raises UserError."""
    usable = {interface.name: interface for interface in facts.interfaces if not interface.loopback}
    for name in named:
        if name not in usable:
            raise UserError(
                f"setup: --interface {name}: no such interface, or loopback; allowed: {listed(usable)}",
                EX_COMMAND_LINE,
            )
    if named:
        return list(dict.fromkeys(named)), "named with --interface"
    for candidates in _candidates(facts, usable.values(), listening):
        names = sorted(candidates.names & usable.keys())
        if len(names) == 1 or (names and candidates.all_count):
            return names, candidates.why
        if names:
            raise UserError(
                f"setup: clients may come through {listed(names)} ({candidates.why}); allowed: the interfaces that"
                " clients use, each with --interface",
                EX_COMMAND_LINE,
            )
    raise UserError(
        "setup: no interface is up that has an address for other hosts; allowed: name an interface with --interface",
        EX_COMMAND_LINE,
    )


def _candidates(
    facts: HostFacts, usable: Iterable[Interface], listening: Collection[Listener]
) -> Iterator[_Candidates]:
    """The strongest evidence first."""
    ports = {listener.port for listener in listening}
    paths = [path for path in facts.client_paths if path.port in ports]
    clients = sum(path.clients for path in paths)
    connected = f"used by the {clients} clients that are connected now"
    yield _Candidates({path.interface for path in paths}, connected, all_count=True)
    if listening and not any(listener.address.is_unspecified for listener in listening):
        bound = {listener.address for listener in listening}
        with_bound = {interface.name for interface in usable if bound & set(interface.addresses)}
        why = f"has the addresses on which the proxy listens: {listed(sorted(map(str, bound)))}"
        yield _Candidates(with_bound, why, all_count=True)
    yield _Candidates(set(facts.default_routes), "the default route leaves through it", all_count=False)
    with_address = {interface.name for interface in usable if interface.up and interface.addresses}
    yield _Candidates(with_address, "it is up, and has an address for other hosts", all_count=False)
