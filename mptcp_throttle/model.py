"""The data model: connections, subflows and access networks.

All values are frozen. Addresses are never IPv4-mapped IPv6 (`::ffff:a.b.c.d`), because packets never carry such
addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NewType

from mptcp_throttle.subnet_table import SubnetTable
from mptcp_throttle.units import Rate, format_share, format_volume
from mptcp_throttle.when import When

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

Token = NewType("Token", int)
"""The proxy's 32-bit token of a connection (RFC 8684, section 3.2), which identifies the connection."""


def format_token(token: Token) -> str:
    """The token as in `ss -M` and in our logs: eight hexadecimal digits."""
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
    # Tables are keyed by it, and dataclass's own would hash two addresses at each look-up, in Python.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.client.port, int(self.client.address))))

    @classmethod
    def of(cls, client: str | bytes, client_port: int, proxy: str | bytes, proxy_port: int) -> FourTuple:
        """The four-tuple with these addresses, as text or packed. Raises ValueError if one is not an IP address."""
        return cls(Endpoint(_address(client), client_port), _proxy(proxy, proxy_port))

    def __str__(self) -> str:
        return f"{self.client}-{self.proxy}"

    def __hash__(self) -> int:
        return self._hash


# Equal addresses and endpoints are one object, which is compared fast: clients have many subflows, and the proxy few
# sockets. Text comes from the sniffer, packed addresses from the kernel; both are hashed in C, IPv4Address in Python.
@lru_cache(65536)
def _address(address: str | bytes) -> Address:
    return ip_address(address) if isinstance(address, bytes) else _address(ip_address(address).packed)


@lru_cache
def _proxy(address: str | bytes, port: int) -> Endpoint:
    if isinstance(address, bytes):
        return Endpoint(_address(address), port)
    return _proxy(_address(address).packed, port)


class Ailment(StrEnum):
    """What makes a path sick: a bound of its network that it does not keep, or that no DATA_ACKs arrive over it."""

    RTT = "rtt"
    LOSS = "loss"
    RATE = "rate"
    DATA_ACKS = "data_acks"


@dataclass(frozen=True, slots=True)
class Subflow:
    """A live subflow.

    `address_id` is the client's. `backup`: to be used only if no other subflow is usable (RFC 8684, section 3.2);
    `backup_at_join` is the B bit of the client's MP_JOIN (MP_CAPABLE has none), and MP_PRIO changes `backup` later.
    `opened_at` is when the kernel received the SYN, in monotonic seconds (of a capture file, in seconds since the
    epoch). `stalled`: the proxy's kernel retransmits on it without an answer, or has closed it and only sends what is
    queued. `ailment` is what makes it sick, None if nothing does.
    """

    ends: FourTuple
    address_id: int
    backup: bool
    backup_at_join: bool
    opened_at: float
    stalled: bool = False
    ailment: Ailment | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """An MPTCP connection to the proxy with its live subflows, in the order in which they joined.

    `port` is the proxy's port that has accepted it.
    """

    token: Token
    version: int
    port: int
    subflows: tuple[Subflow, ...]


class Trust(StrEnum):
    """What makes a subflow: an authenticated handshake, or any handshake that names the token."""

    HANDSHAKE = "handshake"
    TOKEN = "token"  # noqa: S105


class LogLevel(StrEnum):
    """The lowest level of the lines that the services log; Python's names, in lower case."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class BackEnd(StrEnum):
    """What holds the classes: HTB that the daemon makes itself, or the queues of an Open vSwitch port."""

    TC = "tc"
    OVS = "ovs"


class ClassifierKind(StrEnum):
    """What leads the packets of throttled subflows to their classes: the priority of their sockets, their own priority
    by an nftables map, or fwmarks by one iptables rule per subflow; `auto`: the first of these that is possible."""

    AUTO = "auto"
    SOCKET = "socket"
    NFT = "nft"
    RULES = "rules"


class Direction(StrEnum):
    """Which way a subflow's bytes go: to the client, or from it."""

    DOWNLINK = "downlink"
    UPLINK = "uplink"

    @property
    def cap(self) -> RateKind:
        """The rate kind that applies while a more preferred network is live."""
        return RateKind.CAP if self is Direction.DOWNLINK else RateKind.UPLINK_CAP

    @property
    def limit(self) -> RateKind:
        """The rate kind that applies otherwise."""
        return RateKind.LIMIT if self is Direction.DOWNLINK else RateKind.UPLINK_LIMIT


