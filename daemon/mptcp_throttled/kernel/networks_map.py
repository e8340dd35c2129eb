"""The map of access networks that kernel programs have (`bpf/networks.h`, `bpf/settings.h`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from types import MappingProxyType
from typing import Final, NamedTuple

from mptcp_throttle.linux.c_layout import MAX_U32, pack
from mptcp_throttle.linux.libbpf import BpfMap
from mptcp_throttle.model import AccessNetwork, Network, RateKind
from mptcp_throttle.proxies import Proxies, networks_of
from mptcp_throttled.kernel import program_layout
from mptcp_throttled.kernel.program_layout import mapped
from mptcp_throttled.vocabulary.kernel_plan import payload_pace

_IPV4: Final = IPv4Network("0.0.0.0/0")
_IPV4_MAPPED_BITS: Final = 96
_PROXY_BITS: Final = 32
_MAX_PACE: Final = MAX_U32 - 1  # the next one is UNLIMITED (bpf/socket.h)
_SLOW_CAPS: Final = 4  # bpf/steering.bpf.c
# What a preferred path has queued when its rate falls keeps the connection waiting, however much others may carry.
_SLOW_OVERFLOWS: Final = 10
_NO_PREFERENCE: Final = MAX_U32
_NO_NETWORK: Final = pack(
    program_layout.Network(_NO_PREFERENCE, pace=0, provisional_ns=0, limited=False, steered=False)
)


class Packed(NamedTuple):
    """The elements of a network."""

    network: AccessNetwork
    elements: Mapping[bytes, bytes]


Known = Mapping[tuple[int, int], Packed]


class NetworksMap:
    """The map of a program."""

    def __init__(self, networks: BpfMap, proxies: Proxies) -> None:
        self._map = networks
        self._proxies = proxies
        self._networks: Sequence[AccessNetwork] | None = None
        self._steered = False
        self._elements: dict[bytes, bytes] = {}
        self._known: Known = {}

    def set(self, networks: Sequence[AccessNetwork], *, steered: bool = False) -> None:
        """Change what differs; nothing is packed if these are the present ones. Raises KernelError.

        `steered`: the steering programs hold capped subflows back.
        """
        if networks is self._networks and steered == self._steered:
            return
        is_known = steered == self._steered and self._is_of_same_networks(networks)
        made: dict[tuple[int, int], Packed] = {}
        wanted = pack_networks(networks, self._proxies, self._known if is_known else {}, made, steered=steered)
        self._known = made
        self._map.update({key: value for key, value in wanted.items() if self._elements.get(key) != value})
        self._map.delete_all(self._elements.keys() - wanted)
        self._networks, self._steered, self._elements = networks, steered, wanted

    def _is_of_same_networks(self, networks: Sequence[AccessNetwork]) -> bool:
        """Whether only clients have changed: what is packed of a network depends on all networks before them."""
        return by_name(networks) == by_name(self._networks or ())


def by_name(networks: Sequence[AccessNetwork]) -> dict[str, AccessNetwork]:
    """The networks by their names, without the clients with rates of their own, who come later under the same names."""
    return {network.name: network for network in reversed(networks)}


def pack_networks(
    networks: Sequence[AccessNetwork],
    proxies: Proxies,
    known: Known = MappingProxyType({}),
    made: dict[tuple[int, int], Packed] | None = None,
    *,
    steered: bool = False,
) -> dict[bytes, bytes]:
    """The elements of the map `networks`, in which the longest prefix decides: struct prefix and struct network.

    `known` has what was packed before of the same networks, by the proxy's number and the identity of each; it is
    added to `made` for the next time.
    """
    packed: dict[bytes, bytes] = {}
    for number, (name, _) in proxies.numbered():
        of_proxy = networks_of(name, networks)
        # In the map an IPv6 subnet such as ::/0 has the IPv4-mapped addresses, too.
        packed[packed_prefix(number, _IPV4)] = _NO_NETWORK
        # The cap of a client with rates of its own makes no path of other clients slow.
        first = list(by_name(of_proxy).values())
        for network in of_proxy:
            key = number, id(network)
            if (each := known.get(key)) is None or each.network is not network:
                value = _network(number, network, first, steered=steered)
                each = Packed(network, {packed_prefix(number, subnet): value for subnet in network.subnets})
            if made is not None:
                made[key] = each
            packed |= each.elements
    return packed


def packed_prefix(proxy: int, subnet: Network) -> bytes:
    """The key of a subnet of the proxy with this number."""
    bits = _PROXY_BITS + subnet.prefixlen + (_IPV4_MAPPED_BITS if isinstance(subnet, IPv4Network) else 0)
    return pack(program_layout.Prefix(bits, proxy, mapped(subnet.network_address)))


def _slow_rate(network: AccessNetwork, networks: Sequence[AccessNetwork]) -> int:
    """Bytes per second: several times the largest cap of a less preferred network; 0: none has a cap."""
    less_preferred = (each for each in networks if each.preference > network.preference)
    rates = [
        factor * rate.bytes_per_second
        for each in less_preferred
        for factor, rate in ((_SLOW_CAPS, each.rates.get(RateKind.CAP)), (_SLOW_OVERFLOWS, each.overflow))
        if rate is not None
    ]
    return min(max(rates, default=0), MAX_U32)


def _network(proxy: int, network: AccessNetwork, networks: Sequence[AccessNetwork], *, steered: bool) -> bytes:
    cap = network.rates.get(RateKind.CAP)
    pace = 0 if cap is None else min(payload_pace(cap, 1), _MAX_PACE)
    provisional_ns = round(network.provisional * 1e9)
    is_limited, healthy = RateKind.LIMIT in network.rates, network.healthy
    return pack(
        program_layout.Network(
            network.preference,
            pace,
            provisional_ns,
            is_limited,
            steered,
            max_rtt_us=min(round((healthy.rtt or 0) * 1e6), MAX_U32),
            max_loss=round((healthy.loss or 0) * 1000),
            min_rate=0 if healthy.rate is None else min(healthy.rate.bytes_per_second, MAX_U32),
            slow_rate=_slow_rate(network, networks),
            proxy=proxy,
            has_budgets=bool(network.all_budgets),
            may_be_narrowed=network.may_be_narrowed,
        )
    )
