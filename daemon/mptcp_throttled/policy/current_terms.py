"""Keeps the present terms up to date: only what a change concerns is computed again."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from mptcp_throttle.config.network_files import MOST_SUBNETS
from mptcp_throttle.model import AccessNetwork
from mptcp_throttle.proxies import ONE_PROXY, Proxies
from mptcp_throttled.policy.client_networks import ClientNetworks
from mptcp_throttled.policy.terms import OwnTerms, terms_of
from mptcp_throttled.vocabulary.terms import ClientKey, Facts, PresentTerms, RuleName, Terms

_KEPT_FIRST: Final = (
    RuleName.BY_HAND,
    RuleName.BUDGET,
    RuleName.DEVICE,
    RuleName.SCHEDULE,
    RuleName.OVERFLOW,
    RuleName.FLEET,
)
"""If kernel programs have no room for all clients with terms of their own, those are kept that an earlier rule of this
list has decided. A client with several rules counts by the first of them."""


class CurrentTerms:
    """The present terms of the `configured` networks.

    `effective` are these networks with the rates of the terms, followed by a network for each client with terms of its
    own. All are the same objects until they change: readers compare identities, since to compare thousands of subnets
    takes long.

    Kernel programs have room for `most_prefixes` of networks and clients, of all proxies together. Clients without room
    have the terms of their network; `errors` says so.
    """

    def __init__(self, proxies: Proxies = ONE_PROXY, most_prefixes: int = MOST_SUBNETS) -> None:
        self._proxies = proxies
        self._most_prefixes = most_prefixes
        self.configured: tuple[AccessNetwork, ...] = ()
        self.effective: tuple[AccessNetwork, ...] = ()
        self.terms = PresentTerms()
        self.errors: tuple[str, ...] = ()
        self._inputs: tuple[tuple[AccessNetwork, ...], Facts] = (), Facts()
        self._networks: tuple[AccessNetwork, ...] = ()
        self._own: defaultdict[str, OwnTerms] = defaultdict(OwnTerms)
        self._client_networks = ClientNetworks(proxies)

    def update(self, configured: tuple[AccessNetwork, ...], now: float, facts: Facts) -> PresentTerms:
        """The terms at `now` (monotonic seconds). If a next change is due, all are computed again."""
        next_change = self.terms.next_change
        is_due = next_change is not None and next_change <= now
        networks_before, facts_before = self._inputs
        if configured is networks_before and facts == facts_before and not is_due:
            return self.terms
        self._inputs = configured, facts
        if configured != self.configured:
            self.configured = configured
        if is_due:
            self._own.clear()
        terms = self._bounded(terms_of(configured, now, facts, self._own))
        if terms != self.terms:
            self.terms = terms
        networks = tuple(
            network.with_rates({kind: term.rate for kind, term in terms.by_network[network.name].items()})
            for network in configured
        )
        if networks != self._networks:
            self._networks = networks
        effective = (*self._networks, *self._client_networks.of(self._networks, terms.by_client))
        if effective != self.effective:
            self.effective = effective
        return self.terms

    def _bounded(self, terms: PresentTerms) -> PresentTerms:
        """The terms, without those of clients for which kernel programs have no room."""
        left = self._most_prefixes - sum(len(each.subnets) * self._copies(each) for each in self.configured)
        networks = {network.name: network for network in self.configured}
        most_each = max((self._copies(each) * _most_prefixes_of_a_client(each) for each in self.configured), default=1)
        self.errors = ()
        if len(terms.by_client) * most_each <= left:
            return terms
        kept: dict[ClientKey, Terms] = {}
        left_out: dict[str, None] = {}
        for key in sorted(terms.by_client, key=lambda key: _rank(terms.by_client[key])):
            network = networks[key[0]]
            left -= self._copies(network) * len(network.prefixes(key[1]))
            if left < 0:
                left_out[network.name] = None
            else:
                kept[key] = terms.by_client[key]
        self.errors = tuple(
            f"{name}: kernel programs have no place for all clients with rates of their own (allowed: "
            f"{self._most_prefixes} prefixes of networks and clients, once for each proxy): the others have its rates"
            for name in left_out
        )
        return PresentTerms(terms.by_network, kept, terms.bursts) if left_out else terms

    def _copies(self, network: AccessNetwork) -> int:
        return len(self._proxies.numbers_of(network.proxy))


def _most_prefixes_of_a_client(network: AccessNetwork) -> int:
    return max((len(device.prefixes) for device in network.devices.clients), default=1)


def _rank(terms: Terms) -> int:
    rules = {term.rule for term in terms.values()}
    return next((rank for rank, rule in enumerate(_KEPT_FIRST) if rule in rules), len(_KEPT_FIRST))
