"""What `setup` proposes for a host, with a reason for each value: a pure function of the facts.

What cannot be decided is refused in one line that names what decides it: nothing is guessed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import yaml

from mptcp_throttle.errors import EX_COMMAND_LINE, UserError
from mptcp_throttle.linux.qdisc_kinds import RESTORABLE
from mptcp_throttle.setup.host_facts import HostFacts, Interface, Listener, Mptcp

KNOWN_SERVERS: Final = ("squid", "nginx", "haproxy")
"""Proxies that listen with plain TCP as they are installed, and can be started with MPTCP."""

_OWN_QDISC: Final = "htb"
_MOST_PORTS: Final = 16
_MOST_NAMED: Final = 5
_METRICS_PORT: Final = 9721
_PAGE_PORT: Final = 9722
_OWN_PROGRAMS: Final = "mptcp-throttle"


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the configuration file, as YAML, and why it is proposed.

    `replaced` is another key of the same section, which may have the value instead.
    """

    keys: tuple[str, ...]
    text: str
    reason: str
    replaced: str | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """The values that depend on this host, the services that must be started with MPTCP, and what else to know."""

    values: tuple[Value, ...]
    plain_servers: tuple[str, ...]
    notes: tuple[str, ...]


def propose(facts: HostFacts, interfaces: Collection[str] = (), ports: Collection[int] = ()) -> Proposal:
    """The proposal, with interfaces and ports that the operator has named. Raises UserError where it cannot work."""
    _require_mptcp(facts)
    chosen = _ports(facts, ports)
    listening = [one for one in _reachable(facts.listeners) if one.port in chosen]
    names, why = _interfaces(facts, interfaces, listening)
    used = [one for one in facts.interfaces if one.name in names]
    values = (
        _interface_value(names, why),
        Value(("proxy", "ports"), f"[{', '.join(map(str, chosen))}]", _why_ports(listening, chosen, named=bool(ports))),
        _kernel_decides(facts),
        Value(("daemon", "replace_any_qdisc"), "false", "; ".join(map(_why_qdisc, used))),
        *_listen_addresses(facts.listeners),
        _socket_group(facts),
    )
    plain = [one for one in listening if not one.mptcp and one.port not in _mptcp_ports(listening)]
    return Proposal(values, tuple(_services(plain)), tuple(_notes(facts, used, chosen, listening, plain)))


def _require_mptcp(facts: HostFacts) -> None:
    if facts.mptcp is Mptcp.MISSING:
        raise UserError("setup: this kernel has no MPTCP; allowed: one with CONFIG_MPTCP", os.EX_OSERR)
    if facts.mptcp is Mptcp.OFF:
        raise UserError("setup: MPTCP is off; allowed: `sysctl net.mptcp.enabled=1`, then setup again", os.EX_OSERR)


def _reachable(listeners: Iterable[Listener]) -> Iterator[Listener]:
    """Those that other hosts can connect to."""
    return (one for one in listeners if not one.address.is_loopback)


def _mptcp_ports(listeners: Iterable[Listener]) -> set[int]:
    return {one.port for one in listeners if one.mptcp}


def _ports(facts: HostFacts, named: Collection[int]) -> tuple[int, ...]:
    reachable = [*_reachable(facts.listeners)]
    with_mptcp = _mptcp_ports(reachable)
    found = set(named) or with_mptcp or {one.port for one in reachable if one.program in KNOWN_SERVERS}
    if not found:
        plain = sorted({(one.port, one.program or "unknown") for one in reachable})
        others = f" (plain TCP: {_listed(f'{port} by {program}' for port, program in plain)})" if plain else ""
        start = "start the proxy"
        if facts.squid is not None:
            start = f"start Squid, whose http_port is {_listed(map(str, sorted(facts.squid.ports)))}"
        raise UserError(
            f"setup: nothing listens for other hosts with MPTCP{others}; allowed: {start}, or name a port with --port",
            os.EX_UNAVAILABLE,
        )
    if len(found) > _MOST_PORTS:
        raise UserError(
            f"setup: {len(found)} ports are listened on with MPTCP; allowed: up to {_MOST_PORTS}, named with --port",
            EX_COMMAND_LINE,
        )
    return tuple(sorted(found))


