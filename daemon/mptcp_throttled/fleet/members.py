"""Who is in the fleet, what part of it each proxy has, and whether this proxy is in contact with the others.

Each proxy states a `Record` in a hash of its own, with a `beat` that changes in each round. A round is a sequence of
commands in one connection: write own statements of rates (`leases`), read the own record, write it and the own name,
read the names of all proxies, read of each its record and its statements, of this one last. A session is a connection
that has lost no round and no data. No clock of another host is ever read: a record is as old as the time
since its change was first seen here, which is never more than since it was sent.

The part of a proxy is what it has of every rate when it is out of contact. The sum of all parts is never more than
`PARTS`, by the rule of leases: a proxy states the part that it claims, and holds it once it has read, for
`HEARD_SECONDS` in one session, that it and the claims of all others fit. It holds less before it states less. Others
count a part until it was not heard of for `FORGET_SECONDS`, after which its hash expires, too. Who has read a record
that the server has lost tells it to those who join, but not what it was told itself: that would never end.

When this proxy last was in contact is when it sent the last round that was answered. Its leases lapse
`LEASE_SECONDS` later, which is before any other stops to count them. `AWAY_SECONDS` after it sent anything, all others
leave its part of each rate to it. What this takes for granted:

* A message arrives within `LEASE_SECONDS` or never. The kernel has a lower rate `APPLY_SECONDS` later, and a proxy
  begins a round every `ROUND_SECONDS` at the latest.
* Clocks run at the same speed but for 1 %, and no host stands still and then goes on.
* A proxy that is out of contact for longer than `RESTORE_SECONDS` keeps its part although others may count it no more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, Self

from mptcp_throttled.fleet.division import divided
from mptcp_throttled.vocabulary.fleet import GONE_SECONDS

PARTS: Final = 720_720
"""All parts of a fleet together: a multiple of all numbers up to 16."""
MOST_MEMBERS: Final = 64

ROUND_SECONDS: Final = 2.0
APPLY_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 8.0
HEARD_SECONDS: Final = 10.0
"""More than `LEASE_SECONDS` and `APPLY_SECONDS`, as clocks may differ by 1 %."""
AWAY_SECONDS: Final = 40.0
"""Until the last beat is read (8 s, or 18 s if a round was just under way) and is no news (10 s), and whoever read it
has less (1 s) or has itself lapsed (9 s), with clocks that differ."""
RESTORE_SECONDS: Final = 300.0
FORGET_SECONDS: Final = GONE_SECONDS
"""Twice as long: no proxy tells of a record that another has forgotten for its age."""
IN_VAIN_SECONDS: Final = 2 * AWAY_SECONDS
"""After rounds without success for so long, the next ones are `SELDOM_SECONDS` apart: in between, this proxy is `AWAY`
and has its part."""
SELDOM_SECONDS: Final = 5 * AWAY_SECONDS
OVERSTAY_SECONDS: Final = 40.0
"""Who claims more than the division gives it for so long, while it is heard, does not keep the rule."""

_TOLD: Final = 0
"""The beat of a record that another proxy tells: no beat."""
_RECORD: Final = re.compile(r"([0-9a-f]{16}) ([0-9]{1,12}) ([0-9]{1,6})", re.ASCII)


class Record(NamedTuple):
    """What a proxy states of itself: its session, a number that changes in each round, and the part that it claims."""

    session: int
    beat: int
    part: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the value of a field. Raises ValueError."""
        match = _RECORD.fullmatch(text)
        if match is None or int(match[3]) > PARTS:
            raise ValueError(f"is no record; allowed: a session, a number, and a part up to {PARTS}")
        return cls(int(match[1], 16), int(match[2]), int(match[3]))

    @classmethod
    def told(cls, part: str) -> Self:
        """What another tells of a proxy whose record is lost. Raises ValueError."""
        return cls.parse(f"{0:016x} {_TOLD} {part}")

    def __str__(self) -> str:
        return f"{self.session:016x} {self.beat} {self.part}"


class Round(NamedTuple):
    """What a round has brought: when it was `sent`, in monotonic seconds; the own record as read `first`, before the
    new one was written, and as read `last`; and all records."""

    sent: float
    first: Record | None
    records: Mapping[str, Record]
    last: Record | None


class Phase(Enum):
    """Whether leases count. `AWAY`: each other proxy leaves this one its part of each rate."""

    IN_CONTACT = auto()
    LAPSED = auto()
    AWAY = auto()


class Member(NamedTuple):
    """Another proxy: what it has stated, and whether a new beat was read within `HEARD_SECONDS`.

    It is `surely` in contact if two were read in this session: a server that has stood still may bring an old one.
    """

    session: int
    part: int
    heard: bool
    surely: bool