class RateKind(StrEnum):
    """One of the rates of an access network."""

    CAP = "cap"
    LIMIT = "limit"
    UPLINK_CAP = "uplink cap"
    UPLINK_LIMIT = "uplink limit"

    @property
    def direction(self) -> Direction:
        """The direction in which it applies."""
        return Direction.DOWNLINK if self in {RateKind.CAP, RateKind.LIMIT} else Direction.UPLINK

    @property
    def is_cap(self) -> bool:
        """Whether it is the cap of its direction, not the limit."""
        return self in {RateKind.CAP, RateKind.UPLINK_CAP}

    @classmethod
    def of(cls, direction: str, word: str) -> RateKind:
        """The kind with this direction and `word`. Raises ValueError if there is none."""
        try:
            return next(kind for kind in cls if (kind.direction, kind.word) == (direction, word))
        except StopIteration:
            raise ValueError(f"{direction} {word}: no such rate") from None

    @property
    def word(self) -> str:
        """`cap` or `limit`: what it is called beside its direction."""
        return "cap" if self.is_cap else "limit"


class Per(StrEnum):
    """What shares one cap and one limit of an access network."""

    NETWORK = "network"
    CLIENT = "client"
    SUBFLOW = "subflow"


@dataclass(frozen=True, slots=True)
class ClientPrefix:
    """How many leading bits the addresses of one client have in common; by default a host's prefix (RFC 7934)."""

    ipv4: int = 32
    ipv6: int = 64

    def __str__(self) -> str:
        return f"ipv4 {self.ipv4}, ipv6 {self.ipv6}"

    def bits(self, address: Address) -> int:
        """The bits for an address of that IP version."""
        return self.ipv4 if address.version == 4 else self.ipv6

    def first(self, address: Address) -> Address:
        """The first address of the client that has this one."""
        host_bits = address.max_prefixlen - self.bits(address)
        return address if host_bits == 0 else type(address)(int(address) >> host_bits << host_bits)

    def network(self, client: Address) -> Network:
        """What a client has, by its first address; made of integers, as a reload makes thousands."""
        prefix = int(client), self.bits(client)
        return IPv4Network(prefix) if client.version == 4 else IPv6Network(prefix)


@dataclass(frozen=True, slots=True)
class Health:
    """The bounds within which a path is healthy; None: no such bound.

    `rtt` is the most, in seconds; `loss` the most, as the fraction of its bytes that are sent again; `rate` the least,
    of what is acknowledged while data waits.
    """

    rtt: float | None = None
    loss: float | None = None
    rate: Rate | None = None

    @property
    def texts(self) -> dict[str, str | None]:
        """The bounds as in a configuration file."""
        return {
            Ailment.RTT: None if self.rtt is None else f"{1000 * self.rtt:g}ms",
            Ailment.LOSS: None if self.loss is None else format_share(self.loss),
            Ailment.RATE: None if self.rate is None else str(self.rate),
        }

    def __str__(self) -> str:
        return ", ".join(f"{name} {text or 'null'}" for name, text in self.texts.items())

    def broken(self, ailment: Ailment) -> str:
        """What is wrong with a path that has this ailment: the bound that it does not keep, in words."""
        if ailment is Ailment.DATA_ACKS:
            return "no DATA_ACKs"
        return f"{_BROKEN[ailment]} {self.texts[ailment]}"


_BROKEN: Final = {Ailment.RTT: "round trip above", Ailment.LOSS: "loss above", Ailment.RATE: "rate below"}


