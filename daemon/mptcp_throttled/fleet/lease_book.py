"""All rates that this proxy shares with others: what it wants, states and holds of each."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from mptcp_throttled.fleet.lease_set import LeaseSet
from mptcp_throttled.fleet.leases import Statement, floor
from mptcp_throttled.fleet.members import Members, Phase, Record, Round, Standing
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey, SharedRates

_UNKNOWN_SECONDS: Final = 5.0
"""After a start, what a client wants is not known for so long."""


class Request(NamedTuple):
    """What to do in a round, in this order: write and delete statements, read the own record, write it and `lost` ones
    of others, and read of each proxy its record and its statements about all rates of which this one has written one
    in the session, of this one last."""

    writes: Mapping[RateKey, Statement]
    deletes: tuple[RateKey, ...]
    record: Record
    lost: Mapping[str, Record]


class Kept(NamedTuple):
    """What an instance needs to know of an earlier one: its part, the records of others, when it was in contact and
    when it has sent a record last, and its leases. Times are in monotonic seconds, -infinity on another boot.
    """

    part: int = 0
    known: Mapping[str, Record] = MappingProxyType({})
    contact: float = -math.inf
    last_sent: float = -math.inf
    leases: Mapping[RateKey, int] = MappingProxyType({})


class LeaseBook:
    """The leases of a proxy. All methods are for any thread; times are monotonic seconds.

    `amounts` are the leases of an earlier instance: so much is wanted until more is known of demand. `applied` tells
    what the kernel has. `changed` is called once that should be something else.
    """

    def __init__(
        self,
        members: Members,
        amounts: Mapping[RateKey, int],
        applied: Callable[[], SharedRates | None],
        changed: Callable[[], None],
        now: float,
    ) -> None:
        self._members = members
        self._applied = applied
        self._changed = changed
        self._lock = threading.Lock()
        self._known_at = now + _UNKNOWN_SECONDS
        self._leases = LeaseSet[RateKey](WHOLE, amounts, members.standing(now), now)
        self._earlier = self._leases.wanted
        self._held = SharedRates(1, True, WHOLE)
        self._published = [self._held]

    @property
    def held(self) -> SharedRates:
        """What this proxy has of all shared rates."""
        return self._held

    def want(self, wanted: Mapping[RateKey, int], now: float) -> None:
        """So much of each rate is wanted, of `WHOLE`; nothing of all others."""
        with self._lock:
            if now < self._known_at:
                least = self._earlier
                wanted = {key: max(wanted.get(key, 0), least.get(key, 0)) for key in {**least, **wanted}}
            self._leases.want(wanted, now)
        self.follow(now)

    def follow(self, now: float) -> None:
        """What time alone changes: to be called once a second at least, also while the server does not answer."""
        with self._lock:
            before = self._held
            self._members.follow(now)
            standing = self._members.standing(now)
            self._leases.follow(standing, now)
            self._note_held(standing)
            is_changed = self._held is not before
        if is_changed:
            self._changed()

    @property
    def surplus(self) -> str | None:
        """As `Members.surplus`."""
        return self._members.surplus

    @property
    def in_session(self) -> bool:
        """Whether there is a session; if not, connect, and `open` one."""
        with self._lock:
            return self._members.session is not None

    def must_wait(self, now: float) -> bool:
        """As `Members.must_wait`."""
        with self._lock:
            return self._members.must_wait(now)

    def open(self, records: Mapping[str, Record], session: int, now: float) -> None:
        """As `Members.open`."""
        with self._lock:
            self._members.open(records, session, now)
            self._leases.begin()
        self.follow(now)

    def close(self) -> None:
        """As `Members.close`."""
        with self._lock:
            self._members.close()

    def compose(self, now: float) -> Request | None:
        """The next round, to be sent now; None: not yet, or not in a session.

        While the others could not be reached, clients without a lease had more than they have now. The others are not
        to know that they can be reached before the kernel has that.
        """
        self.follow(now)
        with self._lock:
            given = self._given()
            if self._members.session is None or any(each.each > self._held.each for each in given):
                return None

            def applied(key: RateKey) -> int:
                return max(each.beside(key) for each in given)

            changes = self._leases.compose(self._held.base, applied, now)
            return Request(changes.writes, changes.deletes, self._members.state(now), self._members.lost(now))

    def take(
        self,
        answer: Round,
        statements: Mapping[RateKey, Mapping[str, Statement]],
        changed: Iterable[RateKey],
        now: float,
    ) -> bool:
        """What a round has brought, with the rates of which other statements were read than before in the session.

        False: the session is over. Rates that could not be read stay as they are.
        """
        with self._lock:
            goes_on = self._members.read(answer, now)
            if goes_on and not self._leases.take(statements, changed, self._members.standing(now), now):
                self._members.close()
                goes_on = False
        self.follow(now)
        return goes_on

    def kept(self) -> Kept:
        """What the next instance needs to know."""
        with self._lock:
            members = self._members
            return Kept(members.part, members.known, members.contact, members.last_sent, self._leases.amounts)

    def _note_held(self, standing: Standing) -> None:
        is_away, each = standing.phase is not Phase.IN_CONTACT, self._leases.each
        leased = {} if each else self._leases.amounts
        held = SharedRates(standing.size, is_away, floor(WHOLE, standing), each, leased)
        if held != self._held:
            self._held = held
            self._published.append(held)

    def _given(self) -> list[SharedRates]:
        """What the kernel may have: what is applied, and all since then, of which a part may just be applied."""
        applied = self._applied()
        known = next((place for place, each in enumerate(self._published) if each is applied), 0)
        del self._published[:known]
        return self._published
