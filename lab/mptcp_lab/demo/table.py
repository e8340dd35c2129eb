"""The results as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from mptcp_lab.demo.recording import MEGA

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_lab.demo.results import Run


def rates_table(runs: Iterable[Run]) -> Table:
    """Mb/s and MB per network and situation, on the wire; and per window where a situation has several."""
    table = Table(title="Bytes per network (on the wire), goodput, and time from JOIN to cap")
    table.add_column("situation")
    for network in ("Ethernet", "Wi-Fi"):
        table.add_column(f"{network}\nMb/s", justify="right")
        table.add_column(f"{network}\nMB", justify="right")
    table.add_column("goodput\nMb/s", justify="right")
    table.add_column("JOIN to cap\nms", justify="right")
    for run in runs:
        recording = run.recording
        cells = []
        for network in ("ethernet", "wifi"):
            cells.append(f"{recording.mbps(network, 0, recording.duration):.2f}")
            cells.append(f"{recording.bytes(network) / MEGA:.1f}")
        latency = recording.join_to_cap
        table.add_row(
            run.situation.name,
            *cells,
            f"{recording.result.goodput / MEGA:.2f}",
            "-" if latency is None else f"{latency * 1000:.1f}",
            style="bold",
        )
        for window in run.verdict.windows:
            label = f"  {window.label} ({window.start:.1f}-{window.end:.1f} s)"
            table.add_row(
                label, f"{window.mbps['ethernet']:.2f}", "", f"{window.mbps['wifi']:.2f}", "", "", "", style="dim"
            )
    return table


def expectations_table(runs: Iterable[Run]) -> Table:
    """What was expected of each situation, what was seen, and whether it held."""
    table = Table(title="Expectations")
    for heading in ("situation", "expected", "seen", "held"):
        table.add_column(heading)
    for run in runs:
        name = run.situation.name
        for expectation in run.verdict.expectations:
            held = "[green]yes[/]" if expectation.held else "[bold red]NO[/]"
            table.add_row(name, expectation.expected, expectation.seen, held)
            name = ""
        table.add_section()
    return table
