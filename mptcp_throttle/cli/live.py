"""`mptcp-throttle top`: asks the daemon about once a second, and shows the answer until the user ends it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live

from mptcp_throttle.cli.console import output_console
from mptcp_throttle.cli.live_view import Recent, View, render
from mptcp_throttle.errors import EX_COMMAND_LINE, UserError
from mptcp_throttle.rpc import Json, RpcError

_LOOK_SECONDS: Final = 1.0
_PLAIN_WIDTH: Final = 160

Ask = Callable[[View], Json]
"""The daemon's answer to `top`. Raises RpcError."""


def show_once(ask: Ask, view: View) -> None:
    """Print one answer, for scripts. Raises RpcError."""
    console = output_console(_PLAIN_WIDTH, soft_wrap=False)
    recent, data = Recent(), ask(view)
    console.print(render(data, view, recent, console.width, problem=None, ascii_only=_is_ascii(console)))


def show_live(ask: Ask, view: View) -> None:
    """Show answers until the user presses q. Raises UserError without a terminal, and RpcError at the beginning."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("top: needs a terminal; allowed without one: top --once", EX_COMMAND_LINE)
    console, recent = Console(highlight=False), Recent()
    data, problem = ask(view), None
    recent.add(data)
    with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        asked = time.monotonic()
        while not view.ended:
            screen = render(data, view, recent, console.width, problem=problem, ascii_only=_is_ascii(console))
            live.update(screen, refresh=True)
            chosen = view
            for key in _keys(max(0.0, asked + _LOOK_SECONDS - time.monotonic())):
                view = view.pressed(key)
            is_due = time.monotonic() >= asked + _LOOK_SECONDS
            if view.question != chosen.question or (is_due and not view.paused):
                try:
                    data, problem = ask(view), None
                    recent.add(data)
                except RpcError as error:
                    problem = str(error)
            if is_due:
                asked = time.monotonic()


def _is_ascii(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


@contextmanager
def _single_keys() -> Iterator[None]:
    """Let each key arrive at once, and unseen."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _keys(timeout: float) -> str:
    """What was typed, after up to `timeout` seconds; a key that sends several characters, such as an arrow, is none."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout)
    if not ready:
        return ""
    typed = os.read(sys.stdin.fileno(), 1024)
    if not typed:
        return "q"  # the terminal is gone
    text = typed.decode(errors="replace")
    return "" if len(text) > 1 and text.startswith("\x1b") else text
