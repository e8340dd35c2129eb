"""Runs of the simulation, one seed after another, from the command line: `tests/simulation/simulate --help`."""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest
from comparing import compare
from fleet_mutations import FLEET_MUTATIONS
from habits import DAY
from mutations import MUTATIONS
from scenario import Result, Scenario
from shrinking import shrunk
from simulated_fleet import SimulatedFleet
from timeline import BOOT
from violation import Violation
from world import World

from mptcp_throttle.model import FourTuple

_MEMORY: Final = Path("/dev/shm")  # noqa: S108
_DAYS: Final = 365
_YEAR_SECONDS: Final = _DAYS * DAY
_SHRINK_SECONDS: Final = 60.0
_FEW: Final = 4096
_CLIENTS, _CLIENTS_OF_FLEET = 200, 6
_FAULT_SECONDS, _FAULT_OF_FLEET_SECONDS = 6 * 3600.0, 2 * 3600.0


@contextmanager
def empty_directory() -> Iterator[Path]:
    """One in memory, if there is such a place: a run writes much, and keeps nothing."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)


def run(scenario: Scenario) -> Result:
    """Run a scenario in a directory of its own."""
    with empty_directory() as directory, _without_logs(), _with_rare_collections(), _with_few_objects():
        return _simulate(scenario, directory)


@contextmanager
def _without_logs() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("mptcp-throttled", "mptcp-sniffer")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _with_rare_collections() -> Iterator[None]:
    """What a step leaves behind is garbage at once, and seldom in cycles."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _with_few_objects() -> Iterator[None]:
    """Equal four-tuples of services and modelled host are one object, which tables find without a comparison."""
    make = FourTuple.of

    @lru_cache(_FEW)
    def first_of_all(made: FourTuple) -> FourTuple:
        return made

    @lru_cache(_FEW)
    def of(client: str | bytes, client_port: int, proxy: str | bytes, proxy_port: int) -> FourTuple:
        return first_of_all(make(client, client_port, proxy, proxy_port))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FourTuple, "of", of)
        yield


def _simulate(scenario: Scenario, directory: Path) -> Result:
    began = time.process_time()
    world = SimulatedFleet(scenario, directory) if scenario.fleet else World(scenario, directory)
    result = Result(
        scenario, faults=[f for f in world.faults if scenario.faults is None or f.number in scenario.faults]
    )
    try:
        world.run()
    except Exception as error:
        if not isinstance(error, Violation) and not _is_of_product(error):
            raise
        result.violation = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
    finally:
        world.close()
    result.at = world.clock.now - BOOT
    result.digest, result.counts, result.took = world.digest, world.counts, time.process_time() - began
    return result


def _is_of_product(error: Exception) -> bool:
    """Whether the product has raised it, and not the simulation."""
    trace = error.__traceback__
    file = ""
    while trace is not None:
        file, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return "/tests/simulation/" not in file


def report(result: Result) -> str:
    """A failure in some lines: what did not hold, when, and the command that repeats it."""
    lines = [f"after {result.at:.3f} s: {result.violation}", f"again: {result.scenario.command}"]
    lines += [f"fault {fault}" for fault in result.faults if fault.at <= result.at][-10:]
    return "\n".join(lines)


def year(seed: int, clients: int, parts: int, days: float, fleet: int) -> list[Scenario]:
    """A year of so many clients as parts that follow each other, each with its own state.

    Of all parts together only so many days, at their beginnings.
    """
    began, seconds = datetime.fromisoformat("2027-01-01T00:00:00+00:00").timestamp(), _YEAR_SECONDS / parts
    every = _FAULT_OF_FLEET_SECONDS if fleet else _FAULT_SECONDS
    ends, everybody = days * DAY / parts, tuple(range(clients))
    return [
        Scenario(seed + part, seconds, everybody, None, every, 1.0, began + part * seconds, ends, fleet)
        for part in range(parts)
    ]


