"""What `setup` reads from a host with Squid."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from mptcp_throttle.linux.qdisc_kinds import SeenQdisc
from mptcp_throttle.setup.host_facts import ClientPath, HostFacts, Interface, Listener, Mptcp, Owner, SquidFacts

SQUID: Final = Owner(700, "squid", "squid.service")


def listener(port: int, address: str = "::", owner: Owner | None = SQUID, *, mptcp: bool = True) -> Listener:
    return Listener(ip_address(address), port, mptcp, owner)


def interface(
    name: str, address: str | None, *, up: bool = True, supported: bool = True, qdisc: str = "fq_codel"
) -> Interface:
    addresses = () if address is None else (ip_address(address),)
    return Interface(name, up, name == "lo", supported, addresses, (SeenQdisc(qdisc, 0x8001_0000, 0xFFFF_FFFF),))


HOST: Final = HostFacts(
    mptcp=Mptcp.ON,
    listeners=(
        listener(22, owner=Owner(1, "sshd", "ssh.service"), mptcp=False),
        listener(53, "127.0.0.1", Owner(2, "resolver", None)),
        listener(8080),
    ),
    interfaces=(interface("lo", "127.0.0.1"), interface("eth0", "10.3.0.2"), interface("eth1", "10.4.0.2")),
    default_routes=("eth0", "eth0"),
    client_paths=(ClientPath(22, "eth1", 3),),
    has_type_information=True,
    has_libbpf=True,
    has_socket_group=True,
    has_mptcpize=True,
    systemd_version=252,
    services_run=False,
    dropping_chains=(),
    translations=(),
    squid=SquidFacts(frozenset({8080}), serves_hosts=True, has_large_buffer=True),
)
