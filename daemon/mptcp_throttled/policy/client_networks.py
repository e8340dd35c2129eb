"""The clients with terms of their own as access networks: kernel programs find them by longer prefixes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mptcp_throttle.model import AccessNetwork, Address, Network
from mptcp_throttle.proxies import Proxies, networks_of
from mptcp_throttle.subnet_table import network_table
from mptcp_throttled.vocabulary.terms import ClientKey, Terms


def client_networks(
    networks: Sequence[AccessNetwork], by_client: Mapping[ClientKey, Terms], proxies: Proxies
) -> Iterator[AccessNetwork]:
    """A network of each proxy for each of these clients, to be added behind `networks`.

    An address is in such a network, by the longest prefix, if and only if it is the client's and in the client's
    network.
    """
    for proxy in proxies.by_name if by_client else ():
        yield from _of_proxy(proxy, networks_of(proxy, networks), by_client)


def _of_proxy(
    proxy: str | None, networks: Iterable[AccessNetwork], by_client: Mapping[ClientKey, Terms]
) -> Iterator[AccessNetwork]:
    table = network_table(networks)
    for network in networks:
        own = {client: terms for (name, client), terms in by_client.items() if name == network.name}
        within = _subnets_within(network, own)
        for client, terms in own.items():
            # The part of a client's prefix that longer subnets do not have belongs to the network around it, if any.
            around = (
                prefix
                for prefix in network.prefixes(client)
                if table.find(prefix.network_address, prefix.max_prefixlen - prefix.prefixlen) is network
            )
            rates = {kind: term.rate for kind, term in terms.items()}
            subnets = (*within[client], *around)
            yield replace(network.with_rates(rates), subnets=subnets, proxy=proxy)


def _subnets_within(network: AccessNetwork, clients: Collection[Address]) -> dict[Address, list[Network]]:
    """By client, the subnets of its network that are parts of its prefixes."""
    within: dict[Address, list[Network]] = {client: [] for client in clients}
    for subnet in network.subnets if clients else ():
        client = network.client(subnet.network_address)
        if client in within and any(_is_part(subnet, prefix) for prefix in network.prefixes(client)):
            within[client].append(subnet)
    return within


def _is_part(subnet: Network, prefix: Network) -> bool:
    return subnet.version == prefix.version and subnet.prefixlen > prefix.prefixlen and subnet.network_address in prefix
