"""What the kernel programs have counted about their own work."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class UplinkCounters:
    """What the program for uplinks has counted since it was loaded.

    `appended` options; segments `without_room` for one; ACKs that were `repeated`, and those that could not be:
    `not_repeated`. `policed` is how often the policing of a subflow has begun, `dropped` the segments dropped by it.
    """

    appended: int = 0
    without_room: int = 0
    repeated: int = 0
    not_repeated: int = 0
    policed: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ProgramCounters:
    """What the kernel program has counted since it was attached.

    `totals_lost` subflows closed while the ring buffer was full. `sockets_refused`: how often the kernel refused to set
    an option of a socket, or to store its state. `not_compared`: connections left out of the comparison with the
    control group, for want of room.
    """

    totals_lost: int = 0
    sockets_refused: int = 0
    not_compared: int = 0


@dataclass(frozen=True, slots=True)
class DiscardCounters:
    """What the discard-prevention programs have counted since they were loaded.

    `lowered` DATA_ACKs, and `keep_alives` sent on subflows that have joined.
    """

    lowered: int = 0
    keep_alives: int = 0


@dataclass(frozen=True, slots=True)
class SteeringCounters:
    """What the steering programs have counted since they were loaded.

    How often MPTCP at the proxy was told that a subflow is a backup (`as_backup`), that it is regular (`as_regular`),
    or either of these once more because it had not noticed (`again`), and how often it could not be told (`not_told`).
    `pulses` were begun. `not_steered` are packets of subflows for which the programs had no room.
    """

    as_backup: int = 0
    as_regular: int = 0
    again: int = 0
    pulses: int = 0
    not_told: int = 0
    not_steered: int = 0


Counters = UplinkCounters | ProgramCounters | DiscardCounters | SteeringCounters


def numbers_of(counters: Counters) -> dict[str, int]:
    """What was counted, by name. Each step of the loop calls it, for which dataclasses.asdict is too slow."""
    return {name: getattr(counters, name) for name in _NAMES[type(counters)]}


_NAMES: Final = {
    each: tuple(field.name for field in fields(each))
    for each in (UplinkCounters, ProgramCounters, DiscardCounters, SteeringCounters)
}
