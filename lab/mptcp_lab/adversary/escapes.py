"""Attacks by a client that wants more than its cap or limit."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mptcp_lab.adversary.attack import (
    FREE,
    LEAST_BY_PULSES,
    LIMITED,
    POUR_PORT,
    Act,
    Adversary,
    Attack,
    Begin,
    Site,
    downloading,
)
from mptcp_lab.origin import endless
from mptcp_lab.process import wait_until
from mptcp_lab.scenario.plan import in_url
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mptcp_lab.host import Host
    from mptcp_lab.process import Process
    from mptcp_lab.topology import AccessLink

_ENDPOINT_ID: Final = 99
_ANNOUNCED_PORT: Final = 9999
_BOTH: Final = (ETHERNET, WIFI)
_PATH_MANAGER: Final = "net/mptcp/pm_type"
_CONGESTION_CONTROL: Final = "net/ipv4/tcp_congestion_control"
_serial: Final = itertools.count(1)


@contextmanager
def _all_backups(site: Site) -> Iterator[Act]:
    client = site.lab.clients["victim"]
    addresses = [client.address(link, 4) for link in (WIFI, ETHERNET)]

    @contextmanager
    def act() -> Iterator[None]:
        client.ip(f"mptcp endpoint change {address} backup" for address in addresses)
        try:
            yield
        finally:
            client.ip(f"mptcp endpoint change {address} nobackup" for address in addresses)

    # The address with which a connection begins has a priority only if it is an endpoint.
    client.ip([f"mptcp endpoint add {addresses[-1]} id {_ENDPOINT_ID} dev {ETHERNET.interface}"])
    try:
        with downloading(site, "victim"):
            yield act
    finally:
        client.ip([f"mptcp endpoint delete id {_ENDPOINT_ID}"])


def _toggling(seconds: float) -> Begin:
    """The priority of Wi-Fi changes that often."""

    @contextmanager
    def begin(site: Site) -> Iterator[Act]:
        client = site.lab.clients["victim"]
        change = f"mptcp endpoint change {client.address(WIFI, 4)}"

        @contextmanager
        def act() -> Iterator[None]:
            lines = f"ip {change} backup; sleep {seconds}; ip {change} nobackup; sleep {seconds}"
            toggling = client.start(f"toggling-{next(_serial)}", "sh", "-c", f"while :; do {lines}; done")
            try:
                yield
            finally:
                toggling.stop()
                client.ip([f"{change} nobackup"])

        with downloading(site, "victim"):
            yield act

    return begin


def raw_attack(attack: str, links: Sequence[AccessLink]) -> Begin:
    """An attack of `raw_client` on a connection that begins over the first of these links."""

    @contextmanager
    def begin(site: Site) -> Iterator[Act]:
        lab, host = site.lab, site.lab.clients["raw"]
        addresses = (str(host.address(link, 4)) for link in links)
        program = ("mptcp_lab.adversary.raw_client", attack, str(lab.proxy_address(4)), str(POUR_PORT), *addresses)
        client = host.start(f"raw-client-{next(_serial)}", sys.executable, "-m", *program)

        @contextmanager
        def act() -> Iterator[None]:
            os.kill(client.pid, signal.SIGUSR1)
            client.wait_until(lambda: "attacking" in client.log_text(), "attacking")
            yield

        try:
            client.wait_until(lambda: "receiving" in client.log_text(), "receiving")
            yield act
        finally:
            client.stop()
            # The client would not answer to it.
            lab.proxy.run("ss", "-K", "-t", "sport", "=", f":{POUR_PORT}")

    return begin


def _crowding(attack: str) -> Begin:
    """An attack with a path manager in user space on the proxy, which permits more than nine subflows."""

    @contextmanager
    def begin(site: Site) -> Iterator[Act]:
        with _many_subflows(site.lab.proxy), raw_attack(attack, _BOTH)(site) as act:
            yield act

    return begin


@contextmanager
def _many_subflows(proxy: Host) -> Iterator[None]:
    settings = {
        # In the kernel's own path manager a connection has nine subflows at most (net/mptcp/pm.c, MPTCP_PM_ADDR_MAX).
        _PATH_MANAGER: "1",
        # The client has no SACK: BBR takes what one acknowledgment covers after a loss for a rate of hundreds of Mb/s.
        _CONGESTION_CONTROL: "reno",
    }
    before = {path: proxy.run("cat", f"/proc/sys/{path}").stdout.strip() for path in settings}
    proxy.sysctl(settings)
    try:
        yield
    finally:
        proxy.sysctl(before)


@contextmanager
def _from_six_addresses(site: Site) -> Iterator[Act]:
    lab, client = site.lab, site.lab.clients["victim"]
    first = client.address(ETHERNET, 6)
    further = [str(first + 256 * number) for number in range(1, 6)]
    url = f"http://{in_url(lab.origin_address(6))}/{endless(site.origin).name}"

    def fetch(address: str) -> Process:
        program = ("mptcp_lab.fetch", str(lab.proxy_address(6)), str(PORT), "--from", address, url)
        return client.start(f"fetch-{next(_serial)}", sys.executable, "-m", *program)

    def capped() -> bool:
        return sum(subflow.kind is not None for subflow in site.services.subflows()) == len(further) + 1

    @contextmanager
    def act() -> Iterator[None]:
        client.ip(f"address add {address}/64 dev {ETHERNET.interface} nodad" for address in further)
        fetching = [fetch(address) for address in further]
        try:
            wait_until(capped, "all connections capped", 30)
            yield
        finally:
            for address, process in zip(further, fetching, strict=True):
                client.run("ss", "-K", "-t", "src", f"[{address}]")
                process.stop()
            client.ip(f"address delete {address}/64 dev {ETHERNET.interface}" for address in further)

    with downloading(site, "victim", family=6):
        yield act


@contextmanager
def _announcing(site: Site) -> Iterator[Act]:
    client = site.lab.clients["victim"]
    announced = f"{client.address(ETHERNET, 4) + 100}"

    @contextmanager
    def act() -> Iterator[None]:
        client.ip([f"address add {announced}/24 dev {ETHERNET.interface}"])
        signal = f"dev {ETHERNET.interface} signal port {_ANNOUNCED_PORT}"
        client.ip([f"mptcp endpoint add {announced} id {_ENDPOINT_ID} {signal}"])
        try:
            wait_until(lambda: len(site.services.subflows()) == 3, "the proxy has opened a subflow", 30)
            yield
        finally:
            client.ip([f"mptcp endpoint delete id {_ENDPOINT_ID}"])
            client.ip([f"address delete {announced}/24 dev {ETHERNET.interface}"])

    with downloading(site, "victim"):
        yield act


ALL_BACKUPS: Final = Attack(
    "all-backups",
    "MP_PRIO(B=1) on both subflows",
    Adversary.CLIENT,
    "victim",
    _all_backups,
)

TOGGLING: Final = tuple(
    Attack(
        f"toggling-{milliseconds}-ms",
        f"MP_PRIO on Wi-Fi, B changed every {milliseconds} ms",
        Adversary.CLIENT,
        "victim",
        _toggling(milliseconds / 1000),
    )
    for milliseconds in (20, 50, 100)
)

HALF_CLOSED: Final = (
    Attack(
        "half-closed-limited",
        "DATA_FIN and FIN, then it goes on receiving",
        Adversary.CLIENT,
        "raw",
        raw_attack("half-close", [ETHERNET]),
        networks=LIMITED,
        lasting=True,
    ),
    Attack(
        "half-closed-capped",
        "DATA_FIN, and FIN on the capped path, then it goes on receiving over both",
        Adversary.CLIENT,
        "raw",
        raw_attack("half-close", _BOTH),
        lasting=True,
        least=LEAST_BY_PULSES,
    ),
)

FAST_CLOSE: Final = Attack(
    "fast-close-outside-window",
    "10 MP_FASTCLOSE per second with the right key, which the proxy's kernel drops",
    Adversary.CLIENT,
    "raw",
    raw_attack("fast-close", [ETHERNET]),
    networks=LIMITED,
    lasting=True,
)

REJOINING: Final = Attack(
    "rejoining",
    "a JOIN every half second, and FIN on that subflow when its socket is full",
    Adversary.CLIENT,
    "raw",
    raw_attack("rejoin", [ETHERNET]),
    networks=LIMITED,
    lasting=True,
)

CROWDING: Final = Attack(
    "crowding",
    "ten JOINs over Ethernet before that over Wi-Fi, where a path manager in user space permits it",
    Adversary.CLIENT,
    "raw",
    _crowding("crowd"),
    lasting=True,
    rate_before=FREE,
    grace=3.0,
)


def _steered(name: str, does: str, begin: Begin) -> Attack:
    """An attack by a client whose Ethernet path is held back."""
    return Attack(name, does, Adversary.CLIENT, "raw", begin, lasting=True, least=LEAST_BY_PULSES)


ALTERNATING: Final = _steered(
    "alternating-priority",
    "500 MP_PRIO per second on the capped path, B changed each time",
    raw_attack("alternate", _BOTH),
)

REUSING: Final = _steered(
    "reused-port",
    "five times per second MP_PRIO(B=1) and RST on a second capped path, and a JOIN from the same port",
    raw_attack("reuse", _BOTH),
)

CROWDING_LATE: Final = _steered(
    "crowding-late", "ten JOINs over Ethernet after that over Wi-Fi", _crowding("crowd-late")
)

CHURNING: Final = _steered(
    "short-subflows", "ten times per second RST on a second capped path, and a JOIN", raw_attack("churn", _BOTH)
)

STEERED: Final = (
    ALTERNATING,
    _steered("repeated-regular", "500 MP_PRIO(B=0) per second on the capped path", raw_attack("regular", _BOTH)),
    REUSING,
    CHURNING,
    CROWDING_LATE,
    _steered(
        "narrow-window", "a receive window of 32 kB on Wi-Fi, which is full all the time", raw_attack("narrow", _BOTH)
    ),
)

CLOSED_WINDOW: Final = _steered("closed-window", "a receive window of 0 on Wi-Fi", raw_attack("close", _BOTH))
"""Not in the catalogue: it frees the client, at the price of its Wi-Fi."""

SILENT: Final = _steered(
    "silent", "no request, so that MPTCP can be told nothing of the capped path", raw_attack("silent", _BOTH)
)
"""Not in the catalogue: HTB would hold it back alone."""

GUESSING: Final = _steered(
    "guessed-sequence",
    "200 MP_PRIO per second on the capped path, in TCP's receive window, with an acknowledgment that TCP does not take",
    raw_attack("guess", _BOTH),
)
"""Not in the catalogue: what a host off the path could send that has guessed a number."""

SIX_ADDRESSES: Final = Attack(
    "six-addresses",
    "six connections, each from another address of the same IPv6 prefix",
    Adversary.CLIENT,
    "victim",
    _from_six_addresses,
    grace=3.0,
)

ANNOUNCING: Final = Attack(
    "announcing",
    "ADD_ADDR with a port, so that the proxy opens a subflow",
    Adversary.CLIENT,
    "victim",
    _announcing,
    grace=3.0,
)
