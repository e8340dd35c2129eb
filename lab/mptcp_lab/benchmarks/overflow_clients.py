"""What the overflow of many clients costs the daemon: following them, and terms and decisions when caps change.

Each client has a subflow over each of two networks, as a snapshot. The kernel, and the reading of sockets, are not part
of these figures.

* `idle`: no capped subflow carries anything.
* `asking`: all clients ask for more, and nothing changes.
* `all change`: terms and decisions when the caps of all clients are raised at once.
* `one changes`: the same when that of one client changes.
"""

from __future__ import annotations

import time
from ipaddress import IPv4Address, IPv4Network
from statistics import median
from typing import Final

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import AccessNetwork, Connection, Endpoint, FourTuple, Per, RateKind, Subflow, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.observing.overflow import Overflow
from mptcp_throttled.policy.current_terms import CurrentTerms
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.shortfall import INTERVAL_SECONDS
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import Facts
from mptcp_throttled.vocabulary.traffic import SocketTotals

_FIRST: Final = {"wifi": IPv4Address("10.2.0.1"), "ethernet": IPv4Address("10.1.0.1")}
_PROXY: Final = Endpoint(IPv4Address("10.3.0.2"), 8080)
_NETWORKS: Final = (
    AccessNetwork("wifi", (IPv4Network("10.2.0.0/16"),), 1, {}, Per.CLIENT),
    AccessNetwork(
        "ethernet",
        (IPv4Network("10.1.0.0/16"),),
        2,
        {RateKind.CAP: Rate(1_000_000)},
        Per.CLIENT,
        overflow=Rate(10_000_000),
    ),
)
_UNSENT: Final = 32 << 10
_LOOKS: Final = 8


class _Clients:
    """The clients, whose sockets carry what a test says."""

    def __init__(self, number: int) -> None:
        connections = {Token(each): _connection(each) for each in range(number)}
        self.terms = CurrentTerms()
        self.table = DecisionTable()
        self.table.reconfigure(_NETWORKS, self.terms.update(_NETWORKS, 0.0, Facts()), paused=False)
        self.table.update(connections)
        self.overflow = Overflow()
        self._ends = [subflow.ends for each in connections.values() for subflow in each.subflows]
        self._sent = dict.fromkeys(_FIRST, 0)
        self._at = 0.0

    def look(self, **carried: int) -> float:
        """Processor seconds of an observation after the interval, in which sockets `carried` these rates (bits/s)."""
        self._at += INTERVAL_SECONDS
        for name, rate in carried.items():
            self._sent[name] += round(rate / 8 * INTERVAL_SECONDS)
        totals = {name: SocketTotals(sent) for name, sent in self._sent.items()}
        sockets = {
            ends: SocketState(0, None, totals["ethernet" if number % 2 else "wifi"], None, number, unsent=_UNSENT)
            for number, ends in enumerate(self._ends)
        }
        snapshot = Snapshot(
            networks=_NETWORKS,
            terms=self.terms.terms,
            connections=self.table.connections,
            decisions=self.table.decisions,
            features={FeatureName.STEERING: FeatureState()},
        )
        began = time.process_time()
        self.overflow.observe(self._at, sockets, snapshot)
        return time.process_time() - began

    def decide(self, facts: Facts) -> float:
        """Processor seconds until terms and decisions are those that the facts ask for."""
        began = time.process_time()
        self.table.reconfigure(_NETWORKS, self.terms.update(_NETWORKS, 0.0, facts), paused=False)
        return time.process_time() - began


def _connection(number: int) -> Connection:
    ends = (FourTuple(Endpoint(first + number, 40000), _PROXY) for first in _FIRST.values())
    return Connection(Token(number), 1, _PROXY.port, tuple(Subflow(each, 0, False, False, 0.0) for each in ends))


def main() -> None:
    """Print the figures."""
    parser = command_line("overflow-clients", __doc__)
    parser.add_argument("--clients", type=int, default=10_000, help="up to 60000; default: %(default)s")
    options = parser.parse_args()
    clients = _Clients(options.clients)
    idle = [clients.look(wifi=3_000_000, ethernet=0) for _ in range(_LOOKS)]
    rise = [clients.look(wifi=3_000_000, ethernet=1_000_000) for _ in range(_LOOKS)]
    shortfalls = dict(clients.overflow.shortfalls.get("ethernet", {}))
    seconds = {"idle": median(idle), "all change": clients.decide(Facts(shortfalls={"ethernet": shortfalls}))}
    asking = [clients.look(wifi=3_000_000, ethernet=1_000_000) for _ in rise]
    other = {**shortfalls, next(iter(shortfalls)): Rate(5_000_000)}
    seconds |= {"asking": median(asking), "one changes": clients.decide(Facts(shortfalls={"ethernet": other}))}
    for name, taken in seconds.items():
        print(f"{name:14} {1000 * taken:8.1f} ms")
    write_json(options.json, seconds)


if __name__ == "__main__":
    main()
