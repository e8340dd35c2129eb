"""What leases of shared rates cost: processor time of a proxy's threads, and of a real server.

Each lease is that of a client which asks for more than its floor at two proxies. Some clients ask for another rate each
second. Figures are those of one of the proxies, or of the server.
"""

from __future__ import annotations

import time
from ipaddress import IPv4Address
from typing import Final

from mptcp_lab.benchmarks.server_meter import ServerMeter
from mptcp_lab.lab_errors import LabError
from mptcp_lab.valkey_server import ValkeyServer
from mptcp_throttle.model import Direction
from mptcp_throttle.valkey.connect import connect
from mptcp_throttle.valkey.server import Credentials, ServerUrl
from mptcp_throttled.fleet.lease_book import LeaseBook
from mptcp_throttled.fleet.lease_server import LeaseServer
from mptcp_throttled.fleet.lease_thread import LeaseThread
from mptcp_throttled.fleet.members import Members
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals_server import ANSWER_SECONDS
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey

_FIRST: Final = IPv4Address("10.0.0.1")
_SECRET: Final = b"of this benchmark"
_JOIN_SECONDS: Final = 90.0
_ROUND_SECONDS: Final = 1.0
_FOLLOWS: Final = 4
"""How often it looks in a second, as the thread that follows time does."""
_SETTLE_ROUNDS: Final = 6
"""Until all leases are as asked for: from then on, only clients that ask for another rate cost anything."""


class _Proxy:
    """A proxy that asks for the rates of `clients`; for one of `changing` it asks for another rate in each round.

    `used` is the processor time of its threads, in seconds.
    """

    def __init__(self, name: str, clients: int, changing: int, url: ServerUrl) -> None:
        self._changing = changing
        self._keys = [RateKey("lte", _FIRST + number, Direction.DOWNLINK) for number in range(clients)]
        self._book = LeaseBook(Members(name, time.monotonic()), {}, lambda: self._book.held, _nothing, time.monotonic())

        def server(attempt: int) -> LeaseServer:
            return LeaseServer(connect(url, Credentials(), ANSWER_SECONDS, attempt), name, _SECRET)

        self._thread = LeaseThread(self._book, server, lambda: True, lambda: self._book.kept() and None, Refusals())
        self._rounds = 0
        self.used = 0.0

    @property
    def leases(self) -> int:
        """The number of leases that it holds."""
        return len(self._book.held.leased)

    def round(self) -> None:
        """What its threads do in a second."""
        self._rounds += 1
        wanted = {
            key: WHOLE // 2 + (self._rounds % 100) * WHOLE // 1000 if place % self._changing == 0 else WHOLE // 2
            for place, key in enumerate(self._keys)
        }
        self._book.want(wanted, time.monotonic())
        began = time.thread_time()
        self._thread.step(time.monotonic())
        for _ in range(_FOLLOWS):
            self._book.follow(time.monotonic())
        self.used += time.thread_time() - began


def measure(clients: int, changing: int, server: ValkeyServer, seconds: int) -> dict[str, float]:
    """The figures with `clients` leases, of which one of `changing` changes each second, over `seconds`."""
    names = "proxy-1", "proxy-2"
    proxies = [_Proxy(name, clients, changing, ServerUrl.parse(server.url_of(name))) for name in names]
    deadline = time.monotonic() + _JOIN_SECONDS
    while not all(proxy.leases >= clients for proxy in proxies):
        if time.monotonic() > deadline:
            raise LabError(f"{[proxy.leases for proxy in proxies]} leases after {_JOIN_SECONDS:g} s, not {clients}")
        _second(proxies)
    for _ in range(_SETTLE_ROUNDS):
        _second(proxies)
    meter = ServerMeter(server)
    proxies[0].used = 0.0
    began = time.monotonic()
    for _ in range(seconds):
        _second(proxies)
    taken = time.monotonic() - began
    figures = {"a proxy, % of a core": 100 * proxies[0].used / taken, **meter.figures(taken)}
    server.cli("FLUSHALL")
    return figures


def _second(proxies: list[_Proxy]) -> None:
    began = time.monotonic()
    for proxy in proxies:
        proxy.round()
    time.sleep(max(began + _ROUND_SECONDS - time.monotonic(), 0.0))


def _nothing() -> None:
    pass
