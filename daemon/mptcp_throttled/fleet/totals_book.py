"""What this proxy has published and read of each client's budgets, and what is due next; pure but for its own state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mptcp_throttled.fleet.keys import MAX_FIELDS
from mptcp_throttled.fleet.totals import BelievedTotal, believed_earlier, is_settled, merged
from mptcp_throttled.vocabulary.budgets import AccountKey, Subject
from mptcp_throttled.vocabulary.fleet import FAR_SECONDS, Elsewhere, OwnTotal, UsedElsewhere

ROUND_TICKS: Final = 8
"""The number of ticks of a round, in which a client that carries something is read once, unless far from a stage."""

FAR_ROUNDS: Final = 8
"""A client that is far from a stage is read in one of this many rounds. Which clients are near depends on the rate of
all proxies together: a proxy reads often what others carry fast."""

REFUSED_SECONDS: Final = 60.0
"""For how long a hash whose answer is too long is not read."""

# In this time before a stage, or after the begin of a transfer, whose rate is unknown, each tick publishes and reads.
_NEAR_SECONDS: Final = 8.0
_BEGIN_SECONDS: Final = 3.0
# Up to that time before a stage, a client is read in each round; then, up to `FAR_SECONDS`, in every second round: at
# most a 32nd of the time left passes between two reads.
_MIDDLE_SECONDS: Final = 128.0
_MIDDLE_ROUNDS: Final = 2
# After that time without news, a client is idle, and not read. Far from a stage, the ledger tells once in `FAR_ROUNDS`.
_IDLE_SECONDS: Final = 40.0
_KNOWN_SECONDS: Final = 600.0
# How much the latest rate elsewhere counts in the average.
_WEIGHT: Final = 0.5
_LEAST_RATE: Final = 1000.0
_NOT_PUBLISHED: Final = -1
_NOTHING: Final = Elsewhere()


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A subject of a budget in a period; times are in monotonic seconds.

    `name` is that of its hash. It is due in the tick `turn` of each round, or only in one `round` of `FAR_ROUNDS`.
    `published` is what the server has of this proxy, as far as known. `content` is what was read last, without that;
    unless `is_settled`, more of it may be believed later. `is_unread`: it was not read since the connection began.
    """

    name: bytes
    total: OwnTotal
    turn: int
    round: int
    published: int = _NOT_PUBLISHED
    active: float = -math.inf
    near_until: float = -math.inf
    refused_until: float = -math.inf
    content: bytes = b""
    is_settled: bool = True
    is_unread: bool = True
    believed: Mapping[str, BelievedTotal] = dataclasses.field(default_factory=dict)
    elsewhere: Elsewhere = _NOTHING
    believed_at: float = -math.inf

    @property
    def is_published(self) -> bool:
        """Whether the server has had a total of this proxy since the connection began."""
        return self.published != _NOT_PUBLISHED

    def is_read_often(self, now: float) -> bool:
        """Whether it is to be read in other rounds than its own, too."""
        return (self.is_unread or self.total.seconds < FAR_SECONDS) and now - self.active <= _IDLE_SECONDS

    def is_due(self, number: int) -> bool:
        """Whether one that is to be read often is to be in the round of this `number`."""
        return self.is_unread or self.total.seconds < _MIDDLE_SECONDS or (number - self.round) % _MIDDLE_ROUNDS == 0

    def fields(self, known: Mapping[str, object]) -> tuple[str, ...]:
        """What to read of its hash: the fields of `known` proxies, and of others those whose totals count most."""
        absent = sorted(self.believed.keys() - known.keys(), key=lambda field: (-self.believed[field].total, field))
        return (*known, *absent[:MAX_FIELDS])

    def believe(self, totals: Mapping[str, int], now: float, age: float, link: float) -> None:
        """Take in what was read of the other proxies, as `merged`."""
        self.believed = merged(self.believed, totals, now, age, link)
        self.is_settled = is_settled(self.believed, totals)
        by_field = tuple((field, each.total) for field, each in self.believed.items())
        before, used = self.elsewhere, sum(total for _, total in by_field)
        rate = 0.0
        if math.isfinite(self.believed_at):
            latest = max(used - before.used, 0) / (now - self.believed_at) if now > self.believed_at else 0.0
            rate = before.rate + _WEIGHT * (latest - before.rate)
        self.believed_at = now
        self.elsewhere = Elsewhere(used, rate if rate > _LEAST_RATE else 0.0, by_field)

    @property
    def used_elsewhere(self) -> UsedElsewhere:
        """What is believed, for the ledger."""
        return UsedElsewhere(self.total.key, self.total.subject, self.total.period.start, self.elsewhere)


