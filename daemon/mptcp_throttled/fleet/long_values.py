"""Values that are far too long for totals. Reading one costs the connection, since the answer then exceeds its bound.

Pure but for its own state.
"""

from __future__ import annotations

from typing import Final

UNREAD_SECONDS: Final = 600.0
"""For how long such a value is not read again."""

MOST_OF_FIELD: Final = 8
"""A field that has them in this many hashes is not read at all: more of them cost no more connections."""


class LongValues:
    """In which hashes which fields have such values. For one thread; `now` is in monotonic seconds."""

    def __init__(self) -> None:
        # By field and name of the hash, until when it is not read.
        self._until: dict[str, dict[bytes, float]] = {}

    def note(self, name: bytes, field: str, now: float) -> None:
        """This field of this hash has one."""
        self._until.setdefault(field, {})[name] = now + UNREAD_SECONDS

    def forget(self, now: float) -> None:
        """Forget those that may be read again."""
        kept = {field: {name: at for name, at in hashes.items() if at > now} for field, hashes in self._until.items()}
        self._until = {field: hashes for field, hashes in kept.items() if hashes}

    def readable(self, name: bytes, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the fields of a hash that may be read."""
        if not self._until:
            return fields
        return tuple(field for field in fields if not self._is_unread(name, field))

    def _is_unread(self, name: bytes, field: str) -> bool:
        hashes = self._until.get(field)
        return hashes is not None and (name in hashes or len(hashes) >= MOST_OF_FIELD)
