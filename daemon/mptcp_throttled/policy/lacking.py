"""What the more preferred paths of a client lack of an `overflow`, from what they deliver. No thread, clock or kernel.

A client shall have the rate `overflow` in all while it asks for so much. What its more preferred paths do not deliver
of that becomes its cap. It asks for more while both hold, each on average over some observations:

* Its capped subflows carry the network's cap. Steering lets them send only while data waits.
* Its preferred paths have data unsent: they are what is slow, and not the client, whose receive window would stop MPTCP
  before it gives them so much.

The cap rises as soon as the client asks for more and paths lack it. It falls once they have lacked less for a second,
or once the client has not asked for two; small differences change nothing. So a path whose rate varies does not change
the cap at each observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

INTERVAL_SECONDS: Final = 0.25
"""Between two observations."""

_DELIVERED_SECONDS: Final = 0.3
"""Rates are averaged over so long."""
_CARRIED_SECONDS: Final = 0.4
"""The same of what capped subflows carry: one pulse is not enough."""
_UNSENT_SECONDS: Final = 0.6
"""The same of what is unsent: one queue is not enough, however long it is."""
_FALL_SECONDS: Final = 1.0
_USED_SECONDS: Final = 2.0
_USED: Final = 0.8
"""Of the network's cap: what capped subflows carry at least while they are used for what preferred paths lack."""
_UNSENT_BYTES: Final = 16 << 10
"""Half of what MPTCP gives a slow preferred subflow beyond what is in flight (bpf/socket.h, PREFERRED_UNSENT_LIMIT)."""
MOST_UNSENT_BYTES: Final = 24 << 10
"""More in one observation counts as this."""
_LEAST_CHANGE: Final = 0.1
"""Of the overflow."""
_STEP: Final = 8000
"""Bits per second: caps are multiples of it."""


class Sample(NamedTuple):
    """What has been observed of a client, since the last time.

    `overflow` and `cap` are those of its network, without what is raised; `carried` and `delivered` the rates of its
    capped subflows and of the preferred ones of their connections. All are in bits per second. `unsent` are the bytes
    that a preferred one has unsent, the largest number.
    """

    overflow: int
    cap: int
    carried: float
    delivered: float
    unsent: int


@dataclass(slots=True)
class Lack:
    """Follows one client. `lacking` (bits/s) is what its preferred paths lack; 0: its cap is not raised.

    `delivered` is the average; at first, paths deliver all that they shall. `high_since` is since when `lacking` is
    higher than what they lack now, `used` when the client last asked for more. Times are in monotonic seconds.
    """

    delivered: float
    seen: float
    carried: float = 0.0
    unsent: float = 0.0
    used: float = -math.inf
    lacking: int = 0
    high_since: float | None = None

    def asks(self, sample: Sample) -> bool:
        """Whether the client asks for more than its preferred paths and the cap carry."""
        return self.carried >= _USED * sample.cap and self.unsent >= _UNSENT_BYTES

    def is_idle(self, at: float) -> bool:
        """Whether nothing of what is known of the client counts any more: it has asked for nothing for long."""
        return not self.lacking and self.carried < 1 and at - self.used > _USED_SECONDS

    def follow(self, sample: Sample, seconds: float, at: float) -> None:
        """Take what has been observed over the last `seconds`, until `at`."""
        self.seen = at
        self.delivered += min(seconds / _DELIVERED_SECONDS, 1.0) * (sample.delivered - self.delivered)
        self.carried += min(seconds / _CARRIED_SECONDS, 1.0) * (min(sample.carried, sample.cap) - self.carried)
        self.unsent += min(seconds / _UNSENT_SECONDS, 1.0) * (min(sample.unsent, MOST_UNSENT_BYTES) - self.unsent)
        if self.asks(sample):
            self.used = at
        lacks = sample.overflow - self.delivered
        is_used = at - self.used < _USED_SECONDS
        wanted = round(lacks / _STEP) * _STEP if is_used and lacks > sample.cap else 0
        least = _LEAST_CHANGE * sample.overflow
        if wanted > self.lacking + least:
            # What paths carry while the client asks for nothing says nothing of what they lack.
            if self.used == at:
                self.lacking = wanted
            self.high_since = None
        elif wanted < self.lacking - least or (wanted == 0 < self.lacking):
            self.high_since = at if self.high_since is None else self.high_since
            if at - self.high_since >= _FALL_SECONDS:
                self.lacking, self.high_since = wanted, None
        else:
            self.high_since = None
