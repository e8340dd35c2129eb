"""Makes an access network of each client with terms of its own: kernel programs find it by its longer prefix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from mptcp_throttle.model import AccessNetwork, Address, Network
from mptcp_throttle.proxies import ONE_PROXY, Proxies, networks_of
from mptcp_throttle.subnet_table import SubnetTable, network_table
from mptcp_throttled.vocabulary.terms import ClientKey, Terms


class ClientNetworks:
    """The networks made of clients. Each is the same object until the client's terms or any network changes."""

    def __init__(self, proxies: Proxies = ONE_PROXY) -> None:
        self._proxies = proxies
        self._networks: Sequence[AccessNetwork] = ()
        self._known: dict[tuple[str | None, str], dict[Address, tuple[Terms, AccessNetwork]]] = {}

    def of(self, networks: Sequence[AccessNetwork], by_client: Mapping[ClientKey, Terms]) -> list[AccessNetwork]:
        """For each proxy, a network for each of these clients, to be appended to `networks`.

        By the longest prefix, it contains exactly the client's addresses that are in the client's access network.
        """
        known, self._known = self._known if networks is self._networks else {}, {}
        self._networks = networks
        by_name: dict[str, dict[Address, Terms]] = {}
        for (name, client), terms in by_client.items():
            by_name.setdefault(name, {})[client] = terms
        made: list[AccessNetwork] = []
        for proxy in self._proxies.by_name if by_client else ():
            of_proxy = networks_of(proxy, networks)
            table = network_table(of_proxy)
            for network in of_proxy:
                before = known.get((proxy, network.name), {})
                own = by_name.get(network.name, {})
                present = {c: each for c, each in before.items() if own.get(c) is each[0]}
                missing = {client: terms for client, terms in own.items() if client not in present}
                present.update(_made(proxy, network, missing, table))
                self._known[proxy, network.name] = present
                made += [present[client][1] for client in own]
        return made


def _made(
    proxy: str | None, network: AccessNetwork, own: Mapping[Address, Terms], table: SubnetTable[AccessNetwork]
) -> Iterator[tuple[Address, tuple[Terms, AccessNetwork]]]:
    within = _subnets_within(network, own)
    with_rates: dict[int, AccessNetwork] = {}  # thousands of clients often have one value of terms
    for client, terms in own.items():
        # A client's prefix counts only if it lies in a subnet of its own network, rather than in that of another one.
        around = (
            prefix
            for prefix in network.prefixes(client)
            if table.find(prefix.network_address, prefix.max_prefixlen - prefix.prefixlen) is network
        )
        if id(terms) not in with_rates:
            with_rates[id(terms)] = network.with_rates({kind: term.rate for kind, term in terms.items()})
        subnets = (*within.get(client, ()), *around)
        yield client, (terms, replace(with_rates[id(terms)], subnets=subnets, proxy=proxy))


def _subnets_within(network: AccessNetwork, clients: Collection[Address]) -> dict[Address, list[Network]]:
    """By client, the subnets of its network that lie within its prefixes."""
    within: dict[Address, list[Network]] = {}
    for subnet in network.subnets if clients else ():
        client = network.client(subnet.network_address)
        if client in clients and any(_is_part(subnet, prefix) for prefix in network.prefixes(client)):
            within.setdefault(client, []).append(subnet)
    return within


def _is_part(subnet: Network, prefix: Network) -> bool:
    return subnet.version == prefix.version and subnet.prefixlen > prefix.prefixlen and subnet.network_address in prefix
