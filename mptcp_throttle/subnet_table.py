"""Which of many subnets an address is in: of those that contain it, the one with the longest prefix.

The kernel program looks networks up in the same way (BPF_MAP_TYPE_LPM_TRIE).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_throttle.model import AccessNetwork, Address, Network

_T = TypeVar("_T")


class SubnetTable(Generic[_T]):
    """Subnets of both IP versions, each with a value. A look-up tries each prefix length in use, longest first."""

    def __init__(self, values: Iterable[tuple[Network, _T]]) -> None:
        by_length: dict[tuple[int, int], dict[int, _T]] = {}
        for subnet, value in values:
            prefixes = by_length.setdefault((subnet.version, subnet.max_prefixlen - subnet.prefixlen), {})
            prefixes[int(subnet.network_address)] = value
        self._by_host_bits = {
            version: [
                (bits, prefixes) for (ip_version, bits), prefixes in sorted(by_length.items()) if ip_version == version
            ]
            for version in (4, 6)
        }

    def find(self, address: Address, least_host_bits: int = 0) -> _T | None:
        """The value of the subnet with the longest prefix; None if no subnet contains the address.

        Only subnets with `least_host_bits` behind their prefix count.
        """
        number = int(address)
        for host_bits, prefixes in self._by_host_bits[address.version]:
            prefix = number >> host_bits << host_bits
            if host_bits >= least_host_bits and prefix in prefixes:
                return prefixes[prefix]
        return None


def network_table(networks: Iterable[AccessNetwork]) -> SubnetTable[AccessNetwork]:
    """The access network of each subnet."""
    return SubnetTable((subnet, network) for network in networks for subnet in network.subnets)
