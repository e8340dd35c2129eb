"""The exchange of totals in a thread of its own: what carries data never waits for a server."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple, Protocol

from mptcp_throttle.command_line import version
from mptcp_throttled.fleet.exchange import Exchange, ExchangeError, ReadReports, WriteRefused
from mptcp_throttled.fleet.keys import PROXIES, name_of
from mptcp_throttled.fleet.long_values import LongValues
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.reports import Report, Reports
from mptcp_throttled.fleet.totals_book import FAR_ROUNDS, REFUSED_SECONDS, ROUND_TICKS, Entry, TotalsBook
from mptcp_throttled.vocabulary.events import Event, EventKind
from mptcp_throttled.vocabulary.fleet import FleetState, Load, OwnTotal, Scope, UsedElsewhere

_log = logging.getLogger("mptcp-throttled")

TICK_SECONDS: Final = 0.25
_MAX_PAUSE_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 0.5
_DAY: Final = 86400
# After the end of its period: a proxy whose clock is late still writes there.
_KEPT_SECONDS: Final = 2 * _DAY
_WRITE_ALL_SECONDS: Final = 1.0
_WRITE_ALL_FACTOR: Final = 4
_FORGET_TICKS: Final = 240
# After an oversized hash was read, only fields of known proxies are read.
_BY_FIELD_SECONDS: Final = 600.0
_TOO_LONG: Final = "is too long, or no hash"
_OVERSIZED: Final = "has more in it than proxies write: only what known ones have written there is read"


class Ledger(Protocol):
    """What the thread knows of the ledger. All methods are for any thread."""

    def own_totals(self, scope: Scope) -> list[OwnTotal]:
        """What this proxy has counted in the present periods; what has changed is told once."""

    def note_elsewhere(self, used: Sequence[UsedElsewhere]) -> None:
        """This much was used at the other proxies."""


class Identity(NamedTuple):
    """The field of this proxy in each hash, and the secret of the hashes' names; None: these say whose they are."""

    field: str
    secret: bytes | None


