"""Checks of the proxy: its interface, its ports, the way to its clients, and Squid's configuration."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.cli.doctor.kernel_checks import read_announced
from mptcp_throttle.cli.doctor.mark_checks import classifier_of
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import UserError, listed
from mptcp_throttle.features import DOCUMENTS
from mptcp_throttle.findings import Finding, Host, note, of_the_proxy, or_ok
from mptcp_throttle.follow_namespace import why_left
from mptcp_throttle.linux.inet_diag import SENDING, InetDiag
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_socket import read_consistently
from mptcp_throttle.linux.route_lookup import RouteLookup
from mptcp_throttle.model import AccessNetwork, Address, ClassifierKind, Direction, Network
from mptcp_throttle.network_namespace import KEPT_AT, is_entered
from mptcp_throttle.ports import NO_PORTS, Ports
from mptcp_throttle.programs import ProgramFailed, output_of
from mptcp_throttle.setup.collect_facts import listeners_elsewhere, read_interceptions, read_translations
from mptcp_throttle.setup.host_facts import Translation
from mptcp_throttle.setup.nat_rules import led_away
from mptcp_throttle.squid_config import CONFIGURATION, has_large_buffer, http_ports, read_lines, serves_hosts
from mptcp_throttle.subnet_table import SubnetTable, network_table

_NAMESPACE: Final = "network namespace"
_INTERFACES: Final = Path("/sys/class/net")
_LOCAL_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RESERVED_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_OWN: Final = "own connections"
_ENDS: Final = "ends of connections"
_TPROXY: Final = "TPROXY"
_TRANSLATED: Final = "translated connections"
END_HERE: Final = (
    "let the proxy use the network of this host (Docker: `--network host`), without rules that translate its ports, or"
    f" set proxy.namespace: {DOCUMENTS}/howto/containers.md"
)
"""What to do about connections that end elsewhere."""
_KEYS: Final = "proxy.interface or proxy.interfaces"
# A look-up takes about a millisecond.
_MOST_CLIENTS: Final = 1000
_MOST_SUBNETS: Final = 1000
# For documentation (RFC 5737, RFC 3849): only the default route leads there.
_ANYWHERE: Final = {4: ip_address("192.0.2.1"), 6: ip_address("2001:db8::1")}


def namespace(host: Host) -> list[Finding]:
    """Whether this is the network namespace of the proxy, which all other checks are about."""
    source = host.config.proxy.namespace
    if source is None:
        return []
    if is_entered():
        return [Finding(_NAMESPACE, remark=f"that of {source}")]
    why = "is not there" if not KEPT_AT.exists() else why_left(source) if os.geteuid() == 0 else None
    if why is not None:
        problem = f"{source} {why}: the other findings are about the network of this host"
        remedy = "start the container, and `systemctl start mptcp-throttle-namespace`"
        return [Finding(_NAMESPACE, problem, remedy)]
    return [
        Finding(
            _NAMESPACE,
            unchecked=f"only root may enter that of {source}; the other findings are about the network of this host",
        )
    ]


def interface(host: Host) -> Iterator[Finding]:
    """Whether the configured interfaces exist. One of several may come later."""
    configured = host.config.proxy.interfaces
    missing = [name for name in configured if not (_INTERFACES / name).exists()]
    names = ", ".join(sorted(entry.name for entry in _INTERFACES.iterdir()))
    problems = (f"{name} does not exist; allowed: one of {names}" for name in missing)
    harm = len(missing) == len(configured)
    yield from or_ok("interface", (Finding("interface", problem, f"correct {_KEYS}", harm) for problem in problems))


@of_the_proxy("proxy ports")
def listeners(host: Host) -> Iterator[Finding]:
    """Whether a process listens on each port of the proxy, with MPTCP; of a range, on one of its ports at least."""
    with_mptcp, used = _listening("-M") | _announced_ports(), _listening("-t")
    of_proxies = [(name, item) for name, proxy in host.config.proxies.by_name.items() for item in proxy.ports.items]
    for name, item in of_proxies:
        key = "proxy.ports" if name is None else f"proxies.{name}.ports"
        ports = Ports.parse([item])
        plain, is_served = (ports & used) - with_mptcp, bool(ports & with_mptcp)
        subject = f"proxy port {item}" if len(ports) == 1 else f"proxy ports {item}"
        if plain:
            several = f"listeners without MPTCP on: {listed(plain.items)}"
            problem = "has a listener without MPTCP" if len(ports) == 1 else several
            remedy = "start the proxy with `mptcpize run`; for a service, `mptcp-throttle setup --server-drop-in NAME`"
            yield Finding(subject, problem, remedy, harm=not is_served)
        elif is_served:
            yield Finding(subject)
        else:
            remedy = f"start the proxy, or set {key}{_remedy_for_port(ports, key)}"
            yield Finding(subject, f"no process listens on {'it' if len(ports) == 1 else 'them'}", remedy)


def _listening(protocol: str) -> Ports:
    """The ports on which sockets of TCP (`-t`) or of MPTCP (`-M`) listen."""
    shown = output_of("ss", "-H", "-l", "-n", protocol)
    if shown is None:
        raise UserError("ss: not found; it is part of iproute2", os.EX_UNAVAILABLE)
    ports = (line.split()[3].rpartition(":")[2] for line in shown.splitlines())
    # The kernel's own listener of an endpoint with a port has none here (net/mptcp/, mptcp_pm_nl_create_listen_socket).
    return Ports.of(int(port) for port in ports if port != "*")


def _announced_ports() -> Ports:
    """The ports on which the kernel listens itself, for JOINs; none if these may not be read."""
    try:
        return Ports.of(each.port for each in read_announced() if each.port)
    except KernelError:
        return NO_PORTS


@of_the_proxy(_ENDS)
def ends(host: Host) -> list[Finding]:
    """Whether connections to the proxy's ports end in this network namespace, as far as rules and listeners show."""
    if os.geteuid() != 0:
        return [Finding(_ENDS, unchecked="only root may list the rules of iptables and nftables")]
    try:
        leading = _leading_away(host.config.proxy.ports)
    except KernelError as error:
        return [Finding(_ENDS, unchecked=str(error))]
    targets = Ports.of(rule.port for rule, _ in leading if rule.address is not None and rule.port is not None)
    used = _listening("-t")
    absent = Ports(tuple(each for each in host.config.proxy.ports.ranges if not used & Ports((each,))))
    problems = [_sent_away(*each) for each in leading]
    problems += [
        f"{'an unknown process' if owner is None else owner} listens on port {port} in another network namespace"
        for port, owner in listeners_elsewhere(targets | absent)
    ]
    return or_ok(_ENDS, (Finding(_ENDS, problem, END_HERE, harm=False) for problem in dict.fromkeys(problems)))


