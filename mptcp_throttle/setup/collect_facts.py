"""Reads `HostFacts` from the kernel, /proc and files; it changes nothing."""

from __future__ import annotations

import ctypes
import errno
import grp
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Final

from pyroute2 import IPRoute
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mptcp_throttle.linux.default_routes import default_interfaces
from mptcp_throttle.linux.inet_diag import SENDING, InetDiag, list_listening
from mptcp_throttle.linux.kernel_error import KernelError, netlink_call
from mptcp_throttle.linux.link_header import link_header_of
from mptcp_throttle.linux.netlink_socket import read_consistently
from mptcp_throttle.linux.qdisc_kinds import seen_qdiscs
from mptcp_throttle.linux.route_lookup import RouteLookup
from mptcp_throttle.linux.timed_pyroute2 import timed
from mptcp_throttle.model import Address
from mptcp_throttle.packet_rules import IPTABLES_SAVE, LEGACY_SAVE, NFT_LIST
from mptcp_throttle.programs import ProgramFailed, output_of
from mptcp_throttle.rpc import Json
from mptcp_throttle.setup.host_facts import (
    ClientPath,
    HostFacts,
    Interface,
    Listener,
    Mptcp,
    Owner,
    SquidFacts,
    Translation,
)
from mptcp_throttle.setup.nat_rules import (
    nft_interceptions,
    nft_translations,
    saved_interceptions,
    saved_translations,
)
from mptcp_throttle.setup.server_drop_in import MPTCPIZE
from mptcp_throttle.squid_config import CONFIGURATION, has_large_buffer, http_ports, read_lines, serves_hosts
from mptcp_throttle.systemd_unit import SERVICES, read_unit

SOCKET_GROUP: Final = "mptcp-throttle"
_PROCESSES: Final = Path("/proc")
_LISTENING: Final = "0A"  # TCP_LISTEN, as /proc/net/tcp prints it
_SOCKET_LINK: Final = re.compile(r"socket:\[(\d+)\]")
_ENABLED: Final = Path("/proc/sys/net/mptcp/enabled")
_TYPE_INFORMATION: Final = Path("/sys/kernel/btf/vmlinux")
# A look-up takes about a millisecond.
_MOST_CLIENTS: Final = 1000
_IFF_UP, _IFF_LOOPBACK = 1, 8  # include/uapi/linux/if.h
# Its chain for packets to this host ends with a rule that rejects, and has the policy accept.
_FIREWALLD: Final = "firewalld"


def collect_facts() -> HostFacts:
    """What is known about this host. Raises KernelError."""
    listeners = _read_listeners()
    with netlink_call("ip route, ip address, tc qdisc"), timed(IPRoute) as ip:
        links = list(ip.get_links())
        interfaces, default_routes = tuple(_interfaces(ip, links)), tuple(_default_routes(links))
    saved = dict(_saved_rules())
    return HostFacts(
        mptcp=_mptcp(),
        listeners=listeners,
        interfaces=interfaces,
        default_routes=default_routes,
        client_paths=tuple(_client_paths(listeners)),
        has_type_information=_TYPE_INFORMATION.exists(),
        has_libbpf=_has_libbpf(),
        has_socket_group=any(group.gr_name == SOCKET_GROUP for group in grp.getgrall()),
        has_mptcpize=Path(MPTCPIZE).exists(),
        systemd_version=_systemd_version(),
        services_run=_services_run(),
        dropping_chains=tuple(_dropping_chains(saved)),
        translations=tuple(_translations(saved, {address for each in interfaces for address in each.addresses})),
        squid=_squid(),
    )


def _mptcp() -> Mptcp:
    try:
        return Mptcp.ON if _ENABLED.read_text(encoding="ascii").strip() == "1" else Mptcp.OFF
    except OSError:
        return Mptcp.MISSING


def _interfaces(ip: IPRoute, links: Sequence[ifinfmsg]) -> Iterator[Interface]:
    trees = seen_qdiscs(ip)
    addresses: dict[int, list[str]] = {}
    for message in ip.get_addr():
        # With a peer, IFA_ADDRESS is that of the peer (include/uapi/linux/if_addr.h).
        own = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
        addresses.setdefault(message["index"], []).append(own)
    for link in links:
        own_addresses = map(ip_address, addresses.get(link["index"], ()))
        yield Interface(
            link.get_attr("IFLA_IFNAME"),
            bool(link["flags"] & _IFF_UP),
            bool(link["flags"] & _IFF_LOOPBACK),
            link_header_of(link["ifi_type"]) is not None,
            tuple(address for address in own_addresses if not address.is_link_local),
            trees.get(link["index"], ()),
        )