def pace(results: Sequence[Result], seconds: float) -> str:
    """What parts of the year have taken, in all and at that pace, also if nothing else had run on the machine."""
    days = sum(result.at for result in results) / DAY
    connections = sum(result.counts["connections"] for result in results)
    used = sum(result.took for result in results)
    return (
        f"{days:.1f} days with {connections} connections in {seconds / 60:.1f} min: a year in"
        f" {seconds * _DAYS / days / 60:.1f} min; by the {used:.1f} s of processor time,"
        f" in {used * _DAYS / days / len(results) / 60:.1f} min"
    )


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(prog="tests/simulation/simulate", description=__doc__)
    usual = Scenario(0)
    made.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    made.add_argument("--runs", type=int, default=1, help="how many seeds, one after another (1)")
    made.add_argument("--jobs", type=int, default=1, help="how many processes (1)")
    made.add_argument("--seconds", type=float, default=usual.seconds, help="of virtual time, of each run (5400)")
    made.add_argument("--clients", type=_numbers, default=usual.clients, help="a number of clients, or a list of them")
    made.add_argument("--faults", type=_faults, default=None, help="the numbers of the only faults, or none")
    made.add_argument("--every", type=float, default=usual.every, help="seconds between two faults, on average (100)")
    made.add_argument(
        "--busy", type=float, default=usual.busy, help="how many times as busy as usual clients are (144)"
    )
    made.add_argument("--begins", type=float, default=None, help="when the run begins, in seconds since the epoch")
    made.add_argument("--ends", type=float, default=None, help="end after so many of the seconds")
    made.add_argument("--year", action="store_true", help="a year of 200 clients, in as many parts as there are jobs")
    made.add_argument("--fleet", type=int, default=0, help="so many proxies that share budgets, in a year 6 clients")
    made.add_argument("--days", type=float, default=_DAYS, help="only so many of the days of the year (365)")
    made.add_argument("--than", type=Path, default=None, help="compare the speed with that of another checkout")
    made.add_argument("--mutation", default=None, help="with this defect in the product, by its name in mutations.py")
    made.add_argument("--shrink", action="store_true", help="make the scenario of a failure smaller")
    return made


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(",") if part)
    return numbers if "," in text else tuple(range(numbers[0]))


def _faults(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(map(int, text.split(",")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; 1 if anything did not hold."""
    options = parser().parse_args(arguments)
    scenarios = [
        Scenario(
            options.seed + number,
            options.seconds,
            options.clients,
            options.faults,
            options.every,
            options.busy,
            options.begins,
            options.ends,
            options.fleet,
        )
        for number in range(options.runs)
    ]
    if options.year:
        clients = _CLIENTS_OF_FLEET if options.fleet else _CLIENTS
        scenarios = list(
            itertools.chain.from_iterable(
                year(options.seed + n, clients, options.jobs, options.days, options.fleet) for n in range(options.runs)
            )
        )
    if options.than is not None:
        print(compare(scenarios[0], options.than.resolve()))
        return 0
    began, failures = time.monotonic(), 0
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(options.jobs) as pool:
        if options.mutation is not None:
            known = (*MUTATIONS, *FLEET_MUTATIONS)
            next(each for each in known if each.name == options.mutation).break_(patch)
        results = []
        for result in map(run, scenarios) if options.jobs == 1 else pool.map(run, scenarios):
            results.append(result)
            counts = ", ".join(f"{number} {name}" for name, number in result.counts.items())
            print(
                f"seed {result.scenario.seed}: {result.at:.0f} s in {result.took:.1f} s: {counts}; {result.digest[:16]}"
            )
            if result.violation is None:
                continue
            failures += 1
            print(report(result))
            if options.shrink:
                print(f"shrunk:\n{report(shrunk(result, run, _SHRINK_SECONDS))}")
    seconds = time.monotonic() - began
    if options.year:
        print(pace(results, seconds))
    print(f"{len(scenarios)} runs in {seconds:.1f} s, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