class TotalsThread(threading.Thread):
    """Exchanges totals until `stop()`; `state` is for any thread.

    `identify` says who this proxy is, once it is known; `connect` gives a new exchange for its field, and is given the
    number of the attempt. Both raise ExchangeError. `link` is the rate of a proxy's link in bytes/s, `load` what this
    one carries. `refusals` has what is not believed; `tell` is told when the server is away, and when it is back. An
    earlier instance has `exchanged_at` last, as in `FleetState`.
    """

    def __init__(
        self,
        name: str,
        link: float,
        ledger: Ledger,
        identify: Callable[[], Identity],
        connect: Callable[[str, int], Exchange],
        refusals: Refusals,
        tell: Callable[[Event], None],
        load: Callable[[], Load] = Load,
        exchanged_at: float | None = None,
    ) -> None:
        super().__init__(name="fleet", daemon=True)
        self._link = link
        self._ledger = ledger
        self._identify = identify
        self._field = ""
        self._book: TotalsBook | None = None
        self._connect = connect
        self._attempts = count()
        self._exchange: Exchange | None = None
        self._stopping = threading.Event()
        self._tick = 0
        self._load = load
        self._version = version()
        self._reported = 0
        self._reports = Reports()
        self._list_problem: str | None = None
        self._list_again_at = -math.inf
        self._known_again_at = -math.inf
        self._by_field_until = -math.inf
        self._long_values = LongValues()
        self._refusals = refusals
        self._tell = tell
        self._is_away = False
        self._must_write_all = False
        self._write_all_after = -math.inf
        self._state = FleetState(name, exchanged_at=exchanged_at)

    @property
    def state(self) -> FleetState:
        """For the operator."""
        return replace(self._state, refused=self._refusals.number, refusal=self._refusals.last)

    def run(self) -> None:
        """Exchange until `stop()`."""
        pause = 0.0
        while not self._stopping.wait(pause):
            began = time.monotonic()
            try:
                self.step(began)
                pause = max(TICK_SECONDS - (time.monotonic() - began), 0.0)
            except ExchangeError as error:
                self._note_failure(error)
                pause = min(2 * pause or TICK_SECONDS, _MAX_PAUSE_SECONDS)
            except Exception as error:
                # Without this thread, totals of others would stay as they are until a restart.
                self._note_failure(ExchangeError(f"{type(error).__name__}: {error}"))
                pause = _MAX_PAUSE_SECONDS
        self._close()

    def stop(self) -> None:
        """End the thread, without waiting for an answer that is late."""
        self._stopping.set()
        if self.is_alive():
            self.join(_STOP_SECONDS)

    def step(self, now: float) -> None:
        """One tick, at `now` in monotonic seconds: connect if there is no connection, publish, read.

        Raises ExchangeError.
        """
        book = self._book = self._book or self._begin()
        is_round_of_all = self._tick % (FAR_ROUNDS * ROUND_TICKS) == 0
        book.note(self._ledger.own_totals(Scope.CHANGED if is_round_of_all else Scope.URGENT), now)
        exchange, is_new = self._exchange, self._exchange is None
        if exchange is None:
            exchange = self._exchange = self._connect(self._field, next(self._attempts))
            self._state = replace(self._state, server=exchange.server)
            _log.info("fleet: totals are shared by %s", exchange.server)
            self._must_write_all = True
        self._tick += 1
        problem = self._state.problem
        try:
            if self._write(exchange, book, now):
                problem = None
        except WriteRefused as error:
            problem = str(error)
        if is_new or self._tick % ROUND_TICKS == 0:
            self._read_reports(exchange, now)
        self._read(exchange, book, now)
        if self._tick % _FORGET_TICKS == 0:
            book.forget_idle(now)
        self._note_state(now, problem)

    def _begin(self) -> TotalsBook:
        self._field, secret = self._identify()
        return TotalsBook(lambda total: name_of(total, secret))

    def _write(self, exchange: Exchange, book: TotalsBook, now: float) -> bool:
        """Publish what is due; everything, if the server may have lost it, or is another one.

        Returns whether anything was due.
        """
        writes_all, is_round = self._must_write_all and now >= self._write_all_after, self._tick % ROUND_TICKS == 0
        if writes_all:
            self._must_write_all = False
            began = time.monotonic()
            try:
                book.note_lost(self._ledger.own_totals(Scope.ALL))
                # First, so that a server that loses all after it does not know the next report.
                self._report(exchange)
                self._publish(exchange, book, book.all_unpublished())
            finally:
                # Somebody who keeps deleting totals must not keep this thread busy.
                self._write_all_after = now + max(_WRITE_ALL_SECONDS, _WRITE_ALL_FACTOR * (time.monotonic() - began))
        due = book.due_to_publish(self._tick)
        self._publish(exchange, book, due)
        if is_round:
            self._must_write_all |= self._report(exchange)
        return bool(due) or writes_all or is_round

    def _publish(self, exchange: Exchange, book: TotalsBook, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        at = time.time()
        first = [entry for entry in entries if not entry.is_published]
        keep = {entry.name: max(int(entry.total.period.end - at), 0) + _KEPT_SECONDS for entry in first}
        added = exchange.publish([(entry.name, entry.total.used) for entry in entries], keep)
        book.note_published(entries)
        self._must_write_all |= not added <= keep.keys()

    def _report(self, exchange: Exchange) -> bool:
        """Let the others know of this proxy; whether the server did not know of it."""
        self._reported += 1
        return exchange.report(
            Report.made(self._reported, int(time.time()), self._version, self._load()), _KEPT_SECONDS
        )

    def _read_reports(self, exchange: Exchange, now: float) -> None:
        read = self._read_list(exchange, now) if now >= self._list_again_at else ReadReports({}, problem=_TOO_LONG)
        self._list_problem = read.problem
        if read.problem is not None:
            self._refuse(PROXIES, [read.problem], now)
            # Known proxies can still be read from an oversized list; those that join cannot.
            read = self._read_known(exchange, now) if now >= self._known_again_at else read
        if read.problem is not None:
            return
        self._refuse(PROXIES, read.refused, now)
        is_whole = self._list_problem is None and not read.refused
        self._reports.note(read.by_field, now, time.time(), is_whole=is_whole, unreadable=read.unreadable)
        old = self._reports.old(now)
        if old:
            # Who may not write here still reads what the others have.
            with suppress(WriteRefused):
                exchange.forget(old)
                self._reports.forget(old)

    def _read_list(self, exchange: Exchange, now: float) -> ReadReports:
        try:
            return exchange.reports()
        except ExchangeError as error:
            if error.name is not None:
                self._list_problem, self._list_again_at = _TOO_LONG, now + REFUSED_SECONDS
                self._refuse(PROXIES, [_TOO_LONG], now)
            raise

    def _read_known(self, exchange: Exchange, now: float) -> ReadReports:
        self._long_values.forget(now)
        known = (*self._known_fields,)
        readable = self._long_values.readable(PROXIES, known)
        try:
            read = exchange.reports_of(readable)
        except ExchangeError as error:
            if error.field is not None:
                self._note_long_value(PROXIES, error.field, "report", now)
            elif error.name is not None:
                self._known_again_at = now + REFUSED_SECONDS
            raise
        return read._replace(unreadable=read.unreadable | ({*known} - {*readable}))

    @property
    def _known_fields(self) -> Mapping[str, object]:
        """The fields of this proxy, and of all that it knows."""
        return {self._field: None, **self._reports.known}

    def _read(self, exchange: Exchange, book: TotalsBook, now: float) -> None:
        entries = book.due_to_read(self._tick, now)
        if not entries:
            return
        changed: list[UsedElsewhere] = []
        contents = self._contents(exchange, book, entries, now)
        without_own = exchange.without_own_totals(contents, [entry.published for entry in entries])
        for entry, whole, remaining in zip(entries, contents, without_own, strict=True):
            entry.is_unread = False
            content = remaining if entry.is_published else whole
            if content is None:
                self._look_at_own(exchange, book, entry, whole, now)
                content = whole
            if content != entry.content or not entry.is_settled or entry.elsewhere.rate:
                before = entry.elsewhere
                self._believe(exchange, entry, content, now)
                if entry.elsewhere != before:
                    changed.append(entry.used_elsewhere)
        if changed:
            self._ledger.note_elsewhere(changed)

    def _contents(self, exchange: Exchange, book: TotalsBook, entries: Sequence[Entry], now: float) -> Sequence[bytes]:
        """What is in the hashes of these entries.

        Whoever may write totals can make a hash oversized. For `_BY_FIELD_SECONDS` from then on, only the fields of
        known proxies are read of all hashes.
        """
        if now >= self._by_field_until:
            contents = self._whole_contents(exchange, [entry.name for entry in entries], now)
            if contents is not None:
                return contents
        known = self._known_fields
        self._long_values.forget(now)
        try:
            return exchange.read_fields(
                [(entry.name, self._long_values.readable(entry.name, entry.fields(known))) for entry in entries]
            )
        except ExchangeError as error:
            if error.name is not None and error.field is not None:
                self._note_long_value(error.name, error.field, "total", now)
            elif error.name is not None:
                book.refuse(error.name, now)
                self._refuse(error.name, [_TOO_LONG], now)
            raise

    def _whole_contents(self, exchange: Exchange, names: Sequence[bytes], now: float) -> Sequence[bytes] | None:
        """The whole content of these hashes; None if one is oversized."""
        try:
            contents = exchange.read(names)
        except ExchangeError as error:
            if error.name is not None:
                self._note_oversized(error.name, now)
            raise
        oversized = exchange.oversized(names, contents)
        for name in oversized:
            self._note_oversized(name, now)
        return None if oversized else contents

    def _note_oversized(self, name: bytes, now: float) -> None:
        self._by_field_until = now + _BY_FIELD_SECONDS
        self._refuse(name, [_OVERSIZED], now)

    def _note_long_value(self, name: bytes, field: str, what: str, now: float) -> None:
        """The value of a known proxy is too long. That of this one is written again with the next connection."""
        if field != self._field:
            self._long_values.note(name, field, now)
        self._refuse(name, [f"has a {what} of {field} that is too long"], now)

    def _look_at_own(self, exchange: Exchange, book: TotalsBook, entry: Entry, content: bytes, now: float) -> None:
        """A hash does not have the total of this proxy as it was published."""
        totals = exchange.totals(content)
        if self._field in totals.by_field:
            self._refuse(entry.name, ["has a total of this proxy that is not from it"], now)
            book.note_replaced(entry)
        else:
            # A hash of which something is not believed may still have it.
            self._must_write_all |= not totals.refused

    def _believe(self, exchange: Exchange, entry: Entry, content: bytes, now: float) -> None:
        totals = exchange.totals(content)
        if content != entry.content:
            self._refuse(entry.name, totals.refused, now)
        entry.content = content
        by_field = {field: total for field, total in totals.by_field.items() if field != self._field}
        entry.believe(by_field, now, max(time.time() - entry.total.period.start, 0.0), self._link)

    def _refuse(self, name: bytes, problems: Sequence[str], now: float) -> None:
        """What is wrong with the hash of this name."""
        where = "the list of proxies" if name == PROXIES else name.decode()
        for problem in problems:
            self._refusals.say(f"{where} {problem}", now)

    def _note_state(self, now: float, problem: str | None) -> None:
        if problem not in (None, self._state.problem):
            _log.warning("fleet: totals of this proxy cannot be shared: %s", problem)
        self._state = replace(self._state, problem=problem, list_problem=self._list_problem)
        if self._tick % ROUND_TICKS == 0:
            self._state = replace(self._state, exchanged_at=now, proxies=self._reports.proxies())
        if self._is_away:
            self._is_away = False
            self._tell(Event(EventKind.FLEET_BACK, f"fleet: totals are shared again by {self._state.server}"))

    def _note_failure(self, error: ExchangeError) -> None:
        """Close the connection, of which nothing is known any more."""
        self._close()
        text = f"fleet: the totals of others stay as they were: {error}"
        if error.name is None and not self._is_away:
            self._is_away = True
            self._tell(Event(EventKind.FLEET_AWAY, text, reason=str(error)))
        elif str(error) != self._state.problem:
            _log.warning("%s", text)
        self._state = replace(self._state, server=None, problem=str(error))

    def _close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
