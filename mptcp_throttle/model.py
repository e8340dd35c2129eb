"""The vocabulary of the project: what a connection, a subflow and an access network are.

All values are frozen; addresses are never IPv4-mapped IPv6 (`::ffff:a.b.c.d`), because the wire never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from mptcp_throttle.units import Rate

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

Token = NewType("Token", int)
"""The proxy's 32-bit connection token (RFC 8684, section 3.2): the connection's identity for us."""


def format_token(token: Token) -> str:
    """The token as operators see it in `ss -M` and in our logs: eight hexadecimal digits."""
    return f"{token:08x}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a TCP subflow."""

    address: Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class FourTuple:
    """The identity of a TCP subflow while it lives; behind NAT the port is as significant as the address."""

    client: Endpoint
    proxy: Endpoint

    def __str__(self) -> str:
        return f"{self.client}-{self.proxy}"

    def __hash__(self) -> int:
        # Tables are keyed by it, and dataclass's own would hash two addresses, which takes longer than all the rest.
        return hash((self.client.port, int(self.client.address)))


@dataclass(frozen=True, slots=True)
class Subflow:
    """A live subflow.

    `address_id` is the client's. `backup` says "use me only when nothing else works" (RFC 8684, section 3.2):
    `backup_at_join` is the B bit of the client's MP_JOIN (MP_CAPABLE has none), which MP_PRIO changes later.
    `opened_at` is the kernel's time stamp of the SYN in seconds since the epoch. `stalled`: the proxy's kernel has sent
    to it again and again, and nothing has come back.
    """

    ends: FourTuple
    address_id: int
    backup: bool
    backup_at_join: bool
    opened_at: float
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Connection:
    """An MPTCP connection to the proxy and its live subflows, in the order in which they joined."""

    token: Token
    version: int
    subflows: tuple[Subflow, ...]


class Trust(StrEnum):
    """What the sniffer takes for a subflow: a handshake that was proved, or any that names the token."""

    HANDSHAKE = "handshake"
    TOKEN = "token"  # noqa: S105


class MarkMethod(StrEnum):
    """What marks the packets of held subflows: sets, one rule for each subflow, or sets where the kernel has them."""

    AUTO = "auto"
    IPSET = "ipset"
    RULES = "rules"


class Per(StrEnum):
    """What shares one cap and one limit of an access network."""

    NETWORK = "network"
    CLIENT = "client"
    SUBFLOW = "subflow"


@dataclass(frozen=True, slots=True)
class AccessNetwork:
    """A network that clients come from, and what the operator wants of it.

    `preference` 1 is the most preferred. `cap` holds while the same connection has a live non-backup subflow on a
    more preferred network; `limit` holds always. None means unlimited.
    """

    name: str
    subnets: tuple[Network, ...]
    preference: int
    cap: Rate | None
    limit: Rate | None
    per: Per
