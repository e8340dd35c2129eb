"""Carries out an attack, and measures what it achieves: before, during and after it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab.adversary.attack import STILL_FLOWS, Adversary
from mptcp_lab.curve import MEGA
from mptcp_lab.process import wait_until
from mptcp_lab.sampler import PathMeter
from mptcp_lab.topology import ETHERNET

if TYPE_CHECKING:
    from mptcp_lab.adversary.attack import Attack, Site

PEAK_SECONDS: Final = 5.0
MOST_OF_RATE: Final = 1.05
"""What a throttled path may carry over any `PEAK_SECONDS`, as a factor of its rate."""

LEAST_OF_RATE: Final = 0.98
"""What a free path must still carry, as a factor of its rate before the attack."""

ON_BUSY_MACHINE: Final = (1.2, 0.9)
"""Both on a busy machine, which delays packets behind HTB, so that they arrive together. An attack that succeeds gives
several times the rate."""

_ATTEMPTS: Final = 3

_POLL_SECONDS: Final = 0.05
_SETTLED_SECONDS: Final = 3
_SETTLED: Final = 0.15
_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """What the client received over Ethernet, in Mb/s: the mean, and the most over any `PEAK_SECONDS`.

    Of `polls` of the daemon, how many showed a subflow over Ethernet `throttled`, and how many showed other subflows
    than at the beginning (`changed`).
    """

    rate: float
    peak: float
    polls: int
    throttled: int
    changed: int

    @property
    def share(self) -> float:
        """The share of polls that showed it throttled."""
        return self.throttled / self.polls


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured; `before` and `after` are None where it was not."""

    attack: Attack
    before: Window | None
    during: Window
    after: Window | None

    def held_off(self, most: float = MOST_OF_RATE, least: float = LEAST_OF_RATE) -> bool:
        """Whether a throttled path stayed within `most` of its rate, or a free path kept `least` of it.

        If the attack is from off the path, also whether the daemon showed the same subflows throughout.
        """
        during = self.during
        if self.attack.by is Adversary.OFF_PATH and (during.changed or during.share != self.attack.throttled):
            return False
        if self.attack.throttled:
            rate = self.attack.rate.bits_per_second / MEGA
            return self.attack.least * rate <= during.rate and during.peak <= most * rate
        return self.before is not None and during.rate >= least * self.before.rate


def carry_out(attack: Attack, site: Site, seconds: float, *, around: bool = True) -> Outcome:
    """Measure for `seconds` each, `PEAK_SECONDS` or more: before, during and after; not `around`: only what is needed.

    Raises LabError if the path does not have its rate before the attack.
    """
    client = site.lab.clients[attack.client]
    with attack.begin(site) as act, PathMeter(client, (ETHERNET.interface,)) as meter:
        trial = _Trial(site, meter)
        trial.wait_settled((attack.rate_before or attack.rate).bits_per_second / MEGA, attack.least)
        before = trial.window(seconds) if around or not attack.throttled else None
        with act():
            time.sleep(attack.grace)
            during = trial.window(seconds)
        after = trial.window(seconds) if around and not attack.lasting else None
    return Outcome(attack, before, during, after)


def holds_off_on_busy_machine(attack: Attack, site: Site, seconds: float) -> Outcome:
    """Carry it out; again if it was not held off while sockets of the proxy had retransmission timeouts.

    A busy machine delays acknowledgments beyond the retransmission timeout. After two timeouts in a row over Wi-Fi the
    proxy's kernel sends nothing there, and Ethernet is free by design. Such an outcome shows nothing about the attack.
    """
    for _ in range(_ATTEMPTS):
        before = _timeouts(site)
        outcome = carry_out(attack, site, seconds, around=False)
        if outcome.held_off(*ON_BUSY_MACHINE) or _timeouts(site) == before:
            break
    return outcome


def _timeouts(site: Site) -> int:
    """How often a socket of the proxy has had a retransmission timeout."""
    return site.lab.proxy.counter("TcpExtTCPTimeouts")


class _Trial:
    def __init__(self, site: Site, meter: PathMeter) -> None:
        self._site = site
        self._meter = meter

    def wait_settled(self, rate: float, least: float) -> None:
        """Wait until the path has had this rate, in Mb/s, for some seconds: TCP knows it, and queues have drained.

        If less than half of it is enough, `least` of it is.
        """
        lowest = rate * (least if least < STILL_FLOWS else 1 - _SETTLED)

        def settled() -> bool:
            now, curve = self._meter.interfaces[-1].at, self._meter.received(ETHERNET.interface)
            seconds = (curve.mbps(now - ago - 1, now - ago) for ago in range(_SETTLED_SECONDS))
            return all(lowest <= mbps <= (1 + _SETTLED) * rate for mbps in seconds)

        wait_until(settled, f"{rate:g} Mb/s over Ethernet before the attack", _PATIENCE_SECONDS)

    def window(self, seconds: float) -> Window:
        """What happens in the next seconds."""
        polls = throttled = changed = 0
        began, known = time.monotonic(), self._shown()
        while (now := time.monotonic()) < began + seconds:
            shown = self._shown()
            polls += 1
            throttled += any(shown.values())
            changed += shown.keys() != known.keys()
            time.sleep(max(now + _POLL_SECONDS - time.monotonic(), 0.0))
        wait_until(lambda: self._meter.interfaces[-1].at >= now, "sampled")
        curve = self._meter.received(ETHERNET.interface)
        steps = int((now - began - PEAK_SECONDS) / _POLL_SECONDS)
        starts = (began + step * _POLL_SECONDS for step in range(steps + 1))
        peak = max(curve.mbps(start, start + PEAK_SECONDS) for start in starts)
        return Window(curve.mbps(began, now), peak, polls, throttled, changed)

    def _shown(self) -> dict[tuple[str, str, int], bool]:
        """The subflows that the daemon shows, and whether they are throttled over Ethernet."""
        return {
            (subflow.token, subflow.client, subflow.client_port): subflow.network == "ethernet"
            and subflow.kind is not None
            for subflow in self._site.services.subflows()
        }
