"""The accounts of the history that an operator names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mptcp_throttle.config.subnets import parse_address
from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import AccessNetwork
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.accounting.history_rows import Account, Kind
from mptcp_throttled.vocabulary.locator import Locators


def requested_accounts(name: str, networks: Sequence[AccessNetwork], proxies: Proxies) -> list[Account]:
    """The accounts that an operator names: a network or a device by its name, or a client by one of its addresses.

    A client has several if networks of different proxies have different client prefixes. A device also has the accounts
    of its addresses, for what they carried before it had a name. Raises UserError.
    """
    if name in [network.name for network in networks]:
        return [Account(Kind.NETWORK, name)]
    if any(name in network.devices.by_name for network in networks):
        return _accounts_of(name, networks)
    try:
        address = parse_address(name)
    except ValueError as error:
        known = ", ".join(network.name for network in networks)
        problem = f"no such network, device or address; allowed: {known}, a device, or an IP address without a zone"
        raise UserError(f"{shown(name)}: {problem}") from error
    located = [locate for locate in Locators(networks, proxies).each if locate(address) is not None]
    devices = (locate.device(address) for locate in located)
    device = next((each for each in devices if each is not None), None)
    if device is not None:
        return _accounts_of(device, networks)
    clients = dict.fromkeys(locate.client(address) for locate in located) or [address]
    return [Account(Kind.CLIENT, str(client)) for client in clients]


def requested_path(name: str, network: str, networks: Sequence[AccessNetwork], proxies: Proxies) -> list[Account]:
    """The accounts of a client on one network. A device also has those of its addresses there, for what they carried
    before it had a name. Raises UserError.
    """
    chosen = next((each for each in networks if each.name == network), None)
    if chosen is None:
        known = ", ".join(each.name for each in networks)
        raise UserError(f"network: {shown(network)}: no such access network; allowed: {known}")
    first, *_ = accounts = requested_accounts(name, networks, proxies)
    if first.kind is Kind.NETWORK:
        raise UserError(f"{shown(name)}: is a network; allowed: a device or an address")
    device = chosen.devices.by_name.get(first.name)
    if device is not None:
        firsts = dict.fromkeys(str(prefix.network_address) for prefix in device.prefixes)
        return [Account.of_path(network, first.name), *(Account(Kind.CLIENT, each) for each in firsts)]
    on_network = [each for each in accounts if _is_on(each.name, network, networks, proxies)]
    if not on_network:
        raise UserError(f"{shown(name)}: has no address in {network}; allowed: a client that has one")
    return on_network


def _is_on(client: str, network: str, networks: Sequence[AccessNetwork], proxies: Proxies) -> bool:
    """Whether a client, by its first address, is on this network; false for the name of a device."""
    try:
        address = parse_address(client)
    except ValueError:
        return False
    located = (locate(address) for locate in Locators(networks, proxies).each)
    return any(each is not None and each.name == network for each in located)


def _accounts_of(device: str, networks: Iterable[AccessNetwork]) -> list[Account]:
    clients = (network.devices.by_name.get(device) for network in networks)
    firsts = (str(prefix.network_address) for client in clients if client is not None for prefix in client.prefixes)
    return [Account(Kind.CLIENT, name) for name in dict.fromkeys((device, *firsts))]
