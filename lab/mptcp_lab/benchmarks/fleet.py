"""What it costs to share budgets and rates by a real server, and how exact it is, in four parts.

`proxies`: three real proxies in namespaces. `ledgers`: many without clients, on a simulated clock. `leases`: shared
rates. `memory`: what a client takes at the server, by the number of proxies that it has used.

"Beyond the budget" is what was carried until the last proxy knew that the budget was used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks import fleet_leases, fleet_ledgers, fleet_proxies
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.benchmarks.server_meter import HZ_AS_INSTALLED
from mptcp_lab.valkey_server import ValkeyServer
from mptcp_throttle.service import prefer_latency

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

_FIELDS: Final = (1, 2, 3, 10, 50)


def main() -> None:
    """Print the figures of each part."""
    parser = command_line("fleet", __doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="default: all")
    parser.add_argument("--clients", type=int, default=1_000_000, help="that the server knows; default: %(default)s")
    parser.add_argument("--proxies", type=int, default=50, help="an even number; default: %(default)s")
    parser.add_argument("--active", type=int, default=2000, help="clients of each; default: %(default)s")
    parser.add_argument(
        "--together", type=int, default=10, help="one of N clients is at two proxies; default: %(default)s"
    )
    parser.add_argument("--leases", type=int, nargs="+", default=[100, 1000, 10_000], help="default: 100 1000 10000")
    parser.add_argument(
        "--changing", type=int, default=10, help="one of N leases changes each second; default: %(default)s"
    )
    parser.add_argument("--seconds", type=int, default=48, help="of `ledgers` and of `leases`; default: %(default)s")
    options = parser.parse_args()
    if options.proxies < 2 or options.proxies % 2:
        parser.error(f"--proxies: {options.proxies}; allowed: an even number")
    if options.active * options.proxies > options.clients:
        parser.error(f"--active: {options.active}; allowed: up to {options.clients // options.proxies}")
    prefer_latency()
    printed: dict[str, Mapping[str, float]] = {}
    for part in options.parts:
        with tempfile.TemporaryDirectory() as directory:
            printed[part] = _PARTS[part](Path(directory), options)
        for name, value in printed[part].items():
            print(f"{part:8} {name:50} {value:12.3f}", flush=True)
    write_json(options.json, printed)


@contextmanager
def _server(directory: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(directory / "valkey", HZ_AS_INSTALLED)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _proxies(directory: Path, _options: Namespace) -> dict[str, float]:
    return fleet_proxies.measure(directory)


def _ledgers(directory: Path, options: Namespace) -> dict[str, float]:
    load = fleet_ledgers.Load(options.clients, options.proxies, options.active, options.together)
    with _server(directory) as server:
        return fleet_ledgers.measure(load, server, options.seconds)


def _leases(directory: Path, options: Namespace) -> dict[str, float]:
    figures = {}
    with _server(directory) as server:
        for number in options.leases:
            made = fleet_leases.measure(number, options.changing, server, options.seconds)
            figures.update({f"{number} leases, {name}": value for name, value in made.items()})
    return figures


def _memory(directory: Path, _options: Namespace) -> dict[str, float]:
    with _server(directory) as server:
        return fleet_ledgers.bytes_per_client(server, _FIELDS)


_PARTS: Final[Mapping[str, Callable[[Path, Namespace], dict[str, float]]]] = {
    "memory": _memory,
    "proxies": _proxies,
    "ledgers": _ledgers,
    "leases": _leases,
}

if __name__ == "__main__":
    main()
