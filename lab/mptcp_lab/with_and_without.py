"""The picture of the README: what both networks carry without and with mptcp-throttle, from samples of the demo.

After `./run-demo --full`:
`.venv/bin/python -m mptcp_lab.with_and_without demo-results docs/pictures/with-and-without.svg`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.curve import MEGA
from mptcp_lab.program import run_program
from mptcp_lab.scenario.figures import busiest
from mptcp_lab.scenario.files import chosen
from mptcp_lab.scenario.results import directory_of, read_results, received_curves
from mptcp_lab.scenario.scenario_schema import Kernel
from mptcp_throttle.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mptcp_lab.curve import Curve
    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.results import Result

_PROGRAM: Final = "with-and-without"
PANELS: Final = {"mptcp-uncapped": "Without mptcp-throttle", "capped-1mbit": "With mptcp-throttle"}
"""The situations of the demo, and what each panel is called."""

_LABELS: Final = {"wifi": ("Wi-Fi, 56 Mb/s", 112), "ethernet": ("expensive network, 10 Mb/s", 233)}
"""The label of each link in the picture, and its height."""

_STEP_SECONDS: Final = 0.25
_WINDOW_SECONDS: Final = 0.5
_TOP_MBPS: Final = 60
_GRID_MBPS: Final = 20
_GRID_SECONDS: Final = 5

# In the picture's units.
_LEFTS: Final = (60, 500)
_TOP: Final = 60
_PLOT_WIDTH, _PLOT_HEIGHT = 370, 220
_LABEL_INDENT: Final = 60
_NOTE_Y: Final = 326
_FRAME: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" width="900" height="340" viewBox="0 0 900 340"
 role="img" aria-labelledby="title">
<title id="title">Rates of both networks over time: {summary}</title>
<style>
text {{ font: 13px system-ui, sans-serif; fill: #1f2328 }}
.back {{ fill: #fff; stroke: #d1d9e0 }} .heading {{ font-size: 16px; font-weight: 600 }} .note {{ fill: #59636e }}
.grid {{ stroke: #d1d9e0 }} .wifi {{ stroke: #0969da }} .ethernet {{ stroke: #bc4c00 }}
polyline {{ fill: none; stroke-width: 2.5 }} .in-wifi {{ fill: #0969da }} .in-ethernet {{ fill: #bc4c00 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #f0f6fc }} .back {{ fill: #0d1117; stroke: #3d444d }} .note {{ fill: #9198a1 }}
.grid {{ stroke: #3d444d }} .wifi {{ stroke: #58a6ff }} .ethernet {{ stroke: #ff9b57 }}
.in-wifi {{ fill: #58a6ff }} .in-ethernet {{ fill: #ff9b57 }}
}}
</style>
<rect class="back" x="0.5" y="0.5" width="899" height="339" rx="6"/>
{body}
</svg>
"""


def picture(pairs: Sequence[tuple[Experiment, Result]]) -> str:
    """The situations in PANELS with their results, as SVG. Raises UserError if one has no samples."""
    seconds = max(result.runs[0].seconds for _, result in pairs)
    lines = []
    summary = []
    for left, title, (experiment, result) in zip(_LEFTS, PANELS.values(), pairs, strict=True):
        ran, curves = result.runs[0].seconds, _curves(experiment, result)
        lines += [_text(left, 34, title, "heading"), *_axes(left, seconds)]
        volumes = {link: f"{(curve.at(ran) - curve.at(0)) / MEGA:.1f} MB" for link, curve in curves.items()}
        for link, (label, y) in _LABELS.items():
            lines.append(_line(link, curves[link], left, ran, seconds))
            lines.append(_text(left + _LABEL_INDENT, y, f"{label}: {volumes[link]}", f"in-{link}"))
        summary.append(f"{title.lower()}, the expensive one carries {volumes['ethernet']}")
    # The last panel's; both are of one run of the demo.
    measured = (
        f"One download, measured by ./run-demo --full at {result.commit} on Linux {result.release.partition('-')[0]}"
    )
    lines.append(_text(_LEFTS[0], _NOTE_Y, measured, "note"))
    return _FRAME.format(summary="; ".join(summary), body="\n".join(lines))


def _curves(experiment: Experiment, result: Result) -> dict[str, Curve]:
    """The bytes received at the end of each link that received most, by link. Raises UserError without samples."""
    ports = received_curves(result.directory)
    curves = {link: curve for link in _LABELS if (curve := busiest(experiment.scenario, ports, link)) is not None}
    if curves.keys() != _LABELS.keys():
        raise UserError(f"{result.directory}: has no samples of {' and '.join(_LABELS)}")
    return curves


def _line(link: str, curve: Curve, left: int, ran: float, seconds: float) -> str:
    times = (step * _STEP_SECONDS for step in range(int(ran / _STEP_SECONDS) + 1))
    rates = ((at, curve.mbps(max(at - _WINDOW_SECONDS, 0), at)) for at in times)
    points = " ".join(f"{_x(left, at, seconds):.0f},{_y(mbps):.1f}" for at, mbps in rates)
    return f'<polyline class="{link}" points="{points}"/>'


def _x(left: int, at: float, seconds: float) -> float:
    return left + _PLOT_WIDTH * at / seconds


def _y(mbps: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - min(mbps, _TOP_MBPS) / _TOP_MBPS)


def _axes(left: int, seconds: float) -> list[str]:
    lines = []
    for mbps in range(0, _TOP_MBPS + 1, _GRID_MBPS):
        y = _y(mbps)
        lines.append(f'<path class="grid" d="M{left} {y:.1f}h{_PLOT_WIDTH}"/>')
        lines.append(_text(left - 8, y + 4, f"{mbps}", "note", "end"))
    lines.append(_text(left - 8, _TOP - 12, "Mb/s", "note", "end"))
    for at in range(0, int(seconds) + 1, _GRID_SECONDS):
        unit = " s" if at else ""
        lines.append(_text(_x(left, at, seconds), _TOP + _PLOT_HEIGHT + 20, f"{at}{unit}", "note", "middle"))
    return lines


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'


def situations() -> list[Experiment]:
    """The situations in PANELS, as `./run-demo --full` runs them."""
    return [experiment for name in PANELS for experiment in chosen([f"demo/{name}:full"])]


def _result_of(experiment: Experiment, directory: Path) -> Result:
    return read_results(directory_of(directory, Kernel.NATIVE, experiment.name))[0]


def run() -> int:
    """Draw the picture. Raises UserError if results are missing, or the picture cannot be written."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Draw the rates without and with mptcp-throttle as SVG."
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="where ./run-demo --full has put its samples: its --output"
    )
    parser.add_argument("picture", type=Path, metavar="FILE", help="the SVG to write")
    options = parser.parse_args()
    pairs = [(experiment, _result_of(experiment, options.directory)) for experiment in situations()]
    try:
        options.picture.write_text(picture(pairs), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return 0


def main() -> int:
    """Run the command line."""
    return run_program(_PROGRAM, run)


if __name__ == "__main__":
    sys.exit(main())
