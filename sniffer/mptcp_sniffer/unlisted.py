"""Finds endpoints of the proxy whose connections are captured, but are not sockets of this kernel.

The kernel list has the sockets of this network namespace. The proxy may run in a container, or behind rules that
translate addresses. Then captured segments have another address and port than the sockets, or these are in another
namespace. A subflow is evidence of that if a kernel list lacks it, no earlier list had it, and neither side has ended
it on the wire. This is deterministic: no clock and no I/O.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_sniffer.handshake import Ends
    from mptcp_sniffer.segment import PackedEndpoint

_OPEN_SECONDS: Final = 1.5
"""Lists must lack a subflow for this long, without an end on the wire. A list is read once a second."""

_MOST_ENDPOINTS: Final = 16


class _Missing(NamedTuple):
    """A subflow that has been established on the wire since `since`; a list that was read at `at` lacks it."""

    since: float
    at: float


class Unlisted:
    """Follows at most `bound` subflows that the kernel list lacks. Times are those of `Tracker`."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._missing: dict[Ends, _Missing] = {}
        self._endpoints: dict[PackedEndpoint, float] = {}
        self._trusted_since = -math.inf

    @property
    def endpoints(self) -> tuple[PackedEndpoint, ...]:
        """The endpoints of the proxy that were found, at most 16. A list with a later subflow of one removes it."""
        return tuple(sorted(self._endpoints))

    def add(self, ends: Ends, since: float, at: float) -> None:
        """A list that was read at `at` lacks a subflow that is on the wire since `since`, and no list has had it."""
        if since > self._trusted_since and len(self._missing) < self._bound:
            self._missing[ends] = _Missing(since, at)

    def remove(self, ends: Ends) -> None:
        """A segment explains why a list lacks this subflow."""
        self._missing.pop(ends, None)

    def distrust(self, until: float) -> None:
        """Frames were missed up to `until`: a subflow that was established before may have ended unseen."""
        self._missing.clear()
        self._trusted_since = until

    def judge(self, at: float, listed: Iterable[tuple[PackedEndpoint, float]]) -> None:
        """Judge by a list that was read at `at`.

        `listed` has the proxy's endpoint of each subflow in it, and the time since which the subflow is known.
        """
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
