"""A fleet of five proxies and their server under virtual time: totals are right, run after run.

`SIMULATION_SECONDS` and `SIMULATION_MUTATIONS` are as in `test_simulated_runs.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from fleet_mutations import FLEET_MUTATIONS, FOUND_BY, QUICK
from modelled_proxy import ModelSocket
from mutations import Mutation
from scenario import Result, Scenario
from shrinking import shrunk
from simulated_fleet import SimulatedFleet
from simulation_runs import report, run
from test_simulated_runs import ALL, MUTATION_SECONDS, SECONDS

SIZE: Final = 5
FLEET_SECONDS: Final = SECONDS / 10
CLIENTS: Final = tuple(range(6))
FEW: Final = [mutation for mutation in FLEET_MUTATIONS if ALL or mutation.name in QUICK]
RUN_SECONDS: Final = 300.0 if FLEET_SECONDS < 10 else 5400.0
SHORT: Final = Scenario(1, 120.0, CLIENTS, every=20.0, fleet=SIZE)


def simulated(seed: int, seconds: float) -> Result:
    return run(Scenario(seed, seconds, CLIENTS, fleet=SIZE))


def test_totals_of_a_fleet_are_right_in_every_run() -> None:
    until, seed, slowest = time.monotonic() + FLEET_SECONDS, 0, 0.0
    while seed == 0 or time.monotonic() + slowest < until:
        result = simulated(seed, RUN_SECONDS)
        if result.violation is not None:
            smallest = shrunk(result, run, SECONDS)
            pytest.fail(f"{report(result)}\n\nsmaller:\n{report(smallest)}")
        seed, slowest = seed + 1, max(slowest, result.took)
    print(f"{seed} runs of {RUN_SECONDS:g} s")


def test_run_of_a_fleet_is_the_same_in_every_process() -> None:
    command = [str(Path(__file__).parent / "simulate"), *SHORT.command.split()[1:]]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHON": sys.executable}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    result = run(SHORT)
    assert result.violation is None
    assert result.counts["connections"] > 5
    assert result.counts["faults"] > 1
    assert result.digest[:16] in output


@contextmanager
def quiet_fleet(size: int, directory: Path) -> Iterator[SimulatedFleet]:
    """One without faults and clients."""
    world = SimulatedFleet(Scenario(2, 240.0, (), (), begins=1_800_010_000.0, fleet=size), directory)
    try:
        yield world
    finally:
        world.close()


def carry(world: SimulatedFleet, number: int, rate: float, at: float, seconds: float) -> None:
    """A client receives from the proxy with this number at a rate in bytes/s, from a time on and for so long."""
    proxy = world.proxies[number]
    sockets: list[ModelSocket] = []
    world.timeline.after(at, lambda: sockets.append(proxy.open("10.1.0.2", rate)))
    world.timeline.after(at + seconds, lambda: proxy.end(sockets.pop()))


def test_rest_of_a_fleet_begins_long_after_a_session_between_two_checks(tmp_path: Path) -> None:
    with quiet_fleet(1, tmp_path) as world:
        carry(world, 0, 100e3, 60.0, 0.486)
        world.run()
        assert world.counts["rests"] == 2


def test_client_may_be_far_from_a_stage_where_a_lost_ledger_counts(tmp_path: Path) -> None:
    with quiet_fleet(3, tmp_path) as world:
        losing, knowing, unknowing = range(3)

        def lose() -> None:
            world.trouble_began()
            world.proxies[losing].stop()
            world.proxies[losing].lose_database()
            world.server.wipe(restarts=True)
            world.proxies[losing].start()
            world.trouble_ended()

        carry(world, losing, 1.2e6, 1.0, 120.0)
        carry(world, knowing, 20e3, 1.0, 120.0)
        world.timeline.after(125.0, lose)
        carry(world, knowing, 1.2e6, 164.0, 20.0)
        carry(world, unknowing, 1.2e6, 164.0, 20.0)
        world.run()


def test_each_defect_of_a_fleet_that_has_a_seed_or_is_found_soon_exists() -> None:
    assert {*FOUND_BY, *QUICK} <= {mutation.name for mutation in FLEET_MUTATIONS}


@pytest.mark.parametrize("mutation", FLEET_MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_defect_of_a_fleet_changes_what_the_product_has(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.break_(monkeypatch)


@pytest.mark.parametrize("mutation", FEW, ids=lambda mutation: mutation.name)
def test_defect_of_a_fleet_is_found_within_a_minute(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.break_(monkeypatch)
    until, seed = time.monotonic() + MUTATION_SECONDS, mutation.finds
    while simulated(seed, 5400.0).violation is None:
        assert time.monotonic() < until, "not found"
        seed = seed + 1 if seed > mutation.finds else 0
