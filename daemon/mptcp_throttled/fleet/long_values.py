"""Values that are far too long for totals. Reading one costs the connection, since the answer then exceeds its bound.

Pure but for its own state.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FIRST_SECONDS: Final = 20.0
"""For how long such a value is not read again at first: a proxy that uses its hash has written it again by then."""

UNREAD_SECONDS: Final = 600.0
"""For how long at most. It doubles each time, if that was less than this ago."""

MOST_OF_FIELD: Final = 8
"""A field that has them in this many hashes is not read at all: more of them cost no more connections."""


class _Noted(NamedTuple):
    name: bytes
    at: float


class LongValues:
    """In which hashes which fields have such values. For one thread; `now` is in monotonic seconds."""

    def __init__(self) -> None:
        # By field and name of the hash, until when it is not read.
        self._until: dict[str, dict[bytes, float]] = {}
        self._noted: dict[str, list[_Noted]] = {}

    def note(self, name: bytes, field: str, now: float) -> None:
        """This field of this hash has one."""
        noted = _recent(self._noted.get(field, []), now)
        times = max(sum(each.name == name for each in noted), len(noted) // MOST_OF_FIELD)
        self._noted[field] = [*noted, _Noted(name, now)]
        self._until.setdefault(field, {})[name] = now + min(FIRST_SECONDS * 2**times, UNREAD_SECONDS)

    def forget(self, now: float) -> None:
        """Forget those that may be read again."""
        kept = {field: {name: at for name, at in hashes.items() if at > now} for field, hashes in self._until.items()}
        self._until = {field: hashes for field, hashes in kept.items() if hashes}
        self._noted = {field: noted for field, noted in self._noted.items() if _recent(noted, now)}

    def readable(self, name: bytes, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the fields of a hash that may be read."""
        if not self._until:
            return fields
        return tuple(field for field in fields if not self._is_unread(name, field))

    def _is_unread(self, name: bytes, field: str) -> bool:
        hashes = self._until.get(field)
        return hashes is not None and (name in hashes or len(hashes) >= MOST_OF_FIELD)


def _recent(noted: list[_Noted], now: float) -> list[_Noted]:
    return [each for each in noted if each.at > now - UNREAD_SECONDS]