def _default_routes(links: Sequence[ifinfmsg]) -> Iterator[str]:
    names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in links}
    yield from (names[index] for index in default_interfaces() if index in names)


def _client_paths(listeners: Collection[Listener]) -> Iterator[ClientPath]:
    """The paths to clients of ports that other hosts can reach."""
    ports = {listener.port for listener in listeners if listener.is_reachable}
    if not ports:
        return
    with InetDiag() as diag:
        sockets = read_consistently(lambda: list(diag.sockets(SENDING, ())))
    clients = sorted({(seen.local_port, seen.remote, seen.local) for seen in sockets if seen.local_port in ports})
    counted: Counter[tuple[int, str]] = Counter()
    with RouteLookup() as lookup:
        for port, remote, local in islice(clients, _MOST_CLIENTS):
            client = ip_address(remote)
            interface = None if client.is_loopback else _interface_to(lookup, remote, local)
            if interface is not None:
                counted[port, interface] += 1
    yield from (ClientPath(port, interface, count) for (port, interface), count in sorted(counted.items()))


def _interface_to(lookup: RouteLookup, remote: bytes, local: bytes) -> str | None:
    try:
        return lookup.interface_to(ip_address(remote), ip_address(local))
    except KernelError as error:
        if error.number in {errno.ENODEV, errno.EADDRNOTAVAIL}:
            return None  # the address or the interface has gone meanwhile
        raise


def _has_libbpf() -> bool:
    try:
        ctypes.CDLL("libbpf.so.1")
    except OSError:
        return False
    return True


def _services_run() -> bool:
    try:
        units = [read_unit(name) for name in SERVICES]
    except ProgramFailed:
        return False
    return any(unit is not None and unit.ActiveState == "active" for unit in units)


def _systemd_version() -> int | None:
    try:
        version = re.match(r"systemd (\d+)", output_of("systemctl", "--version") or "")
    except ProgramFailed:
        return None
    return None if version is None else int(version[1])


def _saved_rules() -> Iterator[tuple[str, str]]:
    """What the programs print that list the rules of iptables(8), of those that are installed and succeed."""
    for program in IPTABLES_SAVE:
        with suppress(ProgramFailed):
            yield program, output_of(program) or ""


def _dropping_chains(saved: Mapping[str, str]) -> Iterator[str]:
    """Of a firewall whose programs are not installed, nothing is known."""
    with suppress(ProgramFailed, ValueError):
        shown = output_of("nft", "-j", "list", "chains")
        yield from nft_dropping(json.loads(shown)) if shown else ()
    for program in LEGACY_SAVE:
        yield from legacy_dropping(saved.get(program, ""), program)


def _translations(saved: Mapping[str, str], own: Collection[Address]) -> Iterator[Translation]:
    """Of rules whose programs are not installed, or fail, nothing is known."""
    with suppress(ProgramFailed, ValueError):
        listed = output_of(*NFT_LIST)
        yield from nft_translations(json.loads(listed), own) if listed else ()
    for program, rules in saved.items():
        with suppress(ValueError):
            yield from saved_translations(rules, program, own)


def read_translations() -> tuple[Translation, ...]:
    """The rules that send connections from other hosts elsewhere. Raises KernelError."""
    with netlink_call("ip address"), timed(IPRoute) as ip:
        interfaces = list(_interfaces(ip, list(ip.get_links())))
    own = {address for interface in interfaces for address in interface.addresses}
    return tuple(_translations(dict(_saved_rules()), own))


def read_interceptions() -> tuple[Translation, ...]:
    """The rules of TPROXY, which give connections to sockets of this host. Raises ProgramFailed."""
    listed, rules = output_of(*NFT_LIST), list[Translation]()
    with suppress(ValueError):
        rules += nft_interceptions(json.loads(listed)) if listed else ()
    for program, saved in _saved_rules():
        with suppress(ValueError):
            rules += saved_interceptions(saved, program)
    return tuple(rules)


def _squid() -> SquidFacts | None:
    try:
        lines = list(read_lines(CONFIGURATION))
    except OSError:
        return None
    return SquidFacts(frozenset(http_ports(lines)), serves_hosts(lines), has_large_buffer(lines))


