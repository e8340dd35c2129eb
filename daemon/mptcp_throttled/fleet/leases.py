"""One rate over several proxies: how much of it this proxy holds.

Who holds what, and what is set aside:

* A 32nd of the rate is for floors: each proxy has its part of that, always and without asking.
* A 32nd is for proxies that join the fleet, and have no part yet.
* The rest, the pool, is leased by demand. A proxy out of contact has its part of the pool instead.

Each proxy states for each rate what it claims and what it wants, in a hash that no other may write. There is no
arbiter: each computes the same max-min fair division of the pool from what all want, which is the target of each.

Invariant: at each moment the sum of what all proxies hold is at most the rate. It follows from these rules:

1. A proxy holds more only after it has stated a claim of so much, then read record and statement of each other proxy
   at once, and then its own ones as stated, and this claim and those of all others fit into the pool.
2. It claims less only after the kernel has the lower rate. So of two that hold more, the second has read the claim of
   the first.
3. Its claims count for others while they hear it, and for `HEARD_SECONDS` after each change; afterwards its part of
   the pool is kept for it. Its leases lapse before: it then holds at most that part, until it is in contact again.
4. In a new session it states all claims before its record, so that no other hears it before they are known.
5. It holds no more in the first `HEARD_SECONDS` of a session: who holds what the server has lost has stated it again by
   then, or its leases have lapsed.

A compromised proxy takes at most what it claims: of what is free, and for `OVERSTAY_SECONDS`. After that it counts for
no more than the division gives it, which is no more than any other gets who wants as much. No floor is touched, and no
lease becomes less than its target.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from mptcp_throttled.fleet.division import divided
from mptcp_throttled.fleet.members import HEARD_SECONDS, OVERSTAY_SECONDS, PARTS, Member, Phase, Standing

_SET_ASIDE: Final = 32
"""One 32nd of the rate is for floors, and another one for proxies that join."""
_JOINING: Final = 5
"""The first that joins gets so small a fraction of that. If n are known to join, each gets an nth of this: the sum of
1/5n over 64 proxies, each of which knows those before it, is less than 1."""

_STATEMENT: Final = re.compile(r"([0-9a-f]{16}) ([0-9]{1,15}) ([0-9]{1,15})", re.ASCII)


class Statement(NamedTuple):
    """What a proxy states about a rate, in a session: what it claims and what it wants of the pool, in bits/s."""

    session: int
    claim: int
    wanted: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the value of a field. Raises ValueError."""
        match = _STATEMENT.fullmatch(text)
        if match is None:
            raise ValueError("is no statement; allowed: a session, and what is claimed and wanted in bits per second")
        return cls(int(match[1], 16), int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.session:016x} {self.claim} {self.wanted}"


