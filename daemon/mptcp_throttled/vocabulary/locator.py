"""Looks up the access network of an address."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mptcp_throttle.model import AccessNetwork, Address
from mptcp_throttle.proxies import Proxies, networks_of
from mptcp_throttle.subnet_table import network_table

_CACHE_ENTRIES: Final = 65536


class Locator:
    """Looks up the access network of an address among those of one proxy, by longest match, once per address."""

    def __init__(self, networks: Iterable[AccessNetwork]) -> None:
        self._table = network_table(networks)
        self._known: dict[Address, AccessNetwork | None] = {}

    def client(self, address: Address) -> Address:
        """The first address of the client with this address; the address itself if it is in no network."""
        network = self(address)
        return address if network is None else network.client(address)

    def device(self, address: Address) -> str | None:
        """The name of the device with this address; None: no device has it."""
        network = self(address)
        device = None if network is None else network.devices.find(address)
        return None if device is None else device.name

    def __call__(self, address: Address) -> AccessNetwork | None:
        """The network; None if the address is in none."""
        try:
            return self._known[address]
        except KeyError:
            if len(self._known) >= _CACHE_ENTRIES:
                self._known.clear()
            network = self._known[address] = self._table.find(address)
            return network


class Locators:
    """The locators of all proxies."""

    def __init__(self, networks: Sequence[AccessNetwork], proxies: Proxies) -> None:
        self.each = [Locator(networks_of(proxy, networks)) for proxy in proxies.by_name]
        self._of_no_proxy = Locator(())
        self._proxies = proxies
        self._by_port: dict[int, Locator] = {}

    def of(self, port: int) -> Locator:
        """The locator of the proxy with this port; if no proxy has it, one without networks."""
        locator = self._by_port.get(port)
        if locator is None:
            number = self._proxies.number_of(port)
            locator = self._by_port[port] = self.each[number - 1] if number else self._of_no_proxy
        return locator