@dataclass(frozen=True, slots=True)
class Window:
    """The rates that replace the configured ones while `when` holds; None: unlimited.

    If it does not `count`, what is carried meanwhile is in no budget, and no spent budget narrows a rate.
    """

    when: When
    rates: Mapping[RateKind, Rate | None]
    counts: bool = True

    @property
    def effect(self) -> str:
        """What it does, in words."""
        parts = [f"{kind} {'unlimited' if rate is None else rate}" for kind, rate in self.rates.items()]
        return ", ".join(parts if self.counts else [*parts, "in no budget"])

    def __str__(self) -> str:
        return f"{self.when} ({self.effect})"


Schedule = tuple[Window, ...]
"""Windows, of which the first that holds counts."""


class Every(StrEnum):
    """How long a period of a budget is."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


_ROLLING_SPANS: Final = {Every.DAY: "24 hours", Every.WEEK: "7 days", Every.MONTH: "30 days"}


class Counting(StrEnum):
    """Which bytes count in a budget: those to clients, those from clients, or both."""

    DOWN = "down"
    UP = "up"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Stage:
    """The rates that a budget allows at most once the fraction `at` of it is used."""

    at: float
    rates: Mapping[RateKind, Rate] = field(hash=False)

    def __str__(self) -> str:
        rates = ", ".join(f"{kind} {rate}" for kind, rate in self.rates.items())
        return f"at {format_share(self.at)} {rates}"


@dataclass(frozen=True, slots=True)
class Budget:
    """How many IP bytes an access network (or each of its clients) has for a period, and what then applies.

    `per` is NETWORK or CLIENT. A week starts on the weekday `starts` (0 is Monday), a month on that day, or on its last
    if it has fewer. `warn_at` is the used fraction from which the operator is warned; None: he is not. The `stages` are
    in the order of their fractions. With `rollover`, what is not used of a period is added to the next one. If it is
    `rolling`, the last day, week or month counts at each moment, instead of periods. That of a device is for what it
    carries in its `networks` together; `per` is CLIENT then.
    """

    amount: int
    per: Per
    counting: Counting
    every: Every
    starts: int
    warn_at: float | None
    stages: tuple[Stage, ...]
    rollover: bool = False
    rolling: bool = False
    networks: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """Whose it is: of a `network`, of each `client` there, or of a `device`."""
        return "device" if self.networks else str(self.per)

    @property
    def span(self) -> str:
        """The time that it is for, behind an amount: `per month`, or `in 30 days`."""
        return f"in {_ROLLING_SPANS[self.every]}" if self.rolling else f"per {self.every}"

    @property
    def key(self) -> str:
        """What tells it from the other budgets of its network or device, and stays as amount or rates change."""
        return f"{self.owner} {self.counting} {'rolling ' * self.rolling}{self.every}"

    def allowed(self, stages: int) -> dict[RateKind, Rate]:
        """What so many stages, the first ones, allow at most: of each kind the lowest rate."""
        allowed: dict[RateKind, Rate] = {}
        for stage in self.stages[:stages]:
            for kind, rate in stage.rates.items():
                allowed[kind] = min(rate, allowed.get(kind, rate))
        return allowed

    def __str__(self) -> str:
        stages = "; ".join(map(str, self.stages))
        return f"{format_volume(self.amount)} {self.span}, per {self.owner} ({self.counting}, {stages})"


@dataclass(frozen=True, slots=True)
class Device:
    """A client with a name, as configured: by access network its addresses or prefixes, and its own rates, if any;
    and its budgets.

    A kind of rate that is absent is that of the network; None: unlimited.
    """

    name: str
    addresses: Mapping[str, tuple[Network, ...]]
    rates: Mapping[str, Mapping[RateKind, Rate | None]]
    budgets: tuple[Budget, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedClient:
    """A device in one access network: a client that has several `prefixes`, the lowest first, and none in another.

    `rates` are its own, as those of a `Device`; `budgets` those that are for this network, too.
    """

    name: str
    prefixes: tuple[Network, ...]
    rates: Mapping[RateKind, Rate | None] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()

    @property
    def first(self) -> Address:
        """Its first address, which stands for it."""
        return self.prefixes[0].network_address


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of an access network, which have no address in common."""

    clients: tuple[NamedClient, ...] = ()
    by_name: Mapping[str, NamedClient] = field(init=False, repr=False, compare=False)
    by_first: Mapping[Address, NamedClient] = field(init=False, repr=False, compare=False)
    _table: SubnetTable[NamedClient] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {client.name: client for client in self.clients})
        object.__setattr__(self, "by_first", {client.first: client for client in self.clients})
        table = SubnetTable((prefix, client) for client in self.clients for prefix in client.prefixes)
        object.__setattr__(self, "_table", table)

    def find(self, address: Address) -> NamedClient | None:
        """The device with this address; None if no device has it."""
        return self._table.find(address)


