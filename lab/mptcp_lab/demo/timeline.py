"""The results as a picture: both networks' rates over time, one panel per situation."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from mptcp_lab.demo.recording import Recording
    from mptcp_lab.demo.results import Run

_STYLES: Final = {"ethernet": ("Ethernet", "tab:orange"), "wifi": ("Wi-Fi", "tab:blue")}
_COLUMNS: Final = 2
_PANEL_INCHES: Final = (8.0, 3.4)
_WINDOW_SECONDS: Final = 0.5
_STEP_SECONDS: Final = 0.1


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write the picture to a PNG file."""
    columns = min(_COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    figure = Figure(figsize=(columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for run, panel in zip(runs, panels, strict=False):
        _draw_panel(run, panel)
    for panel in list(panels)[len(runs) :]:
        panel.set_axis_off()
    figure.savefig(path, dpi=110)


def _draw_panel(run: Run, panel: Axes) -> None:
    recording = run.recording
    steps = int(recording.duration / _STEP_SECONDS)
    times = [step * _STEP_SECONDS for step in range(1, steps + 1)]
    for network, (label, colour) in _STYLES.items():
        rates = [recording.mbps(network, max(at - _WINDOW_SECONDS, 0.0), at) for at in times]
        panel.plot(times, rates, color=colour, label=label, linewidth=1.2)
    _draw_cap(recording, panel)
    top = panel.get_ylim()[1]
    for event in recording.events:
        panel.axvline(event.at, color="grey", linewidth=0.8, linestyle=":")
        caption = panel.text(event.at, top, f" {event.text} ", rotation=90, fontsize=7, va="top", ha="left")
        caption.set_bbox({"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1})
    panel.set_title(f"{run.situation.name}: {run.situation.title}", loc="left", fontsize=10)
    panel.set(
        xlabel="seconds since the download began",
        ylabel="Mb/s",
        xlim=(0, recording.duration),
        ylim=(0, top),
    )
    panel.grid(alpha=0.3)
    panel.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=8)


def _draw_cap(recording: Recording, panel: Axes) -> None:
    steps = [*recording.cap_steps, (recording.duration, None)]
    label = "cap on Ethernet"
    for (start, cap), (end, _) in pairwise(steps):
        if cap is not None:
            panel.hlines(cap, start, end, color="tab:red", linestyle="--", linewidth=1.0, label=label)
            label = "_"  # one entry in the legend is enough; matplotlib leaves out labels that begin so
