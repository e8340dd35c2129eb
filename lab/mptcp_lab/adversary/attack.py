"""What an attack is: its sender, the traffic beside it, and what must hold during it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mptcp_lab.download import Download, reset_subflows
from mptcp_lab.origin import Origin, endless
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, ClientSpec, Family, Lab, Topology
from mptcp_lab.traffic import start_pour
from mptcp_throttle.model import AccessNetwork, RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS: Final = Topology(
    clients=(
        ClientSpec("victim"),
        ClientSpec("reserve", families=(4,), wifi="backup"),
        ClientSpec("raw", families=(4,)),
        ClientSpec("forger", families=(4,), wifi=None),
    )
)
"""Two ordinary clients, one with Wi-Fi as a backup; a client with its own TCP (`raw_client`); a host off the path."""

POUR_PORT: Final = PORT + 1
"""A proxy port whose server sends zeros to every client, as long as the client receives."""

PORTS: Final = (PORT, POUR_PORT)

CAPPED: Final = Rate(1_000_000)
"""The cap of Ethernet in `WIFI_FIRST`."""

FREE: Final = ETHERNET.rate

STILL_FLOWS: Final = 0.5
LEAST_BY_PULSES: Final = 0.1
"""Steering lets a path send only while Wi-Fi is saturated, which it is not always when the client is a program."""

_WIFI, _ETHERNET = WIFI_FIRST
LIMITED: Final = (_WIFI, _ETHERNET.with_rates({RateKind.CAP: None, RateKind.LIMIT: CAPPED}))
"""As `WIFI_FIRST`, with a limit instead of the cap."""


@dataclass(frozen=True, slots=True)
class Site:
    """The hosts `CLIENTS`, prepared (`prepare`), with our services running on the proxy for `PORTS`."""

    lab: Lab
    origin: Origin
    services: Services


Act = Callable[[], AbstractContextManager[None]]
"""The attack lasts for as long as this block."""

Begin = Callable[[Site], AbstractContextManager[Act]]
"""The traffic that an attack is about flows for as long as this block."""


class Adversary(StrEnum):
    """Who attacks."""

    OFF_PATH = "off path"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack on the Ethernet path of a client, or by that client.

    Before the attack the path has the `rate`, or `rate_before`. During it, a `throttled` path must not exceed the
    `rate`, and any other must keep it and stay free. An attack that begins with honest JOINs and connections counts
    after `grace` seconds. A `lasting` attack cannot be undone. Before and during it, a `throttled` path must carry the
    share `least` of its rate: if it carries nothing, nothing was shown.
    """

    name: str
    does: str
    by: Adversary
    client: str
    begin: Begin
    throttled: bool = True
    networks: tuple[AccessNetwork, ...] = WIFI_FIRST
    lasting: bool = False
    rate_before: Rate | None = None
    grace: float = 0.0
    least: float = STILL_FLOWS

    @property
    def rate(self) -> Rate:
        """What the path must have."""
        return CAPPED if self.throttled else FREE


def prepare(lab: Lab) -> None:
    """Start what attacks need beside Squid. Kernels of adversaries do not answer what their own programs receive."""
    start_pour(lab.proxy, POUR_PORT)
    for name, port in (("forger", PORT), ("raw", POUR_PORT)):
        by_kernel = ("-p", "tcp", "--dport", str(port), "--tcp-flags", "RST", "RST", "-m", "mark", "--mark", "0")
        lab.clients[name].run("iptables-legacy", "-A", "OUTPUT", *by_kernel, "-j", "DROP")


@contextmanager
def downloading(site: Site, name: str, *, family: Family = 4) -> Iterator[None]:
    """While a client downloads through Squid."""
    client = site.lab.clients[name]
    download = Download(site.lab, client, endless(site.origin), family=family)
    try:
        yield
    finally:
        reset_subflows(client)
        download.stop()
