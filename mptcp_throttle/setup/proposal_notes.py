"""What else to know about a proposal: what keeps it from working, and lines that other programs lack."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mptcp_throttle.setup.host_facts import HostFacts, Interface, Listener
from mptcp_throttle.setup.port_choice import OWN_OPTIONS, others_with_mptcp
from mptcp_throttle.setup.root_qdisc import is_in_the_way, why_qdisc
from mptcp_throttle.setup.wording import listed


def notes_about(
    facts: HostFacts,
    interfaces: Collection[Interface],
    ports: Collection[int],
    listening: Collection[Listener],
    plain: list[Listener],
) -> Iterator[str]:
    """One line each; `listening` are the sockets on the proxy's ports, `plain` those of them without MPTCP."""
    for interface in interfaces:
        if not interface.up:
            yield f"{interface.name} is down: nobody is throttled there until it is up"
        if not interface.is_supported:
            yield (
                f"{interface.name} is none of Ethernet, tun, WireGuard and PPP: it cannot be captured (only the kernel"
                " list shows subflows there), and while it is listed, uploads are throttled on no interface"
            )
        if is_in_the_way(interface):
            yield f"{why_qdisc(interface)}; `replace_any_qdisc: true` replaces it all the same"
    others = others_with_mptcp(facts, ports)
    if others is not None:
        yield f"also listened on with MPTCP: {others}; --port, once for each, takes other ports"
    if any(one.program.startswith("systemd") for one in plain):
        yield "systemd listens for a socket unit: `SocketProtocol=mptcp` in it, or setup --server-drop-in NAME.socket"
    for program in sorted({one.program for one in plain} & OWN_OPTIONS.keys()):
        yield (
            f"{program} listens with plain TCP, and mptcpize cannot help it: write `{OWN_OPTIONS[program]}` into its"
            " configuration, in the entry that listens"
        )
    for chain in facts.dropping_chains:
        yield f"a firewall drops what no rule accepts (chain {chain}): accept TCP port {listed(map(str, ports))} there"
    yield from _squid_notes(facts, ports, listening)


def _squid_notes(facts: HostFacts, ports: Collection[int], listening: Collection[Listener]) -> Iterator[str]:
    squid = facts.squid
    if squid is None:
        return
    http_ports = listed(map(str, sorted(squid.ports)))
    if squid.ports.isdisjoint(ports):
        if not listening:
            known = (
                f"Squid's http_port is {http_ports}: --port takes it, or" if http_ports else "Squid has no http_port:"
            )
            yield f"{known} write `http_port {min(ports)}` into a file in /etc/squid/conf.d"
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
