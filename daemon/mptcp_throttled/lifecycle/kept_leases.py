"""What the next instance needs to know of shared rates: a file in the state directory.

`{"format": 1, "part": ..., "known": {NAME: ...}, "boot": ..., "contact": ..., "last_sent": ...,
"leases": [[NETWORK, CLIENT, DIRECTION, AMOUNT], ...]}`: parts are of `PARTS`, amounts of `WHOLE`. Leases, and times in
monotonic seconds, count only on the same boot, and are written at the end of an instance.
"""

from __future__ import annotations

import json
import logging
import math
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.model import Direction
from mptcp_throttled.fleet.lease_book import Kept
from mptcp_throttled.fleet.members import MOST_MEMBERS, PARTS, Record
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey

_log = logging.getLogger("mptcp-throttled")

_FORMAT: Final = 1


class KeptLeases:
    """The file, for the daemon alone: it names clients. What cannot be read is as if it were not there."""

    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._written: tuple[int, dict[str, int]] | None = None

    def load(self, now: float) -> Kept:
        """What an earlier instance has kept; `now` is in monotonic seconds."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            kept = _parsed(document)
            same_boot = document["boot"] == self._boot and max(kept.contact, kept.last_sent) <= now
        except FileNotFoundError:
            return Kept()
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s: cannot be used, so this proxy joins the fleet again: %s", self._path, error)
            return Kept()
        return kept if same_boot else Kept(kept.part, kept.known)

    def save(self, kept: Kept, *, is_end: bool) -> None:
        """Keep it; but for the end of an instance, only if a part has changed."""
        parts = kept.part, {name: record.part for name, record in kept.known.items()}
        if parts == self._written and not is_end:
            return
        leases = [[key.network, str(key.client), key.direction, amount] for key, amount in kept.leases.items()]
        document = {
            "format": _FORMAT,
            "part": kept.part,
            "known": parts[1],
            "boot": self._boot,
            "contact": kept.contact if is_end and math.isfinite(kept.contact) else None,
            "last_sent": kept.last_sent if is_end else None,
            "leases": leases if is_end else [],
        }
        try:
            write_atomically(self._path, json.dumps(document), mode=0o600)
            self._written = parts
        except OSError as error:
            _log.warning("%s: cannot be written: %s", self._path, error.strerror)


def _parsed(document: dict[str, object]) -> Kept:
    """Raises ValueError, KeyError and TypeError."""
    part, known, leases = document["part"], document["known"], document["leases"]
    if document["format"] != _FORMAT or not isinstance(known, dict) or not isinstance(leases, list):
        raise ValueError("is of another format")
    contact, last_sent = (_time(document[name]) for name in ("contact", "last_sent"))
    records = {str(name): Record(0, 0, _number(each, PARTS)) for name, each in known.items()}
    if len(records) >= MOST_MEMBERS:
        raise ValueError("has too many proxies")
    amounts = {
        RateKey(str(network), ip_address(client), Direction(direction)): _number(amount, WHOLE)
        for network, client, direction, amount in leases
    }
    return Kept(_number(part, PARTS), records, contact, last_sent, amounts)


def _time(value: object) -> float:
    return -math.inf if value is None else float(str(value))


def _number(value: object, most: int) -> int:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("has a number that is out of range")
    return value
