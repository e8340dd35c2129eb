"""What `setup` proposes for a host, with a reason for each value: a pure function of the facts.

Nothing is guessed: what cannot be decided is refused, in one line that says how the operator can decide it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

import yaml

from mptcp_throttle.config.schema import MetricsSection, WebSection
from mptcp_throttle.errors import UserError, listed
from mptcp_throttle.linux.qdisc_kinds import is_own, kind_in_the_way
from mptcp_throttle.ports import NO_PORTS, Ports
from mptcp_throttle.setup.choices import choose_interfaces, choose_ports, unchosen_with_mptcp, why_ports
from mptcp_throttle.setup.host_facts import HostFacts, Interface, Listener, Mptcp, Translation
from mptcp_throttle.setup.nat_rules import led_away
from mptcp_throttle.setup.server_drop_in import DropIn
from mptcp_throttle.systemd_unit import SERVICES

OWN_OPTIONS: Final = {
    "sing-box": '"tcp_multi_path": true',
    "xray": '"streamSettings": {"sockopt": {"tcpMptcp": true}}',
    "ssserver": '"mptcp": true',
}
"""Proxies that use no shared libc, so that mptcpize cannot help them, and what their configuration has for MPTCP."""

_LISTEN_DEFAULTS: Final = (("metrics", MetricsSection().listen), ("web", WebSection().listen))
_OWN_PROGRAMS: Final = "mptcp-throttle"
_SERVICES: Final = " ".join(SERVICES)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the configuration file, as YAML, and why it is proposed.

    `alternative` is another key of the same section, which may have the value instead. With `only_over_default`, a file
    that has been edited gets it only where it has the default: another value is the operator's choice.
    """

    keys: tuple[str, ...]
    text: str
    reason: str
    alternative: str | None = None
    only_over_default: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """The values that depend on this host, the services that must be started with MPTCP, and what else to know."""

    values: tuple[Value, ...]
    plain_servers: tuple[str, ...]
    notes: tuple[str, ...]


def propose(facts: HostFacts, interfaces: Collection[str] = (), ports: Ports = NO_PORTS) -> Proposal:
    """The proposal, with interfaces and ports that the operator has named. Raises UserError where it cannot work."""
    _require_mptcp(facts)
    chosen = choose_ports(facts, ports)
    listening = [listener for listener in facts.listeners if listener.is_reachable and listener.port in chosen]
    names, why = choose_interfaces(facts, interfaces, listening)
    used = [interface for interface in facts.interfaces if interface.name in names]
    values = (
        _interface(names, why),
        Value(("proxy", "ports"), json.dumps(chosen.items), why_ports(listening, chosen, named=bool(ports))),
        _pacing(facts),
        Value(("daemon", "replace_any_qdisc"), "false", "; ".join(map(why_qdisc, used)), only_over_default=True),
        *_listen_addresses(facts.listeners),
        _socket_group(facts),
    )
    with_mptcp = {listener.port for listener in listening if listener.mptcp}
    plain = [listener for listener in listening if listener.port not in with_mptcp]
    # What mptcpize can start: each service once.
    owners = [listener.owner for listener in plain if listener.program not in OWN_OPTIONS]
    services = sorted({owner.unit for owner in owners if owner is not None and owner.unit is not None})
    notes = (
        *_interface_notes(used),
        *_port_notes(facts, chosen, plain),
        *_translation_notes(facts.translations, chosen),
        *_squid_notes(facts, chosen, listening),
    )
    return Proposal(values, tuple(services), notes)


def _require_mptcp(facts: HostFacts) -> None:
    if facts.mptcp is Mptcp.MISSING:
        raise UserError("setup: this kernel has no MPTCP; allowed: one with CONFIG_MPTCP", os.EX_OSERR)
    if facts.mptcp is Mptcp.OFF:
        raise UserError("setup: MPTCP is off; allowed: `sysctl net.mptcp.enabled=1`, then setup again", os.EX_OSERR)


def _interface(names: Collection[str], why: str) -> Value:
    if len(names) == 1:
        (name,) = names
        return Value(("proxy", "interface"), _quoted(name), why, alternative="interfaces")
    return Value(("proxy", "interfaces"), f"[{', '.join(map(_quoted, names))}]", why, alternative="interface")


def _quoted(name: str) -> str:
    """The name of an interface in YAML: it may have almost any character, and may be `null` or `1`."""
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) and yaml.safe_load(name) == name
    return name if is_plain else json.dumps(name)


def _pacing(facts: HostFacts) -> Value:
    needed = (("/sys/kernel/btf/vmlinux", facts.has_type_information), ("libbpf.so.1", facts.has_libbpf))
    lacks = [name for name, exists in needed if not exists]
    if lacks:
        reason = f"without {' and '.join(lacks)} HTB alone enforces the rates; true uses them once they are there"
    else:
        reason = "this host has /sys/kernel/btf/vmlinux and libbpf.so.1, which the kernel program needs"
    return Value(("daemon", "pacing"), "true", reason, only_over_default=True)


def why_qdisc(interface: Interface) -> str:
    """Whether mptcp-throttled replaces the root qdisc of an interface, in words."""
    root = f"the root qdisc of {interface.name}"
    tree = interface.qdiscs
    if not tree:
        return f"{root} is not known"
    if is_own(tree):
        return f"{root} is that of mptcp-throttled"
    if not tree[0].handle:
        return f"{root}, {tree[0].kind}, is the kernel's default, which comes back"
    strange = kind_in_the_way(tree)
    if strange is None:
        return f"{root}, {tree[0].kind}, is of a kind that can be restored"
    below = f", has {strange} below it, which" if strange != tree[0].kind else ","
    return f"{root}, {tree[0].kind}{below} cannot be restored exactly: no qdisc guarantees caps there"


