"""What `setup` knows about the host: frozen values, which `collect_facts` reads and tests write down."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from mptcp_throttle.linux.qdisc_kinds import SeenQdisc
from mptcp_throttle.model import Address
from mptcp_throttle.ports import Ports


class Mptcp(StrEnum):
    """MPTCP in the kernel."""

    MISSING = "missing"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that has a socket: its name as in /proc/PID/comm, and the systemd unit that it belongs to."""

    pid: int
    name: str
    unit: str | None

    def __str__(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP socket that listens; `owner` is None if its process is not known."""

    address: Address
    port: int
    mptcp: bool
    owner: Owner | None

    @property
    def program(self) -> str:
        """The name of its process; may be empty."""
        return "" if self.owner is None else self.owner.name

    @property
    def is_reachable(self) -> bool:
        """Whether other hosts can connect to it."""
        return not self.address.is_loopback


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface, with its addresses that are not for its link alone, and its qdiscs, the root first, if known.

    `is_supported`: the sniffer knows its link type.
    """

    name: str
    up: bool
    loopback: bool
    is_supported: bool
    addresses: tuple[Address, ...]
    qdiscs: tuple[SeenQdisc, ...]


@dataclass(frozen=True, slots=True)
class ClientPath:
    """How many connected clients of a port are reached through an interface."""

    port: int
    interface: str
    clients: int


@dataclass(frozen=True, slots=True)
class SquidFacts:
    """Squid's configuration: the ports of `http_port`, whether `http_access` allows other hosts than this, and whether
    its request buffer is large enough for fast uploads."""

    ports: frozenset[int]
    serves_hosts: bool
    has_large_buffer: bool


class Translation(NamedTuple):
    """A rule of a `chain` that gives connections to these ports another `address`, or another `port`.

    An address of None is this host's; with a port of None they keep theirs, or get a port of a range.
    """

    chain: str
    ports: Ports
    address: str | None
    port: int | None

    @property
    def target(self) -> str:
        """Where it sends them, and the chain that does."""
        return f"{self.address or 'this host'}, port {self.port or 'as before'} (chain {self.chain})"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """This host. `default_routes` are the interfaces of the best default routes, for both IP versions.

    `dropping_chains` are chains of a firewall that drop what no rule accepts; `translations` are those of connections
    from other hosts, as far as programs that list them are installed; `has_socket_group`: this host has the
    group that the configuration as installed names; `has_mptcpize`: /usr/bin/mptcpize exists.
    """

    mptcp: Mptcp
    listeners: tuple[Listener, ...]
    interfaces: tuple[Interface, ...]
    default_routes: tuple[str, ...]
    client_paths: tuple[ClientPath, ...]
    has_type_information: bool
    has_libbpf: bool
    has_socket_group: bool
    has_mptcpize: bool
    systemd_version: int | None
    services_run: bool
    dropping_chains: tuple[str, ...]
    translations: tuple[Translation, ...]
    squid: SquidFacts | None
