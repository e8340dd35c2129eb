"""What budgets of many clients cost: memory, processor time of an observation and of a flush, and of a restart.

Each client has a budget, and carries something in each observation. `--spent` of them have reached its stage, so that
each has terms of its own. Memory is collected as in the daemon. Nothing of the kernel is in these figures.
"""

from __future__ import annotations

import resource
import tempfile
import time
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_throttle.model import AccessNetwork, Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.service import prefer_latency
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Carried, Ledger
from mptcp_throttled.policy.current_terms import CurrentTerms
from mptcp_throttled.vocabulary.terms import Facts, WallClock

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST: Final = IPv4Address("10.0.0.1")
_NOW: Final = 1_800_000_000.0
_AMOUNT: Final = 10**6
_STAGE: Final = Stage(1.0, {RateKind.CAP: Rate(256_000)})
_BUDGET: Final = Budget(_AMOUNT, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, 0.8, (_STAGE,))
_NETWORKS: Final = (
    AccessNetwork("wifi", (IPv4Network("192.168.0.0/16"),), 1, {}, Per.CLIENT),
    AccessNetwork("lte", (IPv4Network("10.0.0.0/8"),), 2, {}, Per.CLIENT, budgets=(_BUDGET,)),
)


def main() -> None:
    """Print the figures."""
    parser = command_line("client-budgets", __doc__)
    parser.add_argument("--clients", type=int, default=50_000, help="default: %(default)s")
    parser.add_argument("--spent", type=int, default=5000, help="of them; default: %(default)s")
    options = parser.parse_args()
    prefer_latency()
    before, seconds = _peak_mib(), dict[str, float]()

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        seconds[name] = time.process_time() - began

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.sqlite"
        history = History(path, "a boot")
        ledger = _ledger(history)
        for name in ("first observation", "observation"):
            carried = [
                Carried("lte", _FIRST + number, 2 * _AMOUNT if number < options.spent else 1000, 100, is_mptcp=True)
                for number in range(options.clients)
            ]
            with timed(name):
                ledger.count(carried, _NOW, 1.0)
        with timed("flush"):
            history.flush(_NOW, 0.0, {}, ledger.changes())
        history.close()
        with timed("restart"):
            ledger = _ledger(History(path, "a boot"))
        with timed("all terms"):
            terms = CurrentTerms()
            terms.update(_NETWORKS, 0.0, Facts((), WallClock(_NOW), ledger.spent))
        of_clients = dict(ledger.spent.get("lte", {}))
        of_clients.pop(next(iter(of_clients)))
        with timed("terms of one"):
            terms.update(_NETWORKS, 0.0, Facts((), WallClock(_NOW), {"lte": of_clients}))
    for name, taken in seconds.items():
        print(f"{name:20} {1000 * taken:8.0f} ms")
    print(f"{'memory':20} {_peak_mib() - before:8.0f} MiB more than {before:.0f}")
    write_json(options.json, {"seconds": seconds, "memory_more_mib": _peak_mib() - before})


def _ledger(history: History) -> Ledger:
    ledger = Ledger(history.budgets(), lambda: True)
    ledger.configure(_NETWORKS, None, _NOW)
    return ledger


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
