"""A proxy, its clients and its faults under virtual time: what must hold does, run after run.

`SIMULATION_SECONDS=600 .venv/bin/pytest tests/simulation` goes on for 10 minutes, and `SIMULATION_MUTATIONS=all` breaks
the product in all the ways of `mutations.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from mutations import MUTATIONS, QUICK, Mutation
from scenario import Scenario
from shrinking import shrunk
from simulation_runs import report, run
from world import WITH_MORE_RULES

SECONDS: Final = float(os.environ.get("SIMULATION_SECONDS", "20"))
ALL: Final = os.environ.get("SIMULATION_MUTATIONS") == "all"
MUTATION_SECONDS: Final = 60.0
"""Within which each defect is found."""

SHORT: Final = Scenario(3, seconds=900.0)
FEW: Final = [mutation for mutation in MUTATIONS if ALL or mutation.name in QUICK]


def test_what_must_hold_does_in_every_run() -> None:
    until, seed, slowest = time.monotonic() + SECONDS, 0, 0.0
    while seed == 0 or time.monotonic() + slowest < until:
        result = run(Scenario(seed))
        if result.violation is not None:
            smallest = shrunk(result, run, SECONDS)
            pytest.fail(f"{report(result)}\n\nsmaller:\n{report(smallest)}")
        seed, slowest = seed + 1, max(slowest, result.took)
    print(f"{seed} runs of {Scenario(0).seconds:g} s")


@pytest.mark.parametrize(("hash_seed", "scenario"), [("1", SHORT), ("2", replace(SHORT, seed=WITH_MORE_RULES))])
def test_run_is_the_same_in_every_process(hash_seed: str, scenario: Scenario) -> None:
    here = Path(__file__).parent
    command = [str(here / "simulate"), "--seed", str(scenario.seed), "--seconds", f"{scenario.seconds:g}"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHON": sys.executable}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    result = run(scenario)
    assert result.violation is None
    assert result.counts["steps"] > 50
    assert result.digest[:16] in output


def test_run_with_another_seed_is_another() -> None:
    assert run(SHORT).digest != run(replace(SHORT, seed=SHORT.seed + 1)).digest


@pytest.mark.parametrize("mutation", FEW, ids=lambda mutation: mutation.name)
def test_defect_is_found_within_a_minute(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.break_(monkeypatch)
    until, seed = time.monotonic() + MUTATION_SECONDS, mutation.finds
    while run(Scenario(seed)).violation is None:
        assert time.monotonic() < until, "not found"
        seed = seed + 1 if seed > mutation.finds else 0


def test_failure_is_made_smaller_and_repeats_by_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = next(each for each in MUTATIONS if each.name == "closed-subflows-count-twice")
    mutation.break_(monkeypatch)
    failed = run(Scenario(1))
    smallest = shrunk(failed, run, 5.0)
    assert len(smallest.scenario.clients) < len(failed.scenario.clients)
    assert smallest.scenario.ends is not None
    assert smallest.scenario.ends < failed.scenario.seconds
    assert smallest.scenario.faults == ()
    again = run(smallest.scenario)
    assert (again.violation, again.digest) == (smallest.violation, smallest.digest)
    assert "--faults none" in report(smallest)
