"""The leases of a proxy, of which a round looks only at those that anything may have changed.

Of ten thousand clients, few ask for something else in a second. A lease that is settled is looked at again once
something else is wanted of it, or stated by any proxy, or once the fleet is another one: nothing else changes what a
lease says or holds. `tests/unit/test_leases.py` searches for a fault of the rule through this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from mptcp_throttled.fleet.leases import Divisible, Lease, Statement, floor
from mptcp_throttled.fleet.members import Standing

Key = TypeVar("Key")


class Changes(NamedTuple, Generic[Key]):
    """The statements that a round writes and deletes."""

    writes: Mapping[Key, Statement]
    deletes: tuple[Key, ...]


class LeaseSet(Generic[Key]):
    """The leases of rates of `whole` bits/s each, in a fleet of this `standing`. Times are monotonic seconds.

    `amounts` has what this proxy holds of each pool beyond `each`. The mapping is never changed, but replaced.
    Amounts of an earlier instance are held and wanted at first.
    """

    def __init__(self, whole: int, amounts: Mapping[Key, int], standing: Standing, now: float) -> None:
        self._whole = whole
        self.amounts: Mapping[Key, int] = amounts
        self._leases = {key: Lease(amount, Statement(0, amount, amount)) for key, amount in amounts.items()}
        self._wanted: Mapping[Key, int] = {key: floor(whole, standing) + amount for key, amount in amounts.items()}
        self._unsettled = dict(self._leases)
        self._follow_all(Divisible.of(whole, standing), now)

    @property
    def each(self) -> int:
        """What each rate has of the pool, with a lease or without."""
        return self._divisible.each

    @property
    def wanted(self) -> Mapping[Key, int]:
        """What is wanted of each rate."""
        return self._wanted

    def want(self, wanted: Mapping[Key, int], now: float) -> None:
        """So much of each rate is wanted; nothing of all others. The mapping must not be changed later."""
        changed = [key for key, most in wanted.items() if self._wanted.get(key) != most]
        # By a set, no key is hashed again.
        changed += set(self._wanted).difference(wanted)
        self._wanted = wanted
        new: dict[Key, Lease] = {}
        for key in changed:
            lease = self._leases.get(key)
            if lease is None:
                lease = new[key] = Lease()
                lease.follow(self._divisible, now)
            self._unsettled[key] = lease
        self._leases |= new
        self._note(new)

    def begin(self) -> None:
        """A session begins: all is to be stated."""
        self._unsettled = dict(self._leases)

    def follow(self, standing: Standing, now: float) -> None:
        """What time alone changes, which it does by what is known of the fleet."""
        if standing != self._divisible.standing:
            self._unsettled = dict(self._leases)
            self._follow_all(Divisible.of(self._whole, standing), now)

    def _follow_all(self, divisible: Divisible, now: float) -> None:
        self._divisible = divisible
        for lease in self._leases.values():
            lease.follow(divisible, now)
        self._note(self._leases)

    def compose(self, base: int, applied: Callable[[Key], int], now: float) -> Changes[Key]:
        """What to write and to delete in a round that is sent now.

        Each client has `base` without a lease. `applied` is the most of the pool of a rate that the kernel may still
        give.
        """
        writes: dict[Key, Statement] = {}
        deletes = []
        session = self._divisible.standing.session
        for key, lease in list(self._unsettled.items()):
            wanted = max(self._wanted.get(key, 0) - base, 0)
            written = None if lease.stated is None or lease.stated.session != session else lease.stated
            if wanted and lease.is_settled and written is not None and written.wanted == wanted:
                del self._unsettled[key]
                continue
            given = applied(key)
            if wanted or lease.amount or given or (written is not None and (written.claim or written.wanted)):
                statement = lease.state(wanted, given, self._divisible, now)
                if statement != written:
                    writes[key] = statement
                continue
            lease.leave()
            del self._unsettled[key]
            if written is not None:
                deletes.append(key)
            if not self._wanted.get(key, 0):
                del self._leases[key]
        return Changes(writes, tuple(deletes))

    def take(
        self,
        statements: Mapping[Key, Mapping[str, Statement]],
        changed: Iterable[Key],
        standing: Standing,
        now: float,
    ) -> bool:
        """Take what all have stated of the rates that this proxy has stated; `changed` are those of which that is
        something else than before in this session. False: an own statement is not as stated: the session is over.
        """
        is_new = standing != self._divisible.standing
        if is_new:
            self._divisible = Divisible.of(self._whole, standing)
        self._unsettled |= self._leases if is_new else {key: self._leases[key] for key in changed}
        goes_on = True
        for key, lease in self._unsettled.items():
            stated = statements.get(key)
            if stated is not None:
                goes_on &= lease.read(stated, self._divisible, now)
        self._note(self._unsettled)
        return goes_on

    def _note(self, leases: Mapping[Key, Lease]) -> None:
        """Amounts of these may be others."""
        before = self.amounts
        changed = {key: lease.amount for key, lease in leases.items() if lease.amount != before.get(key, 0)}
        if changed:
            amounts = {**self.amounts, **changed}
            for key, amount in changed.items():
                if not amount:
                    del amounts[key]
            self.amounts = amounts