@dataclass(frozen=True, slots=True)
class AccessNetwork:
    """A network from which clients connect, with its configured rates.

    `preference` 1 is the most preferred. A cap applies while the same connection has, on a more preferred network, a
    live subflow that is neither backup nor stalled nor sick, by the bounds in `healthy`; a limit applies otherwise, and
    bounds the cap. A kind that `rates` does not have is unlimited. While a window of the `schedule` holds, its rates
    replace these. The cap of a client is raised by what its more preferred paths lack of `overflow`. The stages that
    are reached of its `budgets` narrow all of these. `burst` are the IP bytes that a share of a cap or limit of
    downloads may carry beyond its rate after a quiet time; 0: none. For `provisional` seconds the first subflow of a
    connection has the cap's pace, too. It is a network of all proxies, or of the one with the name `proxy`. If they are
    `shared`, the proxies of a fleet together give a client no more than its rates. Of its clients, the `devices` have
    names.
    """

    name: str
    subnets: tuple[Network, ...]
    preference: int
    rates: Mapping[RateKind, Rate]
    per: Per
    provisional: float = 0.0
    client_prefix: ClientPrefix = ClientPrefix()
    healthy: Health = Health()
    schedule: Schedule = ()
    proxy: str | None = None
    budgets: tuple[Budget, ...] = ()
    overflow: Rate | None = None
    burst: int = 0
    shared: bool = False
    devices: Devices = Devices()

    def client(self, address: Address) -> Address:
        """The first address of the client that has this one: of its device, or else of its prefix."""
        device = self.devices.find(address)
        return self.client_prefix.first(address) if device is None else device.first

    def prefixes(self, client: Address) -> tuple[Network, ...]:
        """What a client has, by its first address: the prefixes of its device, or else its prefix."""
        device = self.devices.by_first.get(client)
        return (self.client_prefix.network(client),) if device is None else device.prefixes

    @property
    def kinds(self) -> frozenset[RateKind]:
        """The kinds that it, or a device in it, can have a rate of: by itself, in a window, or as a budget is spent."""
        windows = (kind for window in self.schedule for kind, rate in window.rates.items() if rate is not None)
        clients = self.devices.clients
        own = (kind for client in clients for kind, rate in client.rates.items() if rate is not None)
        stages = (kind for budget in self.all_budgets for stage in budget.stages for kind in stage.rates)
        return frozenset((*self.rates, *windows, *own, *stages))

    @property
    def all_budgets(self) -> tuple[Budget, ...]:
        """Its own, and those of its devices."""
        return (*self.budgets, *(budget for client in self.devices.clients for budget in client.budgets))

    @property
    def may_be_narrowed(self) -> bool:
        """Whether a stage of a budget may lower its rates, or those of a device."""
        return any(budget.stages for budget in self.all_budgets)

    def with_rates(self, rates: Mapping[RateKind, Rate | None]) -> AccessNetwork:
        """The network with these rates in place of its own; None: it has no such rate."""
        changed = {**self.rates, **rates}
        return replace(self, rates={kind: rate for kind, rate in changed.items() if rate is not None})

    def is_most_preferred(self, networks: Iterable[AccessNetwork]) -> bool:
        """Whether none of `networks` that a connection may have besides this one is more preferred: no cap applies."""
        beside = (network for network in networks if None in (self.proxy, network.proxy) or self.proxy == network.proxy)
        return all(self.preference <= network.preference for network in beside)
