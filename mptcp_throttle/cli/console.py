"""The console on which the commands print."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

# Without a terminal rich would wrap at 80 columns.
_PLAIN_WIDTH: Final = 240


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich calls this in its handler of BrokenPipeError, which `service.run` turns into an exit status.
        raise


def output_console(plain_width: int = _PLAIN_WIDTH, *, soft_wrap: bool = True) -> Console:
    """Standard output, `plain_width` columns wide if it is no terminal; `soft_wrap` leaves wrapping to the terminal.

    To print raises OSError if it cannot be written, BrokenPipeError included.
    """
    return _Console(highlight=False, soft_wrap=soft_wrap, width=None if sys.stdout.isatty() else plain_width)
