"""Waiting for a condition, for all tests: nothing sleeps for as long as something is expected to take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mptcp_lab.process import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable


_PATIENCE_SECONDS: Final = 30.0 * PATIENCE


def eventually(
    condition: Callable[[], bool],
    what: str,
    within: float = _PATIENCE_SECONDS,
    *,
    seen: Callable[[], object] = lambda: "",
) -> float:
    """Wait until `condition` holds and return the seconds that took. Fails, naming `what`, after `within` seconds.

    The failure shows what `seen` returns then.

    What holds by then is seen, however long a look takes: only a look that began later than that fails. The default
    is for conditions whose time proves nothing; it costs nothing when things work.
    Between looks a tenth of the time waited passes, 10 to 50 ms: most looks start programs, and others need processors.
    """
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        if condition():
            return time.monotonic() - began
        assert looked - began < within, f"not within {within:g} s: {what} {seen()}".rstrip()
        time.sleep(min(max(0.01, (looked - began) / 10), 0.05))
