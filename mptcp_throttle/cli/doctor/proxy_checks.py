"""Checks of the proxy: its interface, its ports, and the way to its clients."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.cli.doctor.finding import Host, or_ok
from mptcp_throttle.cli.doctor.programs import output_of
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import UserError
from mptcp_throttle.findings import Finding
from mptcp_throttle.linux.inet_diag import SENDING, InetDiag
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_socket import read_consistently
from mptcp_throttle.linux.route_lookup import RouteLookup
from mptcp_throttle.model import AccessNetwork, Address

_INTERFACES: Final = Path("/sys/class/net")
# A look-up takes about a millisecond.
_MOST_CLIENTS: Final = 1000


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


class _Destination(NamedTuple):
    """Where the proxy sends to, and from which of its addresses: a client, or a subnet in which there is none now."""

    network: AccessNetwork
    name: str
    address: Address
    source: Address | None
    is_client: bool


def routes(host: Host) -> list[Finding]:
    """Whether what is sent to clients leaves through the configured interface."""
    config, subject = host.config, "routes to clients"
    try:
        clients = _clients(config)
        known = list(islice(clients, _MOST_CLIENTS))
        with RouteLookup() as lookup:
            elsewhere = _leaving_elsewhere(lookup, [*known, *_subnets(config, known, lookup)], config.proxy.interface)
    except KernelError as error:
        return [Finding(subject, unchecked=str(error))]
    findings = or_ok(subject, _judge(elsewhere, config.proxy.interface))
    if next(clients, None) is not None:
        findings.append(Finding(subject, unchecked=f"those to more than {_MOST_CLIENTS} clients"))
    return findings


def _clients(config: Config) -> Iterator[_Destination]:
    """Those to which it can send, each address once for each address of the proxy. Raises KernelError."""
    with InetDiag() as diag:
        sockets = read_consistently(lambda: list(diag.sockets(SENDING, (), config.proxy.ports)))
    for remote, local in sorted({(one.remote, one.local) for one in sockets}):
        client = ip_address(remote)
        network = next((one for one in config.networks if _contains(one, client)), None)
        if network is not None:
            yield _Destination(network, str(client), client, ip_address(local), is_client=True)


def _contains(network: AccessNetwork, address: Address) -> bool:
    return any(address in subnet for subnet in network.subnets)


def _subnets(config: Config, clients: Sequence[_Destination], lookup: RouteLookup) -> Iterator[_Destination]:
    """Those in which no client is. Raises KernelError."""
    # Of several routing tables, the source may choose one (ip-rule(8)).
    sources = {version: lookup.address_of(config.proxy.interface, version) for version in (4, 6)}
    for network in config.networks:
        for subnet in network.subnets:
            if not any(client.address in subnet for client in clients):
                first = subnet[min(1, subnet.num_addresses - 1)]
                yield _Destination(network, str(subnet), first, sources[subnet.version], is_client=False)


def _leaving_elsewhere(
    lookup: RouteLookup, destinations: Iterable[_Destination], interface: str
) -> dict[tuple[AccessNetwork, str], list[_Destination]]:
    """The destinations by network, and the interface that is used instead. Raises KernelError."""
    found = defaultdict(list)
    for one in destinations:
        used = lookup.interface_to(one.address, one.source)
        if used not in {None, interface}:
            found[one.network, str(used)].append(one)
    return found


def _judge(elsewhere: Mapping[tuple[AccessNetwork, str], list[_Destination]], interface: str) -> Iterator[Finding]:
    for (network, used), destinations in elsewhere.items():
        names = destinations[0].name + (f" and {len(destinations) - 1} more" if len(destinations) > 1 else "")
        problem = f"to {names} leave through {used}, where neither HTB nor mptcp-sniffer sees packets"
        remedy = f"route {network.name} through {interface}, or set proxy.interface"
        has_rate = network.cap is not None or network.limit is not None
        harm = has_rate and any(one.is_client for one in destinations)
        yield Finding(f"routes to clients of {network.name}", problem, remedy, harm)
