"""How much the history of many clients takes over a day: memory, file, and processor time of one flush.

A day passes in the database as fast as it can be written: each minute other clients carry something. A daemon flushes
every five seconds; here it is every minute, with as many clients at a time.
"""

from __future__ import annotations

import resource
import tempfile
import time
from ipaddress import IPv4Address
from pathlib import Path
from statistics import median
from typing import Final

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import KEPT, Account, Kind
from mptcp_throttled.vocabulary.traffic import Traffic

_FIRST: Final = IPv4Address("10.0.0.1")
_BEGAN: Final = 1_800_000_000
_MINUTE: Final = 60


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the figures after each quarter of the time."""
    parser = command_line("client-history", __doc__)
    parser.add_argument("--clients", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--active", type=int, default=5000, help="of them in each minute; default: %(default)s")
    parser.add_argument("--hours", type=int, default=24, help="default: %(default)s")
    options = parser.parse_args()
    before, rows = _peak_mib(), []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.sqlite"
        history = History(path, "a boot")
        durations: list[float] = []
        minutes = options.hours * 60
        traffic = Traffic(sent=10**6, ip_sent=10**6, closed=1)
        for minute in range(minutes):
            at = _BEGAN + minute * _MINUTE
            first = minute * options.active
            active = [str(_FIRST + (first + number) % options.clients) for number in range(options.active)]
            history.add(at, [(Account(Kind.CLIENT, name), traffic) for name in active])
            began = time.process_time()
            history.flush(at, float(minute * _MINUTE), {})
            durations.append(time.process_time() - began)
            if (minute + 1) % (minutes // 4) == 0:
                rows.append(
                    {
                        "hours": (minute + 1) / 60,
                        "file_mib": sum(file.stat().st_size for file in path.parent.iterdir()) / 2**20,
                        "peak_memory_mib": _peak_mib(),
                        "memory_more_mib": _peak_mib() - before,
                        "flush_ms": 1000 * median(durations),
                        "flush_longest_ms": 1000 * max(durations),
                    }
                )
        oldest = {resolution: history.read(Account(Kind.CLIENT, str(_FIRST)), resolution, 0)[:1] for resolution in KEPT}
        history.close()
    for name in rows[0]:
        print(f"{name:20}" + "".join(f" {row[name]:>10.1f}" for row in rows))
    for resolution, periods in oldest.items():
        kept = "nothing" if not periods else f"{(at - periods[0].start) / 3600:.1f} h"
        print(f"oldest of the first client, in steps of {resolution} s: {kept}")
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