class Standing(NamedTuple):
    """What leases need to know of the fleet, to which this proxy belongs as `name`.

    `part` is what it holds, `joining` the number of those that have no part yet; `members` are all others.
    """

    name: str
    session: int
    part: int
    phase: Phase
    may_raise: bool
    joining: int
    members: Mapping[str, Member]

    @property
    def size(self) -> int:
        """The number of proxies, this one included."""
        return 1 + sum(member.heard or member.part > 0 for member in self.members.values())


@dataclass(slots=True)
class _Seen:
    """A record, since when it is known in monotonic seconds, whether it was ever seen to change, how often it was in
    this session, and whether it was only `told`."""

    record: Record
    since: float
    ever: bool = False
    changes: int = 0
    told: bool = False


class Members:
    """The fleet, as the proxy `name` knows it. All times are monotonic seconds of this host. For one thread.

    `part` is what an earlier instance has held, and `known` are the records of others that it knew. It was in `contact`
    and has sent a record last at these times: -infinity for one that did not run on this boot of the host.
    """

    def __init__(
        self,
        name: str,
        now: float,
        part: int = 0,
        known: Mapping[str, Record] | None = None,
        contact: float = -math.inf,
        last_sent: float = -math.inf,
    ) -> None:
        self._name = name
        self._part = self._claim = part
        self._claimed_since = self._lowered_at = now
        # Who does not know that must take it that a record was sent just now.
        self._last_sent = last_sent if math.isfinite(last_sent) else now
        since, is_recent = max(contact, now - RESTORE_SECONDS), math.isfinite(contact)
        records = {member: record for member, record in (known or {}).items() if member != name}
        self._seen = {member: _Seen(each, since if is_recent else now, is_recent) for member, each in records.items()}
        self._present: frozenset[str] = frozenset(self._seen)
        self._forgotten: dict[str, Record] = {}
        self._over: dict[str, float] = {}
        self.surplus: str | None = None
        """A proxy that is one too many: there is no session while there is one."""
        self._session: int | None = None
        self._opened, self._contact = -math.inf, contact
        self._watched_since = math.inf
        self._before: Record | None = None
        self._stated: Record | None = None
        self._beat = 0
        self._in_vain_since: float | None = None

    @property
    def session(self) -> int | None:
        """The number of the session; None: there is none, and whoever exchanges shall connect, and `open` one."""
        return self._session

    @property
    def part(self) -> int:
        """What this proxy holds, to be kept for the next instance."""
        return self._part

    @property
    def contact(self) -> float:
        """When the last round was sent that was answered."""
        return self._contact

    @property
    def last_sent(self) -> float:
        """When a record was sent last."""
        return self._last_sent

    @property
    def known(self) -> dict[str, Record]:
        """The records of others, to be kept for the next instance: the server may lose them meanwhile.

        Not those that were only told: the next instance could not know that they were.
        """
        return {name: seen.record for name, seen in self._seen.items() if not seen.told}

    def open(self, records: Mapping[str, Record], session: int, now: float) -> None:
        """Begin a session with a new random number, having read all records in a connection that nothing else uses.

        Whose record was deleted, as it was forgotten, keeps its part only if the others have not taken it.
        """
        self._session, self._opened, self._watched_since, self._stated = session, now, math.inf, None
        self._note(records, now)
        self._over.clear()
        for seen in self._seen.values():
            seen.changes = 0
        own = records.get(self._name)
        if own is not None:
            self._part = min(self._part, own.part)
        elif self._part > self._room(now):
            self._part = 0
        self._claim = self._part

    def close(self) -> None:
        """The connection is lost, or the server has lost data."""
        self._session = None

    def state(self, now: float) -> Record:
        """What to state in a round that is sent now, in a session."""
        self._before = self._stated
        if self._before is None or self._before.part != self._claim:
            self._claimed_since = now
        self._beat += 1
        self._last_sent = now
        self._in_vain_since = now if self._in_vain_since is None else self._in_vain_since
        self._stated = Record(self._session or 0, self._beat, self._claim)
        return self._stated

    def read(self, answer: Round, now: float) -> bool:
        """Take what a round has brought; false: the session is over.

        It is over if the answer came too late, if the own record was not always there as stated, or with a `surplus`.
        """
        is_as_stated = self._before in {None, answer.first} and answer.last == self._stated
        if self._session is None or not is_as_stated or now - answer.sent >= LEASE_SECONDS:
            self.close()
            return False
        if self._before is None:
            self._watched_since = now
        self._note(answer.records, now)
        if self.surplus is not None:
            self.close()
            return False
        self._contact, self._in_vain_since = max(self._contact, answer.sent), None
        self._divide(now)
        return True

    def follow(self, now: float) -> None:
        """What time alone changes: without an answer for too long, the session is over."""
        if now - max(self._contact, self._opened) >= LEASE_SECONDS:
            self.close()

    def must_wait(self, now: float) -> bool:
        """Whether to send no round yet, since all were in vain for long: the others leave this proxy its part only
        while they hear nothing of it."""
        began = self._in_vain_since
        is_in_vain = self._session is None and began is not None and self._last_sent - began >= IN_VAIN_SECONDS
        return is_in_vain and now - self._last_sent < SELDOM_SECONDS

    def standing(self, now: float) -> Standing:
        """What leases need to know."""
        if now - self._contact < LEASE_SECONDS:
            phase = Phase.IN_CONTACT
        elif self._session is None and now - self._last_sent >= AWAY_SECONDS:
            phase = Phase.AWAY
        else:
            phase = Phase.LAPSED
        in_session = self._session is not None and phase is Phase.IN_CONTACT
        may_raise = in_session and self._part > 0 and now - self._watched_since >= HEARD_SECONDS
        members = _with_possible_parts(self._part, {name: self._member(seen, now) for name, seen in self._seen.items()})
        joining = sum(member.heard and not member.part for member in members.values()) + (not self._part)
        return Standing(self._name, self._session or 0, self._part, phase, may_raise, joining, members)

    def lost(self, now: float) -> dict[str, Record]:
        """The records that the server has lost, to be told to others."""
        return {
            name: seen.record
            for name, seen in self._seen.items()
            if name not in self._present and seen.record.part and not seen.told and now - seen.since < RESTORE_SECONDS
        }

    def _note(self, records: Mapping[str, Record], now: float) -> None:
        self.surplus = None
        self._present = frozenset(name for name, record in records.items() if record.beat != _TOLD)
        self._forgotten = {name: each for name, each in self._forgotten.items() if records.get(name) == each}
        # Who was there before knows more than any other can tell, unless that one is compromised.
        is_new_here = not self._part or now - self._opened < HEARD_SECONDS
        for name, record in sorted(records.items()):
            seen, is_told = self._seen.get(name), record.beat == _TOLD
            if name == self._name or name in self._forgotten or (is_told and not is_new_here):
                continue
            if seen is None and self._is_full(is_told):
                self.surplus = self.surplus if is_told else name
            elif seen is None:
                self._seen[name] = _Seen(record, now, told=is_told)
            elif not is_told and seen.record != record:
                self._seen[name] = _Seen(record, now, True, seen.changes + 1)
        for name, seen in list(self._seen.items()):
            if now - seen.since >= (FORGET_SECONDS if name in self._present else RESTORE_SECONDS):
                if name in records:
                    self._forgotten[name] = records[name]
                del self._seen[name]
                self._over.pop(name, None)

    def _is_full(self, is_told: bool) -> bool:
        """Whether there is no room for another; of which only is told gives way to who has a record."""
        if len(self._seen) < MOST_MEMBERS - 1:
            return False
        told = None if is_told else next((name for name, seen in self._seen.items() if seen.told), None)
        if told is not None:
            del self._seen[told]
        return told is None

    def _member(self, seen: _Seen, now: float) -> Member:
        heard = seen.ever and now - seen.since < HEARD_SECONDS
        return Member(seen.record.session, seen.record.part, heard, heard and seen.changes > 1)

    def _divide(self, now: float) -> None:
        """Hold less, claim more or less, or hold what has been claimed for long enough.

        A compromised proxy may tell of any number of others: these get no part of what this proxy has.
        """
        heard = {name for name, seen in self._seen.items() if self._member(seen, now).heard}
        stated = {name for name, seen in self._seen.items() if seen.record.part and not seen.told}
        target = PARTS // (1 + len(heard | stated))
        # Of proxies whose record the server has lost, others may only have been told: by the rule, they claim more.
        due = PARTS // (1 + len(heard | (stated & self._present)))
        for name, seen in self._seen.items():
            if name in heard and seen.record.part > due:
                self._over.setdefault(name, now)
            else:
                self._over.pop(name, None)
        if self._part > target:
            self._part, self._lowered_at = target, now
        goal = max(self._part, min(target, self._room(now, due)))
        if goal > self._claim or (goal < self._claim and now - self._lowered_at >= APPLY_SECONDS):
            self._claim = goal
        elif goal == self._claim and now - max(self._claimed_since, self._watched_since) >= HEARD_SECONDS:
            self._part = self._claim

    def _room(self, now: float, due: int = PARTS) -> int:
        """What the parts of others leave. Of one that overstays, only `due` counts."""
        taken = 0
        for name, seen in self._seen.items():
            overstays = now - self._over.get(name, now) >= OVERSTAY_SECONDS
            taken += min(seen.record.part, due) if overstays else seen.record.part
        return max(PARTS - taken, 0)


def _with_possible_parts(own: int, members: Mapping[str, Member]) -> dict[str, Member]:
    """The others; those who are not heard, with no more parts than those in contact leave.

    That changes nothing unless one is compromised: a silent one cannot take what all others have.
    """
    fair = PARTS // (1 + len(members))
    left = PARTS - own - sum(min(member.part, fair) for member in members.values() if member.heard)
    possible = divided(left, {name: member.part for name, member in members.items() if not member.heard})
    return {name: member._replace(part=possible.get(name, member.part)) for name, member in members.items()}
