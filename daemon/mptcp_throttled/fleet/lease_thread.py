"""The exchange of leases in a thread of its own: no rate and no byte waits for a server."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from mptcp_throttle.valkey.connection import ValkeyError
from mptcp_throttled.fleet.lease_book import LeaseBook
from mptcp_throttled.fleet.lease_server import HashTooLong, LeaseServer
from mptcp_throttled.fleet.members import FORGET_SECONDS, MOST_MEMBERS, ROUND_SECONDS, Record
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals_book import REFUSED_SECONDS
from mptcp_throttled.vocabulary.fleet import LeaseState

_log = logging.getLogger("mptcp-throttled")

_INTERVAL_SECONDS: Final = ROUND_SECONDS / 2
_FOLLOW_SECONDS: Final = 0.25
_ALLOWED: Final = f"allowed: up to {MOST_MEMBERS} proxies within {FORGET_SECONDS / 60:.0f} min"
_STOP_SECONDS: Final = 0.5


class LeaseThread(threading.Thread):
    """Exchanges what the `book` states until `stop()`; `state` is for any thread.

    `connect` makes a new connection, and is given the number of the attempt; it raises ValkeyError. `is_wanted` tells
    whether any rate is shared: otherwise there is nothing to exchange. `keep` is called once there may be something
    else to keep for the next instance. `refusals` has what is not believed.
    """

    def __init__(
        self,
        book: LeaseBook,
        connect: Callable[[int], LeaseServer],
        is_wanted: Callable[[], bool],
        keep: Callable[[], None],
        refusals: Refusals,
    ) -> None:
        super().__init__(name="leases", daemon=True)
        self._book = book
        self._connect = connect
        self._is_wanted = is_wanted
        self._keep = keep
        self._attempts = count()
        self._server: LeaseServer | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._refusals = refusals
        self._unread_until: dict[str, float] = {}
        self._problem: str | None = None

    @property
    def state(self) -> LeaseState:
        """For the operator."""
        held = self._book.held
        return LeaseState(self._problem, len(held.leased), held)

    def run(self) -> None:
        """Exchange until `stop()`."""
        threading.Thread(target=self._follow, name="leases-clock", daemon=True).start()
        pause = 0.0
        while not self._stopping.wait(pause):
            began = time.monotonic()
            try:
                self.step(began)
                self._problem = None
            except ValkeyError as error:
                self._note_failure(str(error))
            except Exception as error:
                # Without this thread, leases would never come back.
                self._note_failure(f"{type(error).__name__}: {error}")
            pause = max(_INTERVAL_SECONDS - (time.monotonic() - began), 0.0)
        self._close()

    def _follow(self) -> None:
        said: str | None = None
        while not self._stopping.wait(_FOLLOW_SECONDS):
            try:
                self._book.follow(time.monotonic())
            except Exception as error:
                # Without this thread, leases would not lapse while the server is away.
                problem = f"{type(error).__name__}: {error}"
                if problem != said:
                    _log.exception("fleet: leases do not follow the time: %s", problem)
                said = problem

    def stop(self) -> None:
        """End the thread, without waiting for an answer that is late. It sends no round any more, nor keeps any."""
        with self._lock:
            self._stopping.set()
        if self.is_alive():
            self.join(_STOP_SECONDS)

    def step(self, now: float) -> None:
        """One round, at `now` in monotonic seconds, in a new session if there is none. Raises ValkeyError."""
        if not self._is_wanted():
            self._close()
            return
        self._unread_until = {name: until for name, until in self._unread_until.items() if until > now}
        try:
            self._exchange(now)
        except HashTooLong as error:
            # All others go on sharing.
            self._unread_until[error.proxy] = now + REFUSED_SECONDS
            self._refusals.say(str(error), now)
            raise

    def _exchange(self, now: float) -> None:
        if self._server is None or not self._book.in_session:
            self._close()
            if self._book.must_wait(now):
                raise ValkeyError(self._problem or "rounds fail")
            self._server = self._connect(next(self._attempts))
            if self._stopping.is_set():
                return
            records = self._server.records(self._unread_until)
            self._book.open(records, secrets.randbits(64), time.monotonic())
            if self._book.surplus is not None:
                raise ValkeyError(f"{MOST_MEMBERS} other proxies share rates; {_ALLOWED}")
        with self._lock:
            sent = time.monotonic()
            request = None if self._stopping.is_set() else self._book.compose(sent)
        if request is None:
            return
        answer = self._server.exchange(request, sent, self._unread_until)
        for problem in answer.refused:
            self._refusals.say(problem, now)
        with self._lock:
            if self._stopping.is_set():
                return
            goes_on = self._book.take(answer.round, answer.statements, answer.changed, time.monotonic())
            self._keep()
        if not goes_on:
            raise ValkeyError(_why_over(request.record.session, answer.round.first, self._book.surplus))

    def _note_failure(self, problem: str) -> None:
        self._close()
        if problem != self._problem:
            _log.warning("fleet: shared rates stay as they are for now: %s", problem)
        self._problem = problem

    def _close(self) -> None:
        self._book.close()
        if self._server is not None:
            self._server.close()
            self._server = None


def _why_over(session: int, first: Record | None, surplus: str | None) -> str:
    if surplus is not None:
        return f"{surplus} is one too many; {_ALLOWED}"
    if first is not None and first.beat and first.session != session:
        return "another proxy has the name of this one"
    return "the server has lost data, or answers too late"