def translated(host: Host) -> list[Finding]:
    """Whether the rules of the classifier `rules`, which come before NAT, see what is on the wire of a host that only
    forwards."""
    if host.config.sniffer.kernel_view or classifier_of(host) != ClassifierKind.RULES:
        return []
    if os.geteuid() != 0:
        return [Finding(_TRANSLATED, unchecked="only root may list the rules of iptables and nftables")]
    try:
        leading = _leading_away(host.config.proxy.ports)
    except KernelError as error:
        return [Finding(_TRANSLATED, unchecked=str(error))]
    problems = [f"{_sent_away(*each)}: no rule of `rules` matches what comes back" for each in leading]
    return or_ok(_TRANSLATED, (Finding(_TRANSLATED, problem, "set daemon.classifier: nft") for problem in problems))


@of_the_proxy(_TPROXY)
def interceptions(host: Host) -> list[Finding]:
    """Whether TPROXY gives connections to sockets on the port that clients use.

    A subflow may join only at the port of its connection (net/mptcp/subflow.c, subflow_use_different_sport), which is
    that on the wire, while the port of the JOIN is that of the listening socket.
    """
    if os.geteuid() != 0:
        return [Finding(_TPROXY, unchecked="only root may list the rules of iptables and nftables")]
    try:
        rules = read_interceptions()
    except ProgramFailed as error:
        return [Finding(_TPROXY, unchecked=str(error))]
    ports = host.config.proxy.ports
    problems = (
        f"connections to port {listed(moved.items)} are given to the socket on port {rule.port} (chain {rule.chain}),"
        " where the kernel refuses their JOINs"
        for rule in rules
        if rule.port is not None and (rule.ports & ports or rule.port in ports)
        if (moved := rule.ports - Ports.of([rule.port]))
    )
    remedy = "let the proxy listen on the port that clients use, and name that in proxy.ports"
    # The rule may concern other clients than those of the proxy.
    return or_ok(_TPROXY, (Finding(_TPROXY, problem, remedy, harm=False) for problem in problems))