def is_in_the_way(interface: Interface) -> bool:
    """Whether its root qdisc, if it is known, cannot be replaced by HTB."""
    return bool(interface.qdiscs) and kind_in_the_way(interface.qdiscs) is not None


def _listen_addresses(listeners: Collection[Listener]) -> Iterator[Value]:
    """`null` where another program has the port of the default; another port is the operator's choice."""
    foreign = [listener for listener in listeners if not listener.program.startswith(_OWN_PROGRAMS)]
    for section, default in _LISTEN_DEFAULTS:
        taken = next((listener for listener in foreign if default is not None and listener.port == default.port), None)
        if taken is not None:
            reason = f"{taken.owner or 'another program'} listens on {taken.port} already"
            yield Value((section, "listen"), "null", reason, only_over_default=True)


def _socket_group(facts: HostFacts) -> Value:
    name, reason = "null", "this host has no group mptcp-throttle"
    if facts.has_socket_group:
        name, reason = "mptcp-throttle", "this host has the group; its members may use the CLI"
    return Value(("socket_group",), name, reason, only_over_default=True)


def _interface_notes(interfaces: Collection[Interface]) -> Iterator[str]:
    for interface in interfaces:
        if not interface.up:
            yield f"{interface.name} is down: no subflow is throttled there until it is up"
        if not interface.is_supported:
            yield (
                f"{interface.name} is none of Ethernet, tun, WireGuard and PPP: it cannot be captured (only the kernel"
                " list shows subflows there), and while it is listed, uploads are throttled on no interface"
            )
        if is_in_the_way(interface):
            yield f"{why_qdisc(interface)}; `replace_any_qdisc: true` replaces it anyway"


def _port_notes(facts: HostFacts, ports: Ports, plain: Collection[Listener]) -> Iterator[str]:
    """`plain` are the sockets on ports of the proxy that do not accept MPTCP."""
    unchosen = unchosen_with_mptcp(facts, ports)
    if unchosen:
        yield f"other ports with MPTCP: {unchosen}; --port, once for each, chooses ports"
    programs = {listener.program for listener in plain}
    if any(program.startswith("systemd") for program in programs):
        yield "systemd listens for a socket unit: `SocketProtocol=mptcp` in it, or setup --server-drop-in NAME.socket"
    for program in sorted(programs & OWN_OPTIONS.keys()):
        yield (
            f"{program} listens with plain TCP, and mptcpize cannot help it: write `{OWN_OPTIONS[program]}` into its"
            " configuration, in the entry that listens"
        )
    for chain in facts.dropping_chains:
        yield f"a firewall drops what no rule accepts (chain {chain}): accept TCP port {listed(ports.items)} there"


def _translation_notes(translations: Iterable[Translation], ports: Ports) -> Iterator[str]:
    """Of address translation that the proposed ports concern."""
    for translation in translations:
        new, away = translation.port, led_away(translation, ports)
        if away:
            yield (
                f"connections to port {listed(away.items)} are sent to {translation.target}: they do not end at the"
                " proposed port, and are not throttled"
            )
        if translation.address is None and new is not None and new in ports:
            sources = translation.ports - Ports.of([new])
            if sources:
                yield (
                    f"connections to port {listed(sources.items)} are sent to {translation.target}: their uploads are"
                    " not throttled"
                )


def _squid_notes(facts: HostFacts, ports: Ports, listening: Collection[Listener]) -> Iterator[str]:
    squid = facts.squid
    if squid is None:
        return
    http_ports = listed(sorted(squid.ports))
    if squid.ports.isdisjoint(ports):
        if not listening:
            known = (
                f"Squid's http_port is {http_ports}: --port takes it, or" if http_ports else "Squid has no http_port:"
            )
            yield f"{known} write `http_port {min(ports)}` into a file in /etc/squid/conf.d"
        return
    if not squid.serves_hosts:
        yield (
            "Squid serves only this host: write `acl clients src SUBNETS`, with the subnets of the clients, and"
            " `http_access allow clients` into a file in /etc/squid/conf.d"
        )
    if not squid.has_large_buffer:
        yield (
            "Squid 5 ends fast uploads (bug 5405): write `client_request_buffer_max_size 64 MB` into a file in"
            " /etc/squid/conf.d, as setup --server-drop-in squid does"
        )


def next_steps(
    facts: HostFacts,
    plain_servers: Sequence[str],
    drop_in: DropIn | None,
    *,
    needs_parameters: bool,
    has_own_networks: bool,
) -> Iterator[str]:
    """The commands that the operator runs after `setup`, in their order.

    `plain_servers` are the services that listen with plain TCP. `needs_parameters`: the kernel parameters of the
    package do not apply yet.
    """
    if needs_parameters:
        yield "sysctl --system"
    for unit in plain_servers:
        if drop_in is None or unit != drop_in.unit:
            yield f"mptcp-throttle setup --server-drop-in {quote(unit.removesuffix('.service'))}"
    if drop_in is not None:
        yield from drop_in.apply
    yield f"systemctl restart {_SERVICES}" if facts.services_run else f"systemctl enable --now {_SERVICES}"
    if not has_own_networks:
        yield "mptcp-throttle setup networks --write [--expensive ADDRESS]"
        yield "mptcp-throttle reload"
    yield "mptcp-throttle doctor"
