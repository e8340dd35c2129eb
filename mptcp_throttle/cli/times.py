"""Times as people read them, in the time zone of the service."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo


def local_time(at: float, zone: str | None) -> datetime:
    """A time, in seconds since the epoch, in the zone with this IANA name; None: in that of this process."""
    return datetime.fromtimestamp(at).astimezone() if zone is None else datetime.fromtimestamp(at, ZoneInfo(zone))


def shown_time(at: float, zone: str | None) -> str:
    """Date, time and zone of a time, in seconds since the epoch: without a name, the zone's abbreviation."""
    local = local_time(at, zone)
    return f"{local:%Y-%m-%d %H:%M} ({zone})" if zone else f"{local:%Y-%m-%d %H:%M %Z}"