def _read_listeners() -> tuple[Listener, ...]:
    """All listeners of this network namespace, by port. Raises KernelError."""
    with InetDiag() as diag:
        sockets = read_consistently(lambda: list(list_listening(diag)))
    owners = dict(_owners(_PROCESSES, {sock.inode for sock in sockets}))
    listeners = (Listener(ip_address(sock.local), sock.port, sock.mptcp, owners.get(sock.inode)) for sock in sockets)
    return tuple(sorted(listeners, key=lambda listener: (listener.port, listener.address.version, listener.address)))


def listeners_elsewhere(ports: Collection[int]) -> list[tuple[int, Owner | None]]:
    """Of these ports, those on which processes of other network namespaces listen, with these processes.

    Only root sees all namespaces.
    """
    listening = dict(_listening_elsewhere(ports)) if ports else {}
    owners = dict(_owners(_PROCESSES, listening))
    return sorted(((port, owners.get(inode)) for inode, port in listening.items()), key=lambda each: each[0])


def _listening_elsewhere(ports: Collection[int]) -> Iterator[tuple[int, int]]:
    """The inodes of their sockets, and the ports (Documentation/networking/proc_net_tcp.rst)."""
    seen = {_network_of(_PROCESSES / "self"), None}
    for directory in _directories(_PROCESSES):
        network = _network_of(directory)
        if network in seen:
            continue
        seen.add(network)
        sockets = (*_read_lines(directory / "net/tcp"), *_read_lines(directory / "net/tcp6"))
        for _, local, _, state, _, _, _, _, _, inode, *_ in map(str.split, sockets):
            port = int(local.rpartition(":")[2], 16)
            if state == _LISTENING and port in ports:
                yield int(inode), port


def _read_lines(table: Path) -> list[str]:
    """The lines below the heading; none if the process has ended."""
    try:
        return table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []


def _network_of(directory: Path) -> int | None:
    """The inode of a process's network namespace; None if the process has ended, or may not be read."""
    try:
        return (directory / "ns/net").stat().st_ino
    except OSError:
        return None


def _directories(processes: Path) -> list[Path]:
    """Those of all processes, by process id."""
    return sorted((path for path in processes.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def _owners(processes: Path, inodes: Collection[int]) -> Iterator[tuple[int, Owner]]:
    """The owner of each socket. If several processes share a socket, the first of them has usually opened it."""
    left = set(inodes)
    for directory in _directories(processes):
        if not left:
            return
        here = left & set(_socket_inodes(directory / "fd"))
        if here:
            left -= here
            owner = _owner(directory)
            yield from ((inode, owner) for inode in here if owner is not None)


def _socket_inodes(descriptors: Path) -> Iterator[int]:
    """The inodes of a process's sockets; none if it has ended meanwhile, or may not be read."""
    try:
        names = os.listdir(descriptors)
    except OSError:
        return
    for name in names:
        try:
            link = _SOCKET_LINK.fullmatch(os.readlink(descriptors / name))
        except OSError:
            continue
        if link is not None:
            yield int(link[1])


def _owner(directory: Path) -> Owner | None:
    try:
        name = (directory / "comm").read_text(encoding="utf-8", errors="replace").strip()
        cgroup = (directory / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return Owner(int(directory.name), printable(name), unit_of(cgroup))


def printable(name: str) -> str:
    """The name of a process, which any user can choose, without what ends a line of YAML or moves a cursor."""
    return re.sub(r"[^ -~]", "?", name)


def unit_of(cgroup: str) -> str | None:
    """The service in whose cgroup a process is, from /proc/PID/cgroup; None if it is in none, or in a user's own."""
    units = re.findall(r"^0::.*/([A-Za-z0-9:_.@\\-]+\.service)(?:/.*)?$", cgroup, re.MULTILINE)
    return units[-1] if units and not re.search(r"/user@\d+\.service/", cgroup) else None


def nft_dropping(listed: Json) -> Iterator[str]:
    """From what `nft -j list chains` prints (libnftables-json(5)), which includes the chains of iptables-nft(8)."""
    for item in listed["nftables"]:
        chain = item.get("chain", {})
        drops = chain.get("policy") == "drop" or (chain.get("table") == _FIREWALLD and chain.get("type") == "filter")
        if chain.get("hook") == "input" and drops:
            yield f"{chain['name']} of table {chain['family']} {chain['table']}"


def legacy_dropping(saved: str, program: str) -> Iterator[str]:
    """From what iptables-legacy-save(8) prints."""
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif re.match(r":INPUT DROP\b", line):
            yield f"INPUT of table {table} ({program.removesuffix('-save')})"