def _why_ports(listening: Iterable[Listener], ports: Collection[int], *, named: bool) -> str:
    listening = tuple(listening)
    reasons = []
    for port in ports:
        here = [one for one in listening if one.port == port]
        owners = sorted({str(one.owner) for one in here if one.owner is not None}) or ["a process that is not known"]
        if not here:
            reasons.append(f"nobody listens on {port} yet")
        elif any(one.mptcp for one in here):
            reasons.append(f"{_listed(owners)} listens on {port} with MPTCP")
        else:
            reasons.append(f"{_listed(owners)} listens on {port}, with plain TCP until it is started with MPTCP")
    return ("named with --port: " if named else "") + "; ".join(reasons)


def _interface_value(names: Collection[str], why: str) -> Value:
    if len(names) == 1:
        (name,) = names
        return Value(("proxy", "interface"), _quoted(name), why, replaced="interfaces")
    return Value(("proxy", "interfaces"), f"[{', '.join(map(_quoted, names))}]", why, replaced="interface")


def _quoted(name: str) -> str:
    """The name of an interface in YAML: almost any character may be in it, and one may be called `null` or `1`."""
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) and yaml.safe_load(name) == name
    return name if is_plain else json.dumps(name)


class _Candidates(NamedTuple):
    """Interfaces, and what speaks for them; `all_count`: for each of them, not only for one or the other."""

    names: set[str]
    why: str
    all_count: bool


def _interfaces(facts: HostFacts, named: Collection[str], listening: Collection[Listener]) -> tuple[list[str], str]:
    """The names, and why. Raises UserError."""
    usable = {one.name: one for one in facts.interfaces if not one.loopback}
    for name in named:
        if name not in usable:
            raise UserError(
                f"setup: --interface {name}: is none through which clients come; allowed: {_listed(usable)}",
                EX_COMMAND_LINE,
            )
    if named:
        return list(dict.fromkeys(named)), "named with --interface"
    for candidates in _candidates(facts, usable.values(), listening):
        found = sorted(candidates.names & usable.keys())
        if len(found) == 1 or (found and candidates.all_count):
            return found, candidates.why
        if found:
            raise UserError(
                f"setup: clients may come through {_listed(found)} ({candidates.why}); allowed: those through which"
                " they come, each with --interface",
                EX_COMMAND_LINE,
            )
    raise UserError(
        "setup: no interface is up that has an address for other hosts; allowed: one, named with --interface",
        EX_COMMAND_LINE,
    )


def _candidates(
    facts: HostFacts, usable: Iterable[Interface], listening: Collection[Listener]
) -> Iterator[_Candidates]:
    """The most convincing first."""
    ports = {one.port for one in listening}
    paths = [path for path in facts.client_paths if path.port in ports]
    clients = sum(path.clients for path in paths)
    connected = f"the way to the {clients} clients that are connected now"
    yield _Candidates({path.interface for path in paths}, connected, all_count=True)
    if listening and not any(one.address.is_unspecified for one in listening):
        bound = {one.address for one in listening}
        having = {one.name for one in usable if bound & set(one.addresses)}
        yield _Candidates(having, f"has what the proxy listens on: {_listed(sorted(map(str, bound)))}", all_count=True)
    yield _Candidates(set(facts.default_routes), "the default route leaves through it", all_count=False)
    with_address = {one.name for one in usable if one.up and one.addresses}
    yield _Candidates(with_address, "it is up, and has an address for other hosts", all_count=False)


