"""Three real proxies with a client each, which count as the same one, and a real server: a budget that they share.

All clients receive as fast as 10 Mb/s allow, until 30 MB are used on all proxies together. "Beyond the budget" is what
was carried until the last proxy had slowed its client, also in seconds of all rates together. "Age of bytes elsewhere"
is how long ago another proxy had counted the bytes that a proxy knows of; it is read 20 times per second.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.benchmarks.measure import PORT, CpuShare
from mptcp_lab.benchmarks.server_meter import HZ_AS_INSTALLED, ServerMeter
from mptcp_lab.fleet_network import fleet_network
from mptcp_lab.lab_errors import LabError
from mptcp_lab.percentiles import spread
from mptcp_lab.process import wait_until
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.topology import ETHERNET, ClientSpec, Topology, build
from mptcp_lab.traffic import program, start_pour
from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PROXIES: Final = 3
_AMOUNT: Final = 30_000_000
_LIMIT: Final = Rate(1_000_000)
_STAGE: Final = Stage(1.0, {RateKind.LIMIT: _LIMIT})
_BUDGET: Final = Budget(_AMOUNT, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, None, (_STAGE,))
_NETWORKS: Final = (WIFI_FIRST[0], replace(WIFI_FIRST[1], rates={}, budgets=(_BUDGET,)))
_TOPOLOGY: Final = Topology(clients=(ClientSpec(families=(4,), wifi=None),))
_LOOK_SECONDS: Final = 0.05
_MOST_SECONDS: Final = 60.0


class Seen(NamedTuple):
    """What all proxies say at a time: what each has carried, and what it knows of the others."""

    at: float
    own: tuple[int, ...]
    elsewhere: tuple[int, ...]
    slowed: tuple[bool, ...]


def measure(directory: Path) -> dict[str, float]:
    """The figures of one transfer on all proxies."""
    with ExitStack() as stack:
        labs = [stack.enter_context(build(_TOPOLOGY)) for _ in range(_PROXIES)]
        network = stack.enter_context(fleet_network([lab.proxy for lab in labs], directory, HZ_AS_INSTALLED))
        running = []
        for number, lab in enumerate(labs, 1):
            services = Services(lab.proxy, _NETWORKS, ports=(PORT,), daemon={"wait_for_clock": False})
            services.configure_section("fleet", **network.settings(f"proxy-{number}"))
            running.append(stack.enter_context(services))
        wait_until(lambda: all(map(_is_connected, running)), "all proxies connected to the server", 30)
        for lab in labs:
            start_pour(lab.proxy, PORT)
        meter, began = ServerMeter(network.server), time.monotonic()
        shares = [CpuShare(services.daemon.pid) for services in running if services.daemon is not None]
        for lab in labs:
            lab.client.start("drain", *program("drain", PORT, _MOST_SECONDS, lab.proxy_address(4)))
        seen = _watch(running)
        figures = meter.figures(time.monotonic() - began)
        daemons = {"the daemon with the most work, % of a core": max(share.percent() for share in shares)}
        return {**figures, **daemons, **of_budget(seen), **spread(ages(seen)).named("age of bytes elsewhere, s")}


def _is_connected(services: Services) -> bool:
    return services.status()["daemon"]["fleet"]["age"] is not None


def _watch(running: Sequence[Services]) -> list[Seen]:
    """What the proxies say until all have slowed the client. Raises LabError if they do not."""
    seen: list[Seen] = []
    deadline = time.monotonic() + _MOST_SECONDS
    while not (seen and all(seen[-1].slowed)):
        if time.monotonic() > deadline:
            raise LabError(f"not slowed on all proxies after {_MOST_SECONDS:g} s: {seen[-1]}")
        budgets = [next(iter(services.ask("budgets")["budgets"]), None) for services in running]
        shown = [(0, 0, False) if each is None else _shown(each) for each in budgets]
        own, elsewhere, slowed = zip(*shown, strict=True)
        seen.append(Seen(time.monotonic(), own, elsewhere, slowed))
        time.sleep(_LOOK_SECONDS)
    return seen


def _shown(budget: dict[str, int]) -> tuple[int, int, bool]:
    elsewhere = budget["used_elsewhere"]
    return budget["used"] - elsewhere, elsewhere, bool(budget["stages_reached"])


def of_budget(seen: Sequence[Seen]) -> dict[str, float]:
    """What was carried beyond the budget until the last proxy had slowed the client: in MB, and in seconds."""
    beyond = sum(seen[-1].own) - _AMOUNT
    return {
        "beyond the budget, MB": beyond / 1e6,
        "beyond the budget, s of the rate": beyond / (_PROXIES * ETHERNET.rate.bytes_per_second),
    }


def ages(seen: Sequence[Seen]) -> list[float]:
    """How long ago the others had carried what a proxy knows of them, at each look and for each proxy."""
    made: list[float] = []
    for place in range(len(seen[0].own)):
        others = [sum(each.own) - each.own[place] for each in seen]
        known = 0
        for number, each in enumerate(seen):
            if not 0 < each.elsewhere[place] < others[number]:
                continue
            while known < number and others[known + 1] <= each.elsewhere[place]:
                known += 1
            made.append(each.at - seen[known].at)
    return made
