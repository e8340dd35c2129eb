"""A rate of one client: the other client of the network keeps that of the network."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from polling import eventually
from proxy_world import Hosts, ProxyWorld, receive_rates, serving

from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import Client, ClientSpec, Topology
from mptcp_throttle.model import Per

TOPOLOGY: Final = Topology(clients=(ClientSpec("one"), ClientSpec("two")))
CAP: Final = 1_000_000


def ethernet_of(world: ProxyWorld, client: Client) -> str:
    return str(client.address(world.lab.topology.ethernet, 4))


def caps(world: ProxyWorld) -> dict[str, int | None]:
    """The rates of the capped subflows, by address."""
    return {subflow.client: subflow.rate for subflow in world.capped()}


def both_capped(world: ProxyWorld) -> tuple[Client, Client]:
    """Both clients, each with a download that is capped."""
    one, two = world.lab.clients.values()
    for client in (one, two):
        world.download(client=client)
    world.wait_settled(2)
    return one, two


@pytest.mark.parametrize("world", [{"steering": True}, {"steering": False}], indirect=True, ids=["steering", "paces"])
def test_one_of_two_clients_is_freed_for_a_time(world: ProxyWorld) -> None:
    freed, capped = both_capped(world)
    address, rest = ethernet_of(world, freed), {ethernet_of(world, capped): CAP}
    answer = world.services.cli_json("set-rate", "--client", address, "ethernet", "unlimited", "--for", "12s")
    assert caps(world) == rest
    (of_client,) = answer["client_rates"]
    assert (of_client["client"], of_client["rates"]["downlink"]["cap"]["rate"]) == (address, None)
    assert 10 < of_client["rates"]["downlink"]["cap"]["seconds_left"] <= 12
    assert answer["rates"]["downlink"]["cap"]["reason"] is None
    reasons = {subflow.client: subflow.reason for subflow in world.services.subflows()}
    assert reasons[address] == "client has no cap; cap: by hand for this client"
    eventually(lambda: receive_rates(freed, 1)["eth0"] > 3e6, "the freed client's Ethernet beyond the cap")
    assert receive_rates(capped, 3)["eth0"] < 1.25e6
    eventually(lambda: caps(world) == {address: CAP, **rest}, "both capped once it expired", within=12)
    assert f"override of ethernet {address} cap expired" in world.daemon.log_text()


@pytest.mark.parametrize("per", Per)
def test_client_keeps_its_own_cap_over_a_restart(hosts: Hosts, per: Per) -> None:
    with serving(hosts, [replace(network, per=per) for network in WIFI_FIRST]) as world:
        fast, slow = both_capped(world)
        address, rest = ethernet_of(world, fast), {ethernet_of(world, slow): CAP}
        world.services.cli("set-rate", "--client", address, "ethernet", "4mbit")
        assert caps(world) == {address: 4_000_000, **rest}
        world.daemon.kill()
        world.start_daemon()
        eventually(lambda: caps(world) == {address: 4_000_000, **rest}, "both rates after the restart")
        eventually(lambda: 3.4e6 < receive_rates(fast, 3)["eth0"] < 4.5e6, "4 Mb/s for 3 s")
        assert receive_rates(slow, 3)["eth0"] < 1.25e6
        world.services.cli("reset-rate", "--client", address, "ethernet")
        assert caps(world) == {address: CAP, **rest}
