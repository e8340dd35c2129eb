"""Live progress: a bar with the expected duration on a terminal, and a line per run everywhere."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mptcp_lab.scenario.judge import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console
    from rich.progress import TaskID

    from mptcp_lab.scenario.recording import Event
    from mptcp_lab.scenario.results import Run
    from mptcp_lab.scenario.scenario_schema import Scenario


class Display:
    """Shows the progress of a set of runs; `total` is the number of seconds that they are expected to take."""

    def __init__(self, console: Console, total: float) -> None:
        self._console = console
        self._total = total
        self._done = 0.0
        self._expected = 0.0
        self._bar: tuple[Progress, TaskID] | None = None

    @contextmanager
    def run(self, name: str, expected: float) -> Iterator[None]:
        """Show the progress of one run while the block runs; `expected` seconds long."""
        self._console.print(name, highlight=False, soft_wrap=True)
        self._expected = expected
        progress = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f} of about {task.total:.0f} s of measurements,"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rates]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with progress:
            self._bar = progress, progress.add_task(name, total=self._total, rates="")
            yield
        self._done += expected

    @property
    def is_live(self) -> bool:
        """Whether the bar is shown, on a terminal."""
        return self._console.is_terminal

    def progress(self, seconds: float, rates: Mapping[str, float]) -> None:
        """The run is `seconds` old, and `rates` (Mb/s) arrive over the links."""
        if self._bar is not None:
            progress, task = self._bar
            texts = [f"{link} {rate:4.1f} Mb/s" for link, rate in rates.items()]
            progress.update(task, completed=self._done + min(seconds, self._expected), rates="  ".join(texts))

    def event(self, event: Event) -> None:
        """Something happened."""
        self.line(f"  {event.at:.1f} s  {event.text}")

    def figures(self, scenario: Scenario, run: Run) -> None:
        """Show the figures of a run, or why it failed."""
        if run.error is not None:
            self.line(f"  [bold red]failed[/]: {run.error}")
            return
        texts = [f"{name} {number(value)} {scenario.report[name].unit}".rstrip() for name, value in run.figures.items()]
        self.line(f"  {run.seconds:.1f} s, idle {run.idle:.0%}: {', '.join(texts)}")

    def line(self, text: str) -> None:
        """Print a line that stays above the bar."""
        self._console.print(text, highlight=False, soft_wrap=True)