def _kernel_decides(facts: HostFacts) -> Value:
    lacks = [
        *([] if facts.has_type_information else ["/sys/kernel/btf/vmlinux"]),
        *([] if facts.has_libbpf else ["libbpf.so.1"]),
    ]
    if lacks:
        reason = (
            f"without {' and '.join(lacks)} the daemon decides, milliseconds later; auto uses them once they are there"
        )
    else:
        reason = "this host has /sys/kernel/btf/vmlinux and libbpf.so.1, so the kernel can decide, in microseconds"
    return Value(("daemon", "kernel_decides"), "auto", reason)


def _why_qdisc(interface: Interface) -> str:
    kind = interface.qdisc
    if kind is None:
        return f"the root qdisc of {interface.name} is not known"
    if kind == _OWN_QDISC:
        return f"the root qdisc of {interface.name} is htb: that of mptcp-throttled, or one that it does not replace"
    if _is_restorable(kind):
        return f"the root qdisc of {interface.name}, {kind}, can be restored exactly"
    return f"the root qdisc of {interface.name}, {kind}, cannot be restored exactly: nobody is throttled there"


def _is_restorable(kind: str | None) -> bool:
    return kind is None or kind == _OWN_QDISC or kind in RESTORABLE


def _listen_addresses(listeners: Collection[Listener]) -> Iterator[Value]:
    for section, port in (("metrics", _METRICS_PORT), ("web", _PAGE_PORT)):
        others = [one for one in listeners if one.port == port and not one.program.startswith(_OWN_PROGRAMS)]
        if others:
            owner = others[0].owner or "another program"
            yield Value((section, "listen"), "null", f"{owner} listens on {port} already")


def _socket_group(facts: HostFacts) -> Value:
    if facts.has_socket_group:
        reason = "this host has the group; its members may use the CLI"
        return Value(("socket_group",), "mptcp-throttle", reason)
    return Value(("socket_group",), "null", "this host has no group mptcp-throttle")


def _services(listeners: Iterable[Listener]) -> Iterator[str]:
    """The systemd services that listen with plain TCP, each once."""
    units = {one.owner.unit for one in listeners if one.owner is not None and one.owner.unit is not None}
    yield from sorted(units)


def _notes(
    facts: HostFacts,
    interfaces: Collection[Interface],
    ports: Collection[int],
    listening: Collection[Listener],
    plain: list[Listener],
) -> Iterator[str]:
    for interface in interfaces:
        if not interface.up:
            yield f"{interface.name} is down: nobody is throttled there until it is up"
        if not interface.has_ethernet_header:
            yield f"{interface.name} has no Ethernet header: downloads are throttled there, uploads are not"
        if not _is_restorable(interface.qdisc):
            yield f"{_why_qdisc(interface)}; `replace_any_qdisc: true` replaces it all the same"
    if any(one.program.startswith("systemd") for one in plain):
        yield "systemd listens for a socket unit: `SocketProtocol=mptcp` in it, or setup --server-drop-in NAME.socket"
    for chain in facts.dropping_chains:
        yield f"a firewall drops what no rule accepts (chain {chain}): accept TCP port {_listed(map(str, ports))} there"
    yield from _squid_notes(facts, ports, listening)


def _squid_notes(facts: HostFacts, ports: Collection[int], listening: Collection[Listener]) -> Iterator[str]:
    squid = facts.squid
    if squid is None:
        return
    listed = _listed(map(str, sorted(squid.ports)))
    if squid.ports.isdisjoint(ports):
        if not listening:
            yield (
                f"Squid's http_port is {listed}: --port takes it, or write `http_port {min(ports)}` into a file in"
                " /etc/squid/conf.d"
            )
        return
    if not squid.serves_others:
        yield (
            "Squid serves this host alone: write `acl clients src SUBNETS`, with the subnets of the clients, and"
            " `http_access allow clients` into a file in /etc/squid/conf.d"
        )
    if not squid.has_large_buffer:
        yield (
            "Squid 5 ends fast uploads (bug 5405): write `client_request_buffer_max_size 64 MB` into a file in"
            " /etc/squid/conf.d, as setup --server-drop-in squid does"
        )


def _listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
