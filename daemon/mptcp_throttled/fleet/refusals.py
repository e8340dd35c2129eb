"""Values at the server that are not believed: how many there were, and what the log says of them."""

from __future__ import annotations

import logging
import threading
from typing import Final

_log = logging.getLogger("mptcp-throttled")

_MOST: Final = 20
_SECONDS: Final = 60.0


class Refusals:
    """They are counted. The log has each once a minute, and up to `_MOST` different ones a minute. For any thread.

    `number` is how many there were, of which `last` is the last one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self.number = 0
        self.last: str | None = None

    def say(self, text: str, now: float) -> None:
        """Count it, and log it unless that would be too much; at `now` in monotonic seconds."""
        with self._lock:
            self.number, self.last = self.number + 1, text
            self._said = {said: at for said, at in self._said.items() if at > now - _SECONDS}
            is_news = text not in self._said and len(self._said) < _MOST
            if is_news:
                self._said[text] = now
        if is_news:
            _log.warning("fleet: refused: %s", text)
