"""Where connections end that the capture has proved, and that are not in this kernel.

The kernel list has the sockets of this network namespace. With the proxy in a container, or behind rules that translate
addresses, the wire shows connections to one address and port, and their sockets have another, or are elsewhere.
A subflow is evidence if a list lacks it, no earlier list had it, and neither side has ended it on the wire.
This is deterministic: no clock and no I/O.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_sniffer.handshake import Ends
    from mptcp_sniffer.segment import PackedEndpoint

_OPEN_SECONDS: Final = 1.5
"""How long a list must have lacked a subflow that has not ended on the wire. The list is read once a second."""

_MOST_ENDPOINTS: Final = 16


class _Missing(NamedTuple):
    """A subflow that was established on the wire `since` then, and lacking in a list read `at` that time."""

    since: float
    at: float


class Unlisted:
    """Follows at most `bound` subflows. Times are those of `Tracker`."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._missing: dict[Ends, _Missing] = {}
        self._endpoints: dict[PackedEndpoint, float] = {}
        self._trusted_since = -math.inf

    @property
    def endpoints(self) -> tuple[PackedEndpoint, ...]:
        """The proxy's on the wire, at most 16, each until a list has a later subflow of it."""
        return tuple(sorted(self._endpoints))

    def add(self, ends: Ends, since: float, at: float) -> None:
        """A list read `at` lacks a subflow that has been on the wire `since` then, and that no list has had."""
        if since > self._trusted_since and len(self._missing) < self._bound:
            self._missing[ends] = _Missing(since, at)

    def remove(self, ends: Ends) -> None:
        """A segment explains why a list lacks this subflow."""
        self._missing.pop(ends, None)

    def distrust(self, until: float) -> None:
        """Frames have not been captured `until` then: the end of an earlier subflow may be among them."""
        self._missing.clear()
        self._trusted_since = until

    def judge(self, at: float, listed: Iterable[tuple[PackedEndpoint, float]]) -> None:
        """Decide by a list read `at`: of each subflow in it, the proxy's endpoint, and since when it is known."""
        if not self._missing and not self._endpoints:
            return
        latest: dict[PackedEndpoint, float] = {}
        for endpoint, since in listed:
            latest[endpoint] = max(since, latest.get(endpoint, since))
        for ends, missing in tuple(self._missing.items()):
            if latest.get(ends.proxy, -math.inf) > missing.since:
                del self._missing[ends]
            elif at - missing.at >= _OPEN_SECONDS:
                self._note(ends.proxy, missing.since)
        self._endpoints = {
            endpoint: since for endpoint, since in self._endpoints.items() if latest.get(endpoint, -math.inf) <= since
        }

    def _note(self, endpoint: PackedEndpoint, since: float) -> None:
        if endpoint in self._endpoints or len(self._endpoints) < _MOST_ENDPOINTS:
            self._endpoints[endpoint] = max(since, self._endpoints.get(endpoint, since))
