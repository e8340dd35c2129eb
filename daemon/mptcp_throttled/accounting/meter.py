"""What subflows have carried since the last observation, from the totals of their sockets.

A live socket is observed about once a second. The totals of one that closes come from the kernel program, which
reports them at the end: so nothing that a subflow carries is lost, however short it lives, and nothing counts twice.
Where no program reports them, what a subflow carries after the last observation is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals, Traffic

FORGET_SECONDS: Final = 120.0
"""A socket is forgotten when it has been neither live nor closing for this time.

It has closed, and no program has reported its end. One whose client keeps its own side open is closing until then.
"""


class LiveSubflow(NamedTuple):
    """The socket of a live subflow, or of a live TCP connection without MPTCP.

    `rtt` is the smoothed RTT in seconds, None before the first sample.
    """

    cookie: int
    totals: SocketTotals
    rtt: float | None
    throttled: bool
    is_mptcp: bool = True


class Metered(NamedTuple):
    """What a subflow, or a TCP connection without MPTCP, has carried."""

    ends: FourTuple
    traffic: Traffic
    is_mptcp: bool


@dataclass(slots=True)
class _Counted:
    """What has been counted of a socket; `seen` is when it was last live, in monotonic seconds."""

    totals: SocketTotals
    throttled: bool
    seen: float


class Meter:
    """Counts what each socket has carried between two observations.

    `counted` is what an earlier instance has counted of sockets, by cookie. `ignored` is what sockets carried before
    the first instance, which does not count. `closing` has the cookies of sockets that are not live any more, but have
    not closed yet; None: not known now.
    """

    def __init__(
        self,
        counted: Mapping[int, SocketTotals],
        ignored: Mapping[int, SocketTotals],
        closing: Callable[[], Collection[int] | None] = lambda: (),
    ) -> None:
        self._ignored = dict(ignored)
        self._closing = closing
        self._gone: frozenset[int] = frozenset()
        self._counted = {cookie: _Counted(totals, throttled=False, seen=math.inf) for cookie, totals in counted.items()}

    def knows(self, cookie: int) -> bool:
        """Whether the socket with this cookie is known, and has not closed."""
        return cookie in self._counted

    def ignore(self, sockets: Mapping[int, SocketTotals]) -> None:
        """Do not count what these sockets have carried until now, by cookie."""
        self._ignored |= sockets

    def settle(self, counted: Mapping[int, SocketTotals], first: Mapping[int, SocketTotals]) -> None:
        """Count, with the next observation, what sockets had carried at the `first` one and nobody has counted.

        An earlier instance has `counted` the rest. This meter has ignored what they carried, and was told of no end
        since.
        """
        for cookie, totals in first.items():
            before = counted.get(cookie, SocketTotals())
            if cookie in self._ignored:
                self._ignored[cookie] = before
            elif cookie in self._counted:
                known = self._counted[cookie]
                known.totals = known.totals.since(totals.since(before))
        for cookie in counted.keys() - first.keys():
            self._counted.setdefault(cookie, _Counted(counted[cookie], throttled=False, seen=math.inf))

    @property
    def counted(self) -> dict[int, SocketTotals]:
        """What has been counted of each socket that has not closed, by cookie."""
        return {cookie: counted.totals for cookie, counted in self._counted.items()}

    def count(self, at: float, live: Mapping[FourTuple, LiveSubflow], closed: Iterable[ClosedSubflow]) -> list[Metered]:
        """What each subflow has carried since the last observation, unless that is nothing and it has not closed.

        `closed` have closed since; they may still be among the live ones. An end may be reported twice, here or in the
        next call, as when one program takes the place of another. `at` is in monotonic seconds.
        """
        carried: list[Metered] = []
        gone: set[int] = set()
        for subflow in closed:
            if subflow.cookie in gone or subflow.cookie in self._gone:
                continue
            gone.add(subflow.cookie)
            known = self._counted.pop(subflow.cookie, None)
            opened = known is None and subflow.cookie not in self._ignored
            before, throttled = (known.totals, known.throttled) if known else (self._uncounted(subflow.cookie), False)
            added = subflow.totals.since(before)
            version = subflow.ends.client.address.version
            is_mptcp = subflow.token is not None
            traffic = Traffic.of(
                added, version, throttled=throttled, closed=True, rtt=None, is_mptcp=is_mptcp, opened=opened
            )
            carried.append(Metered(subflow.ends, traffic, is_mptcp))
        for ends, flow in live.items():
            if flow.cookie in gone:
                continue
            known = self._counted.get(flow.cookie)
            opened = known is None and flow.cookie not in self._ignored
            if known is None:
                known = _Counted(self._uncounted(flow.cookie), flow.throttled, at)
                self._counted[flow.cookie] = known
            if opened or flow.totals != known.totals:
                added, version = flow.totals.since(known.totals), ends.client.address.version
                # Between two observations a subflow counts as throttled if it was so at both.
                throttled = flow.throttled and known.throttled
                traffic = Traffic.of(
                    added,
                    version,
                    throttled=throttled,
                    closed=False,
                    rtt=flow.rtt,
                    is_mptcp=flow.is_mptcp,
                    opened=opened,
                )
                carried.append(Metered(ends, traffic, flow.is_mptcp))
                known.totals = flow.totals
            known.throttled, known.seen = flow.throttled, at
        self._gone = frozenset(gone)
        self._forget(at)
        return carried

    def _uncounted(self, cookie: int) -> SocketTotals:
        return self._ignored.pop(cookie, SocketTotals())

    def _forget(self, at: float) -> None:
        late = []
        for cookie, counted in self._counted.items():
            if counted.seen is math.inf:
                counted.seen = at
            elif at - counted.seen > FORGET_SECONDS:
                late.append(cookie)
        closing = self._closing() if late else ()
        for cookie in late:
            if closing is None or cookie in closing:
                self._counted[cookie].seen = at
            else:
                del self._counted[cookie]
