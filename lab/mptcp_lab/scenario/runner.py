"""Runs experiments: those for this kernel here, those for another one in one guest per kernel."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.lab_errors import LabError
from mptcp_lab.scenario.figures import measure, window_of
from mptcp_lab.scenario.files import DIRECTORY, scaled
from mptcp_lab.scenario.fingerprint import fingerprints
from mptcp_lab.scenario.kernel_choice import allow_congestion_controls, coupled_controls, needs
from mptcp_lab.scenario.plan import traced
from mptcp_lab.scenario.results import (
    Result,
    Run,
    directory_of,
    environment,
    subflow_totals,
    write_result,
    write_samples,
)
from mptcp_lab.scenario.scenario_schema import Kernel, Protocol
from mptcp_lab.scenario.stage import perform
from mptcp_throttle.model import Direction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mptcp_lab.scenario.display import Display
    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.scenario_schema import FlowSection, Scenario
    from mptcp_lab.watched_page import Watch

_GUEST: Final = Path(__file__).parents[2] / "guest" / "run"
_MAX_OFFSET: Final = 0.05
_GUEST_OVERHEAD_SECONDS: Final = 60.0
_GUEST_BOOT_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """How to run: repeats of each experiment (None: as the scenario says), seed, time scale, where results go.

    `watch` is the page that shows the services while they run here.
    """

    repeat: int | None
    seed: int
    time_scale: float
    out: Path
    watch: Watch | None = None

    def repeats(self, scenario: Scenario) -> int:
        """How often the scenario is run."""
        return self.repeat or scenario.repeat


def expected_seconds(scenario: Scenario) -> float:
    """An estimate of what one run takes: its duration, that of its videos, or of its files through the links."""
    limited = [flow for flow in scenario.flows.values() if flow.is_limited]
    if not limited:
        return scenario.duration
    return min(scenario.duration, max(_transfer_seconds(scenario, flow) for flow in limited))


def _transfer_seconds(scenario: Scenario, flow: FlowSection) -> float:
    if flow.video is not None:
        return flow.start + flow.video
    endpoints = scenario.hosts[flow.receiver].endpoints
    rates = {
        link: scenario.links[link].rate
        for port, link in scenario.ports(flow.receiver)
        if scenario.links[link].rate is not None
        # TCP uses one link, and MPTCP no backup.
        if link == flow.over or (flow.protocol is Protocol.MPTCP and "backup" not in endpoints.get(port.interface, ()))
    }
    for network in () if scenario.throttle is None else scenario.throttle.networks.values():
        bounds = [rate for kind, rate in network.rates.items() if kind.direction is Direction.DOWNLINK]
        if network.link in rates and bounds:
            rates[network.link] = min(filter(None, (*bounds, rates[network.link])))
    total = sum(rate.bits_per_second for rate in rates.values() if rate is not None)
    return flow.start + (flow.size or 0) * 8 / total if total else 1.0


def flow_starts(experiment: Experiment, scenario: Scenario, seed: int, number: int) -> dict[str, float]:
    """When each flow of run `number` begins: up to 50 ms late, so that repeats differ; the same with the same seed."""
    choice = random.Random(f"{seed} {experiment.name} {number}")  # noqa: S311
    return {name: flow.start + choice.uniform(0, _MAX_OFFSET) for name, flow in scenario.flows.items()}


def run_all(
    planned: Sequence[tuple[Experiment, Kernel]], options: Options, display: Display, inside: Kernel | None
) -> list[Path]:
    """Run all; the directories of the results. `inside`: this is the guest with that kernel, so all run here."""
    groups: dict[Kernel, list[Experiment]] = defaultdict(list)
    for experiment, kernel in planned:
        groups[kernel].append(experiment)
    for kernel, experiments in groups.items():
        for experiment in experiments:
            shutil.rmtree(directory_of(options.out, kernel, experiment.name), ignore_errors=True)
        if kernel is Kernel.NATIVE or kernel is inside:
            _run_here(experiments, kernel, options, display)
        else:
            _run_in_guest(experiments, kernel, options)
    return [directory_of(options.out, kernel, experiment.name) for experiment, kernel in planned]


def _run_here(experiments: Iterable[Experiment], kernel: Kernel, options: Options, display: Display) -> None:
    for experiment in experiments:
        scenario = scaled(experiment.scenario, options.time_scale)
        directory = directory_of(options.out, kernel, experiment.name)
        directory.mkdir(parents=True, exist_ok=True)
        if kernel is not Kernel.NATIVE:
            allow_congestion_controls({*needs(scenario)} - {"netem", *coupled_controls(scenario)})
        count = options.repeats(scenario)
        runs = []
        for number in range(1, count + 1):
            with display.run(f"{experiment.name} on {kernel}, run {number} of {count}", expected_seconds(scenario)):
                run = _run_once(experiment, scenario, options, number, directory, display)
            display.figures(scenario, run)
            runs.append(run)
        write_result(
            Result(
                name=experiment.name,
                file=_stored(experiment.file),
                kernel=kernel,
                time_scale=options.time_scale,
                seed=options.seed,
                runs=runs,
                directory=directory,
                fingerprints=fingerprints(experiment.scenario),
                **environment(),
            )
        )


def _stored(file: Path) -> str:
    return str(file.relative_to(DIRECTORY) if file.is_relative_to(DIRECTORY) else file)


def _run_once(
    experiment: Experiment, scenario: Scenario, options: Options, number: int, directory: Path, display: Display
) -> Run:
    scenario = traced(scenario, number)
    starts = flow_starts(experiment, scenario, options.seed, number)
    try:
        recording = perform(scenario, starts, display, directory / f"logs-{number}", options.watch)
    except LabError as error:
        return Run({}, 0.0, 0.0, (), str(error))
    write_samples(directory, number, scenario, recording)
    windows = {label: window_of(recording, part) for label, part in scenario.windows.items()}
    return Run(
        figures=measure(scenario, recording),
        seconds=recording.duration,
        idle=recording.idle,
        events=recording.events,
        windows={label: window for label, window in windows.items() if window is not None},
        caps=[(change.at, change.network, change.mbps) for change in recording.caps],
        subflows=subflow_totals(scenario, recording.subflows),
    )


def _run_in_guest(experiments: Sequence[Experiment], kernel: Kernel, options: Options) -> None:
    if not _GUEST.exists():
        raise LabError(f"{kernel}: {_GUEST} does not exist")
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    limit = _GUEST_BOOT_SECONDS + sum(
        options.repeats(e.scenario) * (e.scenario.duration * options.time_scale + _GUEST_OVERHEAD_SECONDS)
        for e in experiments
    )
    command: list[str | Path] = [
        *(_GUEST, "--kernel", kernel, "--timeout", f"{limit:.0f}", "--share", out, "--"),
        *(Path(sys.executable).parent / "mptcp-lab", "run", "--inside", kernel, "--out", out),
        *("--seed", str(options.seed), "--time-scale", f"{options.time_scale:g}"),
        *(() if options.repeat is None else ("--repeat", str(options.repeat))),
        *(experiment.argument for experiment in experiments),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            raise
    if status != 0:
        raise LabError(f"{kernel}: the guest ended with status {status}")
