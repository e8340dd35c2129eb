"""Several subflows from one address and over one network, each from a port of its own, as with `ndiffports`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import proxy_world
import pytest
from more_subflows import download_with_subflows
from polling import eventually
from proxy_world import Hosts, ethernet_with, receive_rates, serving
from test_steered_downloads import CAP, wait_carried

from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import ETHERNET, WIFI
from mptcp_throttle.model import Per, RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITED: Final = ethernet_with({RateKind.CAP: None, RateKind.LIMIT: Rate(round(4 * CAP))})


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with proxy_world.hosts() as built:
        built.lab.client.sysctl({"net/mptcp/pm_type": "1"})
        yield built


@pytest.mark.parametrize("steering", [True, False], ids=["steering", "paces"])
@pytest.mark.parametrize(("per", "caps"), [(Per.CLIENT, 1), (Per.SUBFLOW, 3)])
def test_subflows_of_one_address_carry_their_caps(hosts: Hosts, per: Per, caps: int, steering: bool) -> None:
    wifi, ethernet = WIFI_FIRST
    with serving(hosts, (wifi, replace(ethernet, per=per)), {"steering": steering}) as world:
        client = world.lab.client
        own = client.address(ETHERNET, 4)
        download_with_subflows(world, [own, own, client.address(WIFI, 4)])
        capped = world.wait_settled(3)
        assert {subflow.client for subflow in capped} == {str(own)}
        assert len({subflow.client_port for subflow in capped}) == 3
        assert len({subflow.token for subflow in world.services.subflows()}) == 1
        world.wait_restrained(3)
        wait_carried(client, caps)


def test_subflows_of_one_address_share_a_limit(hosts: Hosts) -> None:
    with serving(hosts, LIMITED) as world:
        client = world.lab.client
        own = client.address(ETHERNET, 4)
        download_with_subflows(world, [own, own])
        eventually(lambda: len(world.assignments()) == 3, "in classes", seen=world.services.subflows)
        assert {(each.client, each.kind) for each in world.services.subflows()} == {(str(own), "limit")}
        eventually(lambda: 3.4 * CAP < receive_rates(client, 4)["eth0"] < 4.3 * CAP, "the limit carried")