class TotalsBook:
    """The entries of all that this proxy has carried lately. For one thread.

    `name_of` gives the name of a total's hash.
    """

    def __init__(self, name_of: Callable[[OwnTotal], bytes]) -> None:
        self._name_of = name_of
        self._entries: dict[AccountKey, dict[Subject, Entry]] = {}
        # Of entries that are forgotten, by budget and start of the period.
        self._kept: dict[tuple[AccountKey, float], dict[Subject, Mapping[str, BelievedTotal]]] = {}
        self._unpublished: list[dict[Entry, None]] = [{} for _ in range(ROUND_TICKS)]
        # By turn and round, and by turn alone those that are read in other rounds, too.
        self._active: list[list[dict[Entry, None]]] = [[{} for _ in range(FAR_ROUNDS)] for _ in range(ROUND_TICKS)]
        self._read_often: list[dict[Entry, None]] = [{} for _ in range(ROUND_TICKS)]
        self._near: dict[Entry, None] = {}
        self._made = 0

    def note(self, totals: Iterable[OwnTotal], now: float) -> None:
        """These totals of this proxy have changed; at `now` in monotonic seconds."""
        key, entries = None, dict[Subject, Entry]()
        for total in totals:
            if total.key is not key:
                key = total.key
                entries = self._entries.setdefault(key, {})
            entry = entries.get(total.subject)
            if entry is None or entry.total.period is not total.period:
                entry = self._entry(entries, total)
            turn = entry.turn
            # One that is not idle is in `_active` already.
            if now - entry.active > _IDLE_SECONDS:
                entry.near_until = now + _BEGIN_SECONDS
                self._active[turn][entry.round][entry] = None
            entry.total, entry.active = total, now
            if entry.is_read_often(now):
                self._read_often[turn][entry] = None
            if total.seconds < _NEAR_SECONDS:
                entry.near_until = now + _NEAR_SECONDS / 2
            if entry.near_until > now:
                self._near[entry] = None
            if entry.published != total.used:
                self._unpublished[turn][entry] = None

    def _entry(self, entries: dict[Subject, Entry], total: OwnTotal) -> Entry:
        """The entry of a total among those of its budget, which may be a new one."""
        entry = entries.get(total.subject)
        if entry is not None and entry.total.period.start == total.period.start:
            return entry
        if entry is not None:
            self._forget(entry)
        self._made += 1
        number, turn = divmod(self._made, ROUND_TICKS)
        made = entries[total.subject] = Entry(self._name_of(total), total, turn, number % FAR_ROUNDS)
        believed = self._kept.get((total.key, total.period.start), {})
        made.believed = believed.pop(total.subject, {}) or believed_earlier(total.kept)
        return made

    def due_to_publish(self, tick: int) -> list[Entry]:
        """What is to be published in this tick: of those whose turn it is, and of those that are near to a stage."""
        due = dict.fromkeys(entry for entry in self._near if entry.published != entry.total.used)
        return [*(due | self._unpublished[tick % ROUND_TICKS])]

    def note_published(self, entries: Iterable[Entry]) -> None:
        """The server has the present totals of these."""
        for entry in entries:
            entry.published = entry.total.used
            self._unpublished[entry.turn].pop(entry, None)

    def note_replaced(self, entry: Entry) -> None:
        """The server has another total of this proxy than was published."""
        entry.published = _NOT_PUBLISHED
        self._unpublished[entry.turn][entry] = None

    def note_lost(self, totals: Iterable[OwnTotal]) -> None:
        """The server may have lost all that it had; `totals` are all of this proxy."""
        for entries in self._entries.values():
            for known in entries.values():
                known.published, known.is_unread = _NOT_PUBLISHED, True
        for often, rounds in zip(self._read_often, self._active, strict=True):
            for active in rounds:
                often |= active
        for total in totals:
            entry = self._entry(self._entries.setdefault(total.key, {}), total)
            self._unpublished[entry.turn][entry] = None

    def all_unpublished(self) -> list[Entry]:
        """What the server does not have."""
        return [entry for entries in self._unpublished for entry in entries]

    def due_to_read(self, tick: int, now: float) -> list[Entry]:
        """What is to be read in this tick: of those whose turn it is, and of those that are near to a stage."""
        turn, number = tick % ROUND_TICKS, tick // ROUND_TICKS % FAR_ROUNDS
        active, often = self._active[turn][number], self._read_often[turn]
        for entry in [entry for entry in active if now - entry.active > _IDLE_SECONDS]:
            del active[entry]
        for entry in [entry for entry in often if not entry.is_read_often(now)]:
            del often[entry]
        for entry in [entry for entry in self._near if entry.near_until <= now]:
            del self._near[entry]
        due = self._near | active | {entry: None for entry in often if entry.is_due(number)}
        return [entry for entry in due if entry.refused_until <= now]

    def forget_idle(self, now: float) -> None:
        """Forget those that have carried nothing for long, but not what is believed: the server may lose that."""
        for key, entries in self._entries.items():
            latest = max((entry.total.period.start for entry in entries.values()), default=-math.inf)
            for subject, entry in list(entries.items()):
                if now - entry.active > _KNOWN_SECONDS and entry not in self._unpublished[entry.turn]:
                    self._forget(entry)
                    del entries[subject]
                    if entry.believed:
                        self._kept.setdefault((key, entry.total.period.start), {})[subject] = entry.believed
            for earlier in [known for known in self._kept if known[0] == key and known[1] < latest]:
                del self._kept[earlier]

    def _forget(self, entry: Entry) -> None:
        turn = entry.turn
        for entries in (self._unpublished[turn], self._near, self._read_often[turn], self._active[turn][entry.round]):
            entries.pop(entry, None)

    def refuse(self, name: bytes, now: float) -> None:
        """The content of a hash is not to be read for a while."""
        for entries in self._entries.values():
            for entry in entries.values():
                if entry.name == name:
                    entry.refused_until = now + REFUSED_SECONDS
