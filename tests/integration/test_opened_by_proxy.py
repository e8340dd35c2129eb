"""A client announces its address on the capped network, so that the proxy's kernel itself opens the subflow to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from polling import eventually
from proxy_world import FREE, ProxyWorld, proxy_world, receive_rates

from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI, AccessLink, Client, ClientSpec, Topology

ANNOUNCED_PORT: Final = 9999
TOPOLOGY: Final = Topology((ClientSpec(wifi=None),))


@contextmanager
def announcing(classifier: str) -> Iterator[ProxyWorld]:
    """A download that begins over Wi-Fi; the proxy has opened a subflow to the client's Ethernet address."""
    with proxy_world(TOPOLOGY, daemon={"classifier": classifier}) as world:
        client = world.lab.client
        client.ip([f"route replace {world.lab.proxy_address(4)} via {WIFI.v4[1]} dev {WIFI.interface}"])
        world.download()
        wait_served(client)
        announce(client, ETHERNET)
        eventually(lambda: len(opened(world)) == 1, "the proxy has opened a subflow")
        yield world


def announce(client: Client, link: AccessLink) -> None:
    """The client announces its address on `link` with a port, on its connections and on later ones."""
    address = ("ip", "mptcp", "endpoint", "add", str(client.address(link, 4)))
    client.run(*address, "dev", link.interface, "signal", "port", str(ANNOUNCED_PORT))


def wait_served(client: Client) -> None:
    """Wait until Squid answers: the kernel opens no subflow before the connection is accepted, and tries only once.

    net/mptcp/subflow.c, mptcp_subflow_create_socket; counted as MPTcpExtMPJoinSynTxCreatSkErr.
    """
    eventually(lambda: "bytes_received:" in client.run("ss", "-tinH", "state", "established").stdout, "served")


def opened(world: ProxyWorld) -> list[str]:
    """The ports from which the proxy has opened subflows to clients."""
    sockets = world.proxy.run("ss", "-tnH", "state", "established", "dport", "=", f":{ANNOUNCED_PORT}").stdout
    return [line.split()[2].rpartition(":")[2] for line in sockets.splitlines()]


@pytest.mark.parametrize("classifier", ["socket", "nft"])
def test_subflow_that_the_proxy_opens_has_the_cap_and_is_adopted(classifier: str) -> None:
    with announcing(classifier) as world:
        (port,) = opened(world)
        assert port != str(PORT)
        (capped,) = world.wait_settled()
        assert (capped.network, capped.client_port) == ("ethernet", ANNOUNCED_PORT)
        assert receive_rates(world.lab.client, 5)["eth0"] < 1.25e6
        if classifier == "socket":
            world.daemon.kill()
            world.start_daemon()
            world.wait_capped()
            assert "1 throttled subflows adopted, 0 added" in world.daemon.log_text()
        world.daemon.stop()
        assert world.paced() == 0
        assert world.assignments() == []


def test_subflow_that_the_proxy_opens_is_reported_where_packets_are_marked() -> None:
    with announcing("rules") as world:
        eventually(lambda: len(world.services.subflows()) == 2, "known by its token")
        (free,) = (subflow for subflow in world.services.subflows() if subflow.network == "ethernet")
        assert "throttled only with daemon.classifier: socket or nft" in free.reason
        assert world.errors() == []


def test_preferred_path_that_the_proxy_opens_lifts_the_cap_when_it_ends() -> None:
    with proxy_world(TOPOLOGY) as world:
        client = world.lab.client
        world.download()
        wait_served(client)
        announce(client, WIFI)
        world.wait_capped()
        client.leave(WIFI)
        eventually(lambda: world.capped() == [], "free", within=2)
        eventually(lambda: receive_rates(client, 2)["eth0"] > FREE, "Ethernet in use")
