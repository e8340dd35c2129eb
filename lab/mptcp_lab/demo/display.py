"""Live progress: a bar with the rates of both networks on a terminal, a line per event elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from mptcp_lab.demo.recording import MEGA

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from rich.console import Console

    from mptcp_lab.demo.recording import Event

_NAMES: Final = {"ethernet": "Ethernet", "wifi": "Wi-Fi"}


class Display:
    """Shows how one download gets on, while its `with` block runs."""

    def __init__(self, console: Console, name: str, size: int) -> None:
        self._console = console
        self._name = name
        self._progress = Progress(
            TextColumn("{task.description:<15}"),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TextColumn("{task.fields[rates]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(name, total=size, rates="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def progress(self, received: int, rates: Mapping[str, float]) -> None:
        """Document bytes received so far, and the present rate of each network in bits per second."""
        texts = [f"{_NAMES[network]} {rate / MEGA:4.1f} Mb/s" for network, rate in rates.items()]
        self._progress.update(self._task, completed=received, rates="  ".join(texts))

    def event(self, event: Event) -> None:
        """Something happened."""
        self.line(f"{event.at:5.1f} s  {event.text}")

    def line(self, text: str) -> None:
        """A line about this download, to stay."""
        self._console.print(f"{self._name:<15} {text}", highlight=False, soft_wrap=True)
