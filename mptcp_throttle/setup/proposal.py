"""What `setup` proposes for a host, with a reason for each value: a pure function of the facts.

What cannot be decided is refused in one line that names what decides it: nothing is guessed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mptcp_throttle.config.schema import MetricsSection, WebSection
from mptcp_throttle.errors import UserError
from mptcp_throttle.setup.host_facts import HostFacts, Listener, Mptcp
from mptcp_throttle.setup.interface_choice import choose_interfaces, interface_value
from mptcp_throttle.setup.port_choice import OWN_OPTIONS, choose_ports, mptcp_ports, reachable, why_ports
from mptcp_throttle.setup.proposal_notes import notes_about
from mptcp_throttle.setup.proposed_value import Value
from mptcp_throttle.setup.root_qdisc import why_qdisc

_LISTEN_DEFAULTS: Final = (("metrics", MetricsSection().listen), ("web", WebSection().listen))
_OWN_PROGRAMS: Final = "mptcp-throttle"


@dataclass(frozen=True, slots=True)
class Proposal:
    """The values that depend on this host, the services that must be started with MPTCP, and what else to know."""

    values: tuple[Value, ...]
    plain_servers: tuple[str, ...]
    notes: tuple[str, ...]


def propose(facts: HostFacts, interfaces: Collection[str] = (), ports: Collection[int] = ()) -> Proposal:
    """The proposal, with interfaces and ports that the operator has named. Raises UserError where it cannot work."""
    _require_mptcp(facts)
    chosen = choose_ports(facts, ports)
    listening = [one for one in reachable(facts.listeners) if one.port in chosen]
    names, why = choose_interfaces(facts, interfaces, listening)
    used = [one for one in facts.interfaces if one.name in names]
    why_chosen = why_ports(listening, chosen, named=bool(ports))
    values = (
        interface_value(names, why),
        Value(("proxy", "ports"), f"[{', '.join(map(str, chosen))}]", why_chosen),
        _kernel_decides(facts),
        Value(("daemon", "replace_any_qdisc"), "false", "; ".join(map(why_qdisc, used)), only_over_default=True),
        *_listen_addresses(facts.listeners),
        _socket_group(facts),
    )
    plain = [one for one in listening if not one.mptcp and one.port not in mptcp_ports(listening)]
    return Proposal(values, tuple(_services(plain)), tuple(notes_about(facts, used, chosen, listening, plain)))


def _require_mptcp(facts: HostFacts) -> None:
    if facts.mptcp is Mptcp.MISSING:
        raise UserError("setup: this kernel has no MPTCP; allowed: one with CONFIG_MPTCP", os.EX_OSERR)
    if facts.mptcp is Mptcp.OFF:
        raise UserError("setup: MPTCP is off; allowed: `sysctl net.mptcp.enabled=1`, then setup again", os.EX_OSERR)


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
    return Value(("daemon", "kernel_decides"), "auto", reason, only_over_default=True)


def _listen_addresses(listeners: Collection[Listener]) -> Iterator[Value]:
    """`null` where another program has the port of the default; another port is the operator's choice."""
    foreign = [one for one in listeners if not one.program.startswith(_OWN_PROGRAMS)]
    for section, default in _LISTEN_DEFAULTS:
        others = [one for one in foreign if default is not None and one.port == default.port]
        if others:
            reason = f"{others[0].owner or 'another program'} listens on {others[0].port} already"
            yield Value((section, "listen"), "null", reason, only_over_default=True)


def _socket_group(facts: HostFacts) -> Value:
    if facts.has_socket_group:
        reason = "this host has the group; its members may use the CLI"
        return Value(("socket_group",), "mptcp-throttle", reason, only_over_default=True)
    return Value(("socket_group",), "null", "this host has no group mptcp-throttle", only_over_default=True)


def _services(listeners: Iterable[Listener]) -> Iterator[str]:
    """The systemd services that listen with plain TCP and can be started by mptcpize, each once."""
    owners = [one.owner for one in listeners if one.owner is not None and one.program not in OWN_OPTIONS]
    yield from sorted({owner.unit for owner in owners if owner.unit is not None})