def pool(whole: int) -> int:
    """What is leased of a rate."""
    return whole - 2 * -(-whole // _SET_ASIDE)


def floor(whole: int, standing: Standing) -> int:
    """What this proxy has of a rate without a lease.

    One that has no part yet, and is not in contact, cannot know of those that have joined meanwhile: the invariant does
    not hold for it.
    """
    if standing.part:
        return whole * standing.part // (_SET_ASIDE * PARTS)
    if standing.phase is not Phase.IN_CONTACT:
        return whole // standing.size
    return whole // (_SET_ASIDE * _JOINING * max(standing.joining, 1))


class Divisible(NamedTuple):
    """What is to be divided of a rate, in bits/s, as this proxy knows the fleet.

    `most` is the pool. Of that, `own` is this proxy's part, `parts` are those of the others. Of these, all are
    `reserved` but those of proxies that are surely in contact; `left` is for all that are heard.
    """

    standing: Standing
    most: int
    own: int
    parts: Mapping[str, int]
    reserved: int
    left: int

    @classmethod
    def of(cls, whole: int, standing: Standing) -> Self:
        """The rate `whole`."""
        most, members = pool(whole), standing.members
        parts = {name: most * member.part // PARTS for name, member in members.items()}
        reserved = sum(part for name, part in parts.items() if not members[name].surely)
        left = most - sum(part for name, part in parts.items() if not members[name].heard)
        return cls(standing, most, most * standing.part // PARTS, parts, reserved, left)

    @property
    def each(self) -> int:
        """What a rate without a lease has."""
        return self.own if self.standing.phase is Phase.AWAY else 0


class _Seen(NamedTuple):
    statement: Statement
    since: float

    def takes_part(self, member: Member) -> bool:
        """Whether it is of the session in which that proxy is heard."""
        return member.heard and self.statement.session == member.session


class _Over(NamedTuple):
    """Since when another claims more than it was due then."""

    due: int
    since: float


@dataclass(slots=True)
class Lease:
    """What this proxy holds of the pool of one rate: `amount`, in bits/s. Times are monotonic seconds of this host.

    `is_settled`: neither time nor a round changes anything until something else is wanted, read, or known of the fleet.
    The kernel does not either: it has no more than is claimed.
    """

    amount: int = 0
    stated: Statement | None = None
    is_settled: bool = False
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _over: dict[str, _Over] = field(default_factory=dict)

    def state(self, wanted: int, applied: int, divisible: Divisible, now: float) -> Statement:
        """What to state in a round that is sent now. `applied` is the most of the pool that the kernel may still give.

        Nothing needs to be written if it is what was `stated` before, in the same session.
        """
        target, _ = self._target_and_room(divisible, wanted, now)
        self.stated = Statement(divisible.standing.session, max(self.amount, applied, target), wanted)
        return self.stated

    def read(self, statements: Mapping[str, Statement], divisible: Divisible, now: float) -> bool:
        """Take what all have stated about the rate, as read in a round with the records behind `divisible`.

        False: the own statement is not what was stated, and the session is over.
        """
        standing = divisible.standing
        if self.stated is None or statements.get(standing.name) != self.stated:
            return False
        for name, statement in statements.items():
            if name in standing.members and (name not in self._seen or self._seen[name].statement != statement):
                self._seen[name] = _Seen(statement, now)
        for name, seen in list(self._seen.items()):
            if name not in statements and (standing.may_raise or now - seen.since >= HEARD_SECONDS):
                del self._seen[name]
        target, room = self._target_and_room(divisible, self.stated.wanted, now)
        self.amount = min(self.amount, target)
        if standing.may_raise and self.stated.session == standing.session:
            self.amount = max(self.amount, min(self.stated.claim, target, room))
        self.is_settled = self.stated.claim == target and not self._waits(statements, standing, now)
        return True

    def leave(self) -> None:
        """Nothing is stated any more: others would not know what this proxy wants."""
        self.stated, self.is_settled = None, False
        self._seen.clear()
        self._over.clear()

    def follow(self, divisible: Divisible, now: float) -> None:
        """Hold less, or the part of the pool, as time and what is known of the fleet ask for."""
        self.is_settled = False
        if divisible.standing.phase is not Phase.IN_CONTACT:
            self._over.clear()
        match divisible.standing.phase:
            case Phase.AWAY:
                self.amount = divisible.own
            case Phase.LAPSED:
                self.amount = min(self.amount, divisible.own)
            case Phase.IN_CONTACT:
                wanted = 0 if self.stated is None else self.stated.wanted
                self.amount = min(self.amount, self._target_and_room(divisible, wanted, now)[0])

    def _target_and_room(self, divisible: Divisible, own: int, now: float) -> tuple[int, int]:
        """What the division gives this proxy, if it wants so much, and what the claims of all others leave."""
        standing = divisible.standing
        wanted = {standing.name: own}
        claims: dict[str, int] = {}
        for name, seen in self._seen.items():
            member = standing.members.get(name)
            if member is None:
                continue
            takes_part = seen.takes_part(member)
            if takes_part:
                wanted[name] = seen.statement.wanted
            if takes_part or now - seen.since < HEARD_SECONDS:
                claims[name] = min(seen.statement.claim, divisible.most)
        targets = divided(divisible.left, wanted)
        taken, over = divisible.reserved, dict[str, _Over]()
        for name, claim in claims.items():
            member, part = standing.members[name], divisible.parts[name]
            due, counts = targets.get(name, 0) if member.heard else part, claim
            if claim > due:
                over[name] = self._over.get(name, _Over(claim, now))
                if claim <= over[name].due:
                    over[name] = _Over(due, now)
                elif now - over[name].since >= OVERSTAY_SECONDS:
                    counts = due
            taken += counts if member.surely else max(counts - part, 0)
        self._over = over
        return targets[standing.name], max(divisible.most - taken, 0)

    def _waits(self, statements: Mapping[str, Statement], standing: Standing, now: float) -> bool:
        """Whether time alone may change anything."""
        return bool(self._over) or any(
            now - seen.since < HEARD_SECONDS
            and not (name in statements and name in standing.members and seen.takes_part(standing.members[name]))
            for name, seen in self._seen.items()
        )
