"""Two proxies behind one address: JOINs reach the other one, `doctor` says so, and what it says to do mends it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import unique

from mptcp_lab import namespaces
from mptcp_lab.host import Host
from mptcp_lab.process import run
from mptcp_lab.services import Services
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mptcp_lab.process import Process
    from mptcp_throttle.rpc import Json

SHARED: Final = "10.9.0.1"
OWN: Final = {"first": "10.9.1.1", "second": "10.9.1.2"}
CONNECTIONS: Final = 12
UNKNOWN: Final = "MPTcpExtMPJoinNoTokenFound"
JOINED: Final = "MPTcpExtMPJoinAckRx"
_SERVE: Final = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as listener:
    listener.bind(("0.0.0.0", int(sys.argv[1])))
    listener.listen(100)
    accepted = []
    while True:
        connection, _ = listener.accept()
        connection.sendall(bytes(1000))
        accepted.append(connection)
"""
_CONNECT: Final = """
import socket, sys, time
address, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
opened = []
for _ in range(number):
    opened.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262))
    opened[-1].connect((address, port))
    opened[-1].sendall(bytes(1000))
    opened[-1].recv(1)
time.sleep(3600)
"""


@dataclass(frozen=True)
class Anycast:
    """A client whose first network leads to one proxy with the shared address, and whose second leads to another."""

    client: Host
    first: Host
    second: Host

    def connect(self) -> Process:
        """Open connections to the first proxy; the client JOINs over its second network."""
        return self.client.start(unique("connect"), "python3", "-c", _CONNECT, SHARED, str(PORT), str(CONNECTIONS))


@pytest.fixture
def anycast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anycast]:
    """Each proxy has an address of its own besides, which the client reaches over both networks."""
    directory = tmp_path_factory.mktemp("anycast")
    with ExitStack() as stack:
        prefix = stack.enter_context(namespaces.owned())
        hosts = {}
        for name in ("client", "first", "second"):
            run(["ip", "netns", "add", f"{prefix}{name}"])
            hosts[name] = Host(name, f"{prefix}{name}", directory / unique(name))
            stack.callback(hosts[name].stop)
            hosts[name].ip(["link set lo up"])
            hosts[name].sysctl({"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "0"})
        client, first, second = hosts.values()
        client.ip([f"link add eth0 type veth peer name eth0 netns {first.namespace}"])
        client.ip([f"link add eth1 type veth peer name eth0 netns {second.namespace}"])
        first.ip([f"link add eth1 type veth peer name eth1 netns {second.namespace}"])
        for number, proxy in enumerate((first, second), 1):
            proxy.ip([f"address add 10.{number}.0.1/24 dev eth0", f"address add 10.3.0.{number}/24 dev eth1"])
            proxy.ip(["link set eth0 up", "link set eth1 up", f"address add {SHARED}/32 dev lo"])
            proxy.ip(
                [
                    f"address add {OWN[proxy.name]}/32 dev lo",
                    f"route add 10.{3 - number}.0.0/24 via 10.3.0.{3 - number}",
                ]
            )
            proxy.ip([f"route add 10.9.1.{3 - number} via 10.3.0.{3 - number}", "mptcp limits set subflows 4"])
            listener = proxy.start("listener", "python3", "-c", _SERVE, str(PORT))
            listener.wait_until(lambda proxy=proxy: proxy.listens(PORT, mptcp=True), "listening")  # type: ignore[misc]
            client.ip([f"address add 10.{number}.0.2/24 dev eth{number - 1}", f"link set eth{number - 1} up"])
        client.ip(["route add default via 10.1.0.1", "rule add from 10.2.0.2 table 2"])
        client.ip(["route add default via 10.2.0.1 table 2", "mptcp limits set subflows 4 add_addr_accepted 4"])
        client.ip(["mptcp endpoint add 10.2.0.2 dev eth1 subflow fullmesh"])
        yield Anycast(client, first, second)


def findings(host: Host, ports: Sequence[int] = (PORT,)) -> list[Json]:
    """What `doctor` says on a proxy of a fleet."""
    services = Services(host, interfaces=["eth0"], name=unique("doctor"), ports=ports)
    services.configure_section("fleet", url="valkey://127.0.0.1", name="proxy-1", share_clients=True)
    done = services.cli("doctor", "--json", check=False)
    return list(json.loads(done.stdout)["findings"])


def joins(host: Host) -> Json:
    """What it says of JOINs."""
    (found,) = (finding for finding in findings(host) if finding["subject"] == "JOINs")
    return found


@pytest.mark.parametrize("port", ["", " port 8443"], ids=["address", "port"])
def test_doctor_sees_joins_of_another_proxy_and_their_remedy_works(anycast: Anycast, port: str) -> None:
    first, second = anycast.first, anycast.second
    assert joins(second)["problem"] is None
    opened = anycast.connect()
    eventually(lambda: second.counter(UNKNOWN) >= CONNECTIONS, "JOINs at the other proxy", seen=opened.log_text)
    found = joins(second)
    assert "are for connections that this proxy does not know" in found["problem"]
    assert not found["harm"]
    # The one that has the connections sees nothing of it.
    assert joins(first)["problem"] is None
    for proxy in (first, second):
        proxy.run("ip", "mptcp", "endpoint", "add", OWN[proxy.name], *port.split(), "signal")
        proxy.sysctl({"net/mptcp/allow_join_initial_addr_port": "0"})
    unknown, joined = second.counter(UNKNOWN), first.counter(JOINED)
    again = anycast.connect()
    eventually(lambda: first.counter(JOINED) >= joined + CONNECTIONS, "JOINs at their own proxy", seen=again.log_text)
    assert second.counter(UNKNOWN) == unknown
    for proxy in (first, second):
        shown = joins(proxy)
        assert (shown["problem"], shown["remark"]) == (None, f"go to announced addresses: {OWN[proxy.name]}{port}")

    # The kernel listens itself on the port that is announced, which is one of the proxy's.
    ports = (PORT, int(port.split()[1])) if port else (PORT,)
    found_at = {finding["subject"]: finding["problem"] for finding in findings(first, ports)}
    assert [found_at[f"proxy port {each}"] for each in ports] == [None] * len(ports)