def _leading_away(ports: Ports) -> list[tuple[Translation, Ports]]:
    """The rules that send connections elsewhere, and which of these ports that concerns. Raises KernelError."""
    rules = [(rule, led_away(rule, ports)) for rule in read_translations()]
    return [(rule, concerned) for rule, concerned in rules if concerned]


def _sent_away(rule: Translation, ports: Ports) -> str:
    return f"connections to port {listed(ports.items)} are sent to {rule.target}"


@of_the_proxy(_OWN)
def own_connections(host: Host) -> Iterator[Finding]:
    """Whether connections that this host opens may get ports of the proxy: they would be taken for clients'.

    The kernel gives no connection a port on which a socket listens
    (net/ipv4/inet_hashtables.c, __inet_hash_connect).
    """
    ports = host.config.proxy.ports
    try:
        first, last = map(int, _LOCAL_PORTS.read_text(encoding="utf-8").split())
        reserved = Ports.parse(filter(None, _RESERVED_PORTS.read_text(encoding="utf-8").strip().split(",")))
    except OSError as error:
        yield Finding(_OWN, unchecked=f"{error.filename}: cannot be read: {error.strerror}")
        return
    free = (ports & Ports((range(first, last + 1),))) - reserved
    taken = free - _listening("-t") if free else free
    problem = f"may get ports of the proxy, and be throttled: {listed(taken.items)}"
    remedy = f"add these ports to net.ipv4.ip_local_reserved_ports, in a file in /etc/sysctl.d: {listed(free.items)}"
    yield note(_OWN, is_well=not taken, problem=problem, remedy=remedy)


class _Destination(NamedTuple):
    """Where the proxy sends to, and from which of its addresses: a client, or a subnet in which there is none now."""

    network: AccessNetwork
    name: str
    address: Address
    source: Address | None
    is_client: bool


def routes(host: Host) -> list[Finding]:
    """Whether what is sent to clients leaves through the configured interfaces."""
    config, subject = host.config, "routes to clients"
    try:
        clients = _clients(config)
        known = list(islice(clients, _MOST_CLIENTS))
        with RouteLookup() as lookup:
            subnets = _subnets(config, known, lookup)
            destinations = [*known, *islice(subnets, _MOST_SUBNETS)]
            elsewhere = _leaving_elsewhere(lookup, destinations, config.proxy.interfaces)
            bounds = (clients, f"{_MOST_CLIENTS} clients"), (subnets, f"{_MOST_SUBNETS} subnets without a client")
            exceeded = [bound for rest, bound in bounds if next(rest, None) is not None]
    except KernelError as error:
        return [Finding(subject, unchecked=str(error))]
    unchecked = (Finding(subject, unchecked=f"those to more than {bound}") for bound in exceeded)
    return [*or_ok(subject, _judge(elsewhere, config.proxy.interfaces)), *unchecked]


def _clients(config: Config) -> Iterator[_Destination]:
    """The clients to which it can send, each once for each address of the proxy. Raises KernelError."""
    with InetDiag() as diag:
        sockets = read_consistently(lambda: list(diag.sockets(SENDING, (), config.proxy.ports)))
    table = network_table(config.networks)
    for remote, local in sorted({(seen.remote, seen.local) for seen in sockets}):
        client = ip_address(remote)
        network = table.find(client)
        if network is not None:
            yield _Destination(network, str(client), client, ip_address(local), is_client=True)


def _subnets(config: Config, clients: Sequence[_Destination], lookup: RouteLookup) -> Iterator[_Destination]:
    """Subnets without a client, unless their first address is in a smaller subnet of them. Raises KernelError."""
    # Of several routing tables, the source may choose one (ip-rule(8)).
    sources = {version: _source(lookup, config.proxy.interfaces, version) for version in (4, 6)}
    table = SubnetTable((subnet, subnet) for network in config.networks for subnet in network.subnets)
    with_client = {table.find(client.address) for client in clients}
    for network in config.networks:
        for subnet in network.subnets:
            address = _address_in(subnet)
            if subnet not in with_client and table.find(address) == subnet:
                yield _Destination(network, str(subnet), address, sources[subnet.version], is_client=False)


