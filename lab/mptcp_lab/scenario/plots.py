"""Results as pictures: rates of links, windows of subflows and what these carried, and figures beside the seed's."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

from mptcp_lab.scenario.figures import busiest
from mptcp_lab.scenario.judge import compare
from mptcp_lab.scenario.results import received_curves
from mptcp_lab.scenario.subflow_curves import sent_subflows, split_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from mptcp_lab.curve import Curve
    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.judge import Comparison
    from mptcp_lab.scenario.results import Result, Run
    from mptcp_lab.scenario.scenario_schema import Scenario

_STEPS: Final = 400
_LEAST_WINDOW: Final = 0.2
_COLUMNS: Final = 2
_PANEL_INCHES: Final = (9.0, 3.6)
_DPI: Final = 100


def draw_time_lines(pairs: Sequence[tuple[Experiment, Result]], path: Path) -> None:
    """The first run of each, one panel beside the other; those without samples are left out."""
    drawn = [(e.scenario, result, curves) for e, result in pairs if (curves := received_curves(result.directory))]
    if not drawn:
        return
    columns = min(_COLUMNS, len(drawn))
    lines = -(-len(drawn) // columns)
    figure = Figure(figsize=(columns * _PANEL_INCHES[0], lines * _PANEL_INCHES[1]), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for panel, (scenario, result, curves) in zip(panels, drawn, strict=False):
        _draw_time_line(panel, scenario, result, curves)
    for panel in panels[len(drawn) :]:
        panel.set_axis_off()
    figure.savefig(path, dpi=_DPI)


def _draw_time_line(axes: Axes, scenario: Scenario, result: Result, curves: Sequence[tuple[str, Curve]]) -> None:
    run = result.runs[0]
    window = max(_LEAST_WINDOW, 5 * scenario.interval)
    times = [run.seconds * step / _STEPS for step in range(1, _STEPS + 1)]
    limited = [name for name, link in scenario.links.items() if link.rate is not None]
    for link in limited or scenario.links:
        curve = busiest(scenario, curves, link)
        if curve is not None:
            axes.plot(times, [curve.mbps(max(at - window, 0), at) for at in times], label=link, linewidth=1.1)
    _draw_caps(axes, run)
    _finish_time_line(axes, run, "Mb/s")
    axes.set_title(_title(scenario, result), loc="left", fontsize=9)


def _finish_time_line(axes: Axes, run: Run, unit: str) -> None:
    top = axes.get_ylim()[1]
    for event in run.events:
        axes.axvline(event.at, color="grey", linewidth=0.8, linestyle=":")
        caption = axes.text(event.at, top, f" {event.text} ", rotation=90, fontsize=7, va="top", ha="left")
        caption.set_bbox({"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1})
    axes.set(xlabel="seconds", ylabel=unit, xlim=(0, run.seconds), ylim=(0, top))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _title(scenario: Scenario, result: Result) -> str:
    return f"{result.name}: {scenario.title} ({result.release})"


def _draw_caps(axes: Axes, run: Run) -> None:
    """The cap of each network, as a dashed line."""
    for network in dict.fromkeys(network for _, network, _ in run.caps):
        steps = [(at, mbps) for at, name, mbps in run.caps if name == network]
        label = f"cap on {network}"
        for (start, mbps), (end, _) in pairwise([*steps, (run.seconds, None)]):
            if mbps is not None:
                axes.hlines(mbps, start, end, color="tab:red", linestyle="--", linewidth=1.0, label=label)
                label = "_"  # one entry in the legend is enough; matplotlib leaves out labels that begin so


def draw_windows(experiment: Experiment, result: Result, path: Path) -> None:
    """Congestion windows of the senders in the first run, and below them rates of payload; nothing without samples."""
    subflows = sent_subflows(result.directory)
    if not subflows:
        return
    run, scenario = result.runs[0], experiment.scenario
    window = max(_LEAST_WINDOW, 5 * scenario.interval)
    figure = Figure(figsize=(1.3 * _PANEL_INCHES[0], 2 * _PANEL_INCHES[1]), layout="constrained")
    windows, rates = figure.subplots(2, 1)
    for subflow in subflows:
        times = [at for at, _ in subflow.windows]
        windows.plot(times, [packets for _, packets in subflow.windows], label=subflow.name, linewidth=1.1)
        rates.plot(
            times, [subflow.acked.mbps(max(at - window, 0), at) for at in times], label=subflow.name, linewidth=1.1
        )
    _finish_time_line(windows, run, "congestion window, packets")
    _finish_time_line(rates, run, "acknowledged, Mb/s")
    windows.set_title(_title(scenario, result), loc="left", fontsize=9)
    figure.savefig(path, dpi=_DPI)


def draw_split(result: Result, path: Path) -> None:
    """What arrived over each subflow: a panel of bars for each run; nothing if nothing arrived over TCP."""
    splits = [(number, split) for number, run in enumerate(result.runs, 1) if (split := split_of(run))]
    if not splits:
        return
    bars = max(len(split) for _, split in splits)
    size = _PANEL_INCHES[0], len(splits) * (0.4 * bars + 1)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(splits), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (number, split) in zip(panels, splits, strict=True):
        drawn = axes.barh([subflow.name for subflow in split], [subflow.mbps for subflow in split], height=0.6)
        axes.bar_label(drawn, [f"{subflow.packets} packets" for subflow in split], padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.set_title(f"run {number}", loc="left", fontsize=9)
        axes.tick_params(axis="y", labelsize=8)
        axes.grid(alpha=0.3, axis="x")
    panels[-1].set_xlabel("payload that arrived, Mb/s")
    figure.suptitle(result.name, fontsize=10)
    figure.savefig(path, dpi=_DPI)


def draw_bars(pairs: Sequence[tuple[Experiment, Result]], path: Path) -> Path | None:
    """All figures of a scenario that have a unit, by variant, beside the seed's; None if there is nothing to draw."""
    by_figure: dict[tuple[str, str], list[tuple[str, Comparison]]] = defaultdict(list)
    for experiment, result in pairs:
        for row in compare(experiment.scenario, result.statistics):
            if row.ours is not None and row.unit:
                by_figure[row.figure, row.unit].append((experiment.variant or "", row))
    if not by_figure:
        return None
    figure = Figure(figsize=(max(4.0, 0.7 * len(pairs) + 2) * len(by_figure), 3.4), layout="constrained")
    panels = figure.subplots(1, len(by_figure), squeeze=False)[0]
    for axes, ((name, unit), rows) in zip(panels, by_figure.items(), strict=True):
        _draw_panel(axes, rows)
        axes.set_title(name, loc="left", fontsize=9)
        axes.set_ylabel(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.suptitle(pairs[0][0].family, fontsize=10)
    figure.savefig(path, dpi=_DPI)
    return path


def _draw_panel(axes: Axes, rows: Sequence[tuple[str, Comparison]]) -> None:
    places = range(len(rows))
    ours = [row.ours for _, row in rows]
    bars = [s.median if s is not None else 0.0 for s in ours]
    errors = [
        [bar - (s.least if s else bar) for bar, s in zip(bars, ours, strict=True)],
        [(s.most if s else bar) - bar for bar, s in zip(bars, ours, strict=True)],
    ]
    width = 0.4
    axes.bar([p - width / 2 for p in places], bars, width, yerr=errors, label="ours", color="tab:blue")
    with_seed = [(p + width / 2, row.seed) for p, (_, row) in zip(places, rows, strict=True) if row.seed is not None]
    if with_seed:
        axes.bar([p for p, _ in with_seed], [s for _, s in with_seed], width, label="seed", color="tab:grey")
    axes.set_xticks(list(places), [variant for variant, _ in rows], rotation=45, ha="right", fontsize=8)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=7)
