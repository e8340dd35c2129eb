"""The shortfall of a client: what its more preferred paths lack of its network's `overflow`.

`overflow` is the rate that a client shall have over all its paths, if it asks for it. The part that its more preferred
paths do not deliver is the shortfall, and becomes its cap. A client asks for more than its preferred paths and the cap
carry while both hold, each on average over some observations:

* Its capped subflows carry the network's cap. Steering lets them send only while data waits. If a more preferred
  network has a raised cap, it is enough that the client uses all of that: subflows of both networks wait for the same
  data, and few pulses are left for the less preferred one.
* Its preferred paths have data unsent. So they are slow, and not the client: its receive window would stop MPTCP before
  that.

The cap rises as soon as the client asks for more and its paths have a shortfall. It falls when the shortfall has been
smaller for a second, or when the client has not asked for more for two. Small differences change nothing. So a path
whose rate varies does not change the cap at each observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

INTERVAL_SECONDS: Final = 0.25
"""Between two observations."""

_DELIVERED_SECONDS: Final = 0.3
"""Time constant of the average of what preferred paths deliver."""
_CARRIED_SECONDS: Final = 0.4
"""Time constant for what capped subflows carry: one pulse does not raise the average enough."""
_UNSENT_SECONDS: Final = 0.6
"""Time constant for unsent bytes: one queue does not raise the average enough, however long it is."""
_FALL_SECONDS: Final = 1.0
"""How long the shortfall must have been smaller before the cap falls."""
_USED_SECONDS: Final = 2.0
"""How long a client counts as asking for more after it last did."""
_USED: Final = 0.8
"""Capped subflows that carry this fraction of the network's cap use all of it."""
_UNSENT_BYTES: Final = 16 << 10
"""Half of what MPTCP gives a slow preferred subflow beyond what is in flight (bpf/socket.h, PREFERRED_UNSENT_LIMIT)."""
MOST_UNSENT_BYTES: Final = 24 << 10
"""An observation of more unsent bytes counts as this."""
_LEAST_CHANGE: Final = 0.1
"""Smaller differences, as a fraction of the overflow, do not change the cap."""
_STEP: Final = 8000
"""Caps are multiples of this, in bits/s."""


class Sample(NamedTuple):
    """What a client was observed to do since the last observation.

    `overflow` is that of its network, `cap` the cap that applies without it. `carried` is the rate of its capped
    subflows, `delivered` that of the preferred subflows of the same connections. All four are in bits/s. `unsent` is
    the largest number of bytes that one of these preferred subflows has not sent yet. `preferred_used_up`: the
    client has raised caps on more preferred networks, and uses all of them.
    """

    overflow: int
    cap: int
    carried: float
    delivered: float
    unsent: int
    preferred_used_up: bool = False


@dataclass(slots=True)
class Shortfall:
    """Follows one client. `rate` is its shortfall in bits/s; 0: its cap is not raised.

    `delivered`, `carried`, `total` and `unsent` are averages; `delivered` begins with the overflow, as if nothing were
    lacking. `total` is what capped subflows carry, and `carried` that up to the cap without the overflow.
    `high_since` is since when `rate` is more than the present shortfall, `used` when the client last asked for more,
    `seen` when it was last observed: all in monotonic seconds.
    """

    delivered: float
    seen: float
    carried: float = 0.0
    total: float = 0.0
    unsent: float = 0.0
    used: float = -math.inf
    rate: int = 0
    high_since: float | None = None

    def asks(self, sample: Sample) -> bool:
        """Whether the client asks for more than its preferred paths and the cap carry."""
        return (self.carried >= _USED * sample.cap or sample.preferred_used_up) and self.unsent >= _UNSENT_BYTES

    def has_asked(self, at: float) -> bool:
        """Whether it counts as asking for more."""
        return at - self.used < _USED_SECONDS

    def is_used_up(self, cap: int, at: float) -> bool:
        """Whether the client uses all of `cap`, its present one in bits/s, and asks for more."""
        return self.total >= _USED * cap and self.has_asked(at)

    def is_idle(self, at: float) -> bool:
        """Whether the client need not be followed: its cap is not raised, and it has not asked for more lately."""
        return not self.rate and self.carried < 1 and at - self.used > _USED_SECONDS

    def follow(self, sample: Sample, seconds: float, at: float) -> None:
        """Take what was observed in the last `seconds`, until `at`."""
        self.seen = at
        self.delivered += min(seconds / _DELIVERED_SECONDS, 1.0) * (sample.delivered - self.delivered)
        self.carried += min(seconds / _CARRIED_SECONDS, 1.0) * (min(sample.carried, sample.cap) - self.carried)
        self.total += min(seconds / _CARRIED_SECONDS, 1.0) * (sample.carried - self.total)
        self.unsent += min(seconds / _UNSENT_SECONDS, 1.0) * (min(sample.unsent, MOST_UNSENT_BYTES) - self.unsent)
        if self.asks(sample):
            self.used = at
        missing = sample.overflow - self.delivered
        wanted = round(missing / _STEP) * _STEP if self.has_asked(at) and missing > sample.cap else 0
        least = _LEAST_CHANGE * sample.overflow
        if wanted > self.rate + least:
            # What paths deliver while the client asks for nothing does not tell what they could deliver.
            if self.used == at:
                self.rate = wanted
            self.high_since = None
        elif wanted < self.rate - least or (wanted == 0 < self.rate):
            self.high_since = at if self.high_since is None else self.high_since
            if at - self.high_since >= _FALL_SECONDS:
                self.rate, self.high_since = wanted, None
        else:
            self.high_since = None
