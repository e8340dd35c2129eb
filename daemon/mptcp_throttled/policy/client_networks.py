"""The clients with terms of their own as access networks: kernel programs find them by longer prefixes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_network

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
            bits = network.client_prefix.bits(client)
            # The part of a client's prefix that longer subnets do not have belongs to the network around it, if any.
            around = table.find(client, client.max_prefixlen - bits)
            subnets = [*within[client], ip_network(f"{client}/{bits}")] if around is network else within[client]
            rates = {kind: term.rate for kind, term in terms.items()}
            yield replace(network.with_rates(rates), subnets=tuple(subnets), proxy=proxy)


def _subnets_within(network: AccessNetwork, clients: Collection[Address]) -> dict[Address, list[Network]]:
    """By client, the subnets of its network that are parts of its prefix."""
    within: dict[Address, list[Network]] = {client: [] for client in clients}
    prefix = network.client_prefix
    for subnet in network.subnets if clients else ():
        first = subnet.network_address
        if subnet.prefixlen > prefix.bits(first) and (client := prefix.first(first)) in within:
            within[client].append(subnet)
    return within