def _source(lookup: RouteLookup, interfaces: tuple[str, ...], ip_version: int) -> Address | None:
    addresses = (lookup.address_of(interface, ip_version) for interface in interfaces)
    return next((address for address in addresses if address is not None), None)


def _address_in(subnet: Network) -> Address:
    return _ANYWHERE[subnet.version] if subnet.prefixlen == 0 else subnet[min(1, subnet.num_addresses - 1)]


def _leaving_elsewhere(
    lookup: RouteLookup, destinations: Iterable[_Destination], interfaces: tuple[str, ...]
) -> dict[tuple[str, str], list[_Destination]]:
    """The destinations by network, by its name, and the interface that is used instead. Raises KernelError."""
    elsewhere = defaultdict(list)
    for destination in destinations:
        used = lookup.interface_to(destination.address, destination.source)
        if used is not None and used not in interfaces:
            elsewhere[destination.network.name, used].append(destination)
    return elsewhere


def _judge(elsewhere: Mapping[tuple[str, str], list[_Destination]], interfaces: tuple[str, ...]) -> Iterator[Finding]:
    for (_, used), destinations in elsewhere.items():
        network = destinations[0].network
        names = destinations[0].name + (f" and {len(destinations) - 1} more" if len(destinations) > 1 else "")
        problem = f"to {names} leave through {used}, where neither HTB nor mptcp-sniffer sees packets"
        remedy = f"route {network.name} through {' or '.join(interfaces)}, or name {used} in {_KEYS}"
        has_rate = any(kind.direction is Direction.DOWNLINK for kind in network.kinds)
        harm = has_rate and any(destination.is_client for destination in destinations)
        yield Finding(f"routes to clients of {network.name}", problem, remedy, harm)


def uploads(host: Host) -> Iterator[Finding]:
    """Whether Squid ends uploads that are faster than their server; only where uplinks have a rate."""
    subject = "uploads through Squid"
    kinds = {kind for network in host.config.networks for kind in network.kinds}
    if all(kind.direction is not Direction.UPLINK for kind in kinds):
        return
    try:
        if not CONFIGURATION.exists():
            return
        is_enough = has_large_buffer(read_lines(CONFIGURATION))
    except OSError as error:
        yield Finding(subject, unchecked=f"{error.filename}: cannot be read: {error.strerror}")
        return
    problem = "Squid may end them when its request buffer is full (Squid bug 5405)"
    example = "/usr/share/doc/mptcp-throttle/examples/squid/mptcp-throttle.conf"
    remedy = f"install {example} in /etc/squid/conf.d, and restart Squid"
    yield note(subject, is_well=is_enough, problem=problem, remedy=remedy)


def access(host: Host) -> Iterator[Finding]:
    """Whether Squid, where it is the proxy, serves more than this host, as Debian's configuration does not."""
    try:
        lines = list(read_lines(CONFIGURATION))
    except OSError:
        return  # no Squid, or `uploads` says so
    if not Ports.of(http_ports(lines)) & host.config.proxy.ports:
        return
    problem = "its http_access allows only this host, so it denies the clients"
    remedy = "`http_access allow` for the subnets of the clients, in a file in /etc/squid/conf.d, and restart Squid"
    yield note("access to Squid", is_well=serves_hosts(lines), problem=problem, remedy=remedy)


def _remedy_for_port(ports: Ports, key: str) -> str:
    """What else to do where no process listens on ports of the proxy: Debian's Squid has 3128. May be empty."""
    try:
        of_squid = Ports.of(http_ports(read_lines(CONFIGURATION)))
    except OSError:
        return ""
    if not of_squid or of_squid & ports:
        return ""
    return (
        f"; Squid's http_port is {of_squid}: set {key} to it, or write `http_port {min(ports)}` into a file in"
        " /etc/squid/conf.d, and `http_access allow` for the subnets of the clients"
    )
