"""TCP Fast Open: the request comes with the SYN, so that the handshake acknowledges more than the SYN."""

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
from polling import eventually
from port_client import download_from
from proxy_world import Hosts, ProxyWorld, attended, receive_rates, unique

from mptcp_lab.oracle import listed, published
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, Topology

FAST_OPEN: Final = "net/ipv4/tcp_fastopen"
# Documentation/networking/ip-sysctl.rst: both sides without cookies, and all listeners accept data of a SYN.
CLIENT: Final = str(0x1 | 0x4)
TOPOLOGY: Final = Topology(proxy_sysctls={FAST_OPEN: str(0x2 | 0x200 | 0x400)})

_ports: Final = itertools.count(41000)


class Setting(NamedTuple):
    """Keys of the configuration."""

    kernel_view: bool = True
    steering: bool = True


@pytest.fixture(params=[Setting(), Setting(kernel_view=False)], ids=["kernel list", "wire alone"])
def world(request: pytest.FixtureRequest, hosts: Hosts) -> Iterator[ProxyWorld]:
    """A download over Ethernet and Wi-Fi that does not end; its request came with the SYN."""
    services = Services(
        hosts.lab.proxy,
        WIFI_FIRST,
        name=unique("throttle"),
        sniffer={"kernel_view": request.param.kernel_view},
        daemon={"steering": request.param.steering},
    )
    client, proxy = hosts.lab.client, hosts.lab.proxy
    client.sysctl({FAST_OPEN: CLIENT})
    with attended(hosts, services) as running, services:
        accepted = proxy.counter("TcpExtTCPFastOpenPassive")
        download = download_from(running, client.address(ETHERNET, 4), next(_ports), fast_open=True)
        eventually(lambda: len(listed(proxy, PORT)) == 2, "joined")
        assert proxy.counter("TcpExtTCPFastOpenPassive") == accepted + 1
        yield running
        download.stop()


def test_subflow_is_capped_although_a_syn_had_data(world: ProxyWorld) -> None:
    (capped,) = world.wait_capped()
    assert capped.network == "ethernet"
    table = published(world.services.ask_sniffer("snapshot")["connections"])
    assert table.keys() == listed(world.proxy, PORT).keys()
    assert "unknown_token" not in world.services.ask_sniffer("status")["counters"]


@pytest.mark.parametrize("world", [Setting(steering=False)], indirect=True, ids=["paced"])
def test_wifi_is_as_fast_as_after_a_plain_syn(world: ProxyWorld) -> None:
    world.wait_settled()
    rates = receive_rates(world.lab.client, 5)
    assert rates["eth0"] < 1.2e6
    assert rates["wlan0"] > 10e6  # 0.3 Mb/s if it discards what exceeds its window
