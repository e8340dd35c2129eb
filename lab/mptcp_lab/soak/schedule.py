"""What happens in each round of `benchmarks/soak`, from its seed alone.

A part of a run begins with rounds in which both services go on, so that what they hold can be compared from round to
round. In the rounds after that, they are restarted and killed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

STEADY: Final = 0.75
"""The part of the time in which the services go on."""

PART_SECONDS: Final = 1200.0
_MOST_PARTS: Final = 6


class Event(StrEnum):
    """What happens to the services or around them."""

    RELOAD = "configuration reloaded"
    REFUSED_RELOAD = "damaged configuration refused"
    WIFI_LOST = "Wi-Fi without a carrier"
    INTERFACE_DOWN = "interface of the proxy down and up"
    NEXT_DAY = "clock a day ahead"
    CLOCK_BACK = "clock set back by 10 minutes"
    DAEMON_RESTARTED = "daemon restarted"
    SNIFFER_RESTARTED = "sniffer restarted"
    DAEMON_KILLED = "daemon killed"
    DAEMON_CLEANED_UP = "daemon killed, clean-up"
    SNIFFER_KILLED = "sniffer killed"
    BOTH_KILLED = "both killed"


ENDS: Final = tuple(Event)[6:]
"""The events that end a service."""

GOES_ON: Final = tuple(Event)[:6]


@dataclass(frozen=True, slots=True)
class Planned:
    """An event, after a share `at` of the round."""

    at: float
    event: Event


def parts(seconds: float) -> int:
    """How many parts a run of `seconds` has."""
    return max(1, min(_MOST_PARTS, int(seconds / PART_SECONDS)))


def events_of_round(seed: int, number: int, share: float) -> tuple[Planned, ...]:
    """The events of the round `number`, which begins after this `share` of a part's time."""
    chance = random.Random(f"{seed} {number}")  # noqa: S311
    events = [chance.choice(GOES_ON), chance.choice(GOES_ON if share < STEADY else ENDS)]
    if share >= STEADY:
        events.append(chance.choice(ENDS))
    times = sorted(chance.uniform(0.1, 0.8) for _ in events)
    return tuple(Planned(at, event) for at, event in zip(times, events, strict=True))
