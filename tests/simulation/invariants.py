"""What must hold at every instant of a run (docs/contribute/invariants.md), as far as a model can show it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from byte_mirror import calendar_period
from expected_overflow import Expected
from model_kernel import dangling
from violation import Violation

from mptcp_throttle.model import Every, FourTuple
from mptcp_throttled.vocabulary.budgets import AccountKey

if TYPE_CHECKING:
    from modelled_proxy import ModelSocket
    from world import World

    from mptcp_throttle.units import Rate
    from mptcp_throttled.accounting.budget_account import BudgetAccount
    from mptcp_throttled.vocabulary.decision import Share, Throttle
    from mptcp_throttled.vocabulary.snapshot import Snapshot

SETTLE_SECONDS: Final = 20.0
"""After a fault: four times `reconcile_interval`, the longest back-off."""

RETRIED_SECONDS: Final = 8.0
"""After a refusal: the longest back-off, and the full reconcile that may follow."""

STRANDED_SECONDS: Final = 0.5
"""From the end of a path, by the kernel's account, to the end of the cap."""

SILENT_SECONDS: Final = 1.7
"""The same for a path that dies in silence: the kernel list is read once a second."""

ESCAPED_SECONDS: Final = 2.5
"""From a change to the cap: new connections are told of when they are a second old."""

HEALTH_SECONDS: Final = 6.0
"""More, if a path has become sick or healthy: the daemon asks once a `reconcile_interval`."""

BLIND_SECONDS: Final = 6.0
"""From the end of the sniffer to the end of all caps, if the daemon must wait for a call that is lost."""

DISHONEST_SECONDS: Final = 5.0
"""I8: from a difference between what is said and what is in the kernel to its report."""

_PERIOD_SECONDS: Final = 2 * 3600.0 + 60.0
"""Until a clock that was set is trusted, if nothing says that it is right: an hour, and the next observation."""

_CORRECTED_SECONDS: Final = 100.0
"""By which a clock that is said to be right may be set back."""

_MOST_STEPS: Final = 400
"""Of the loop in one second."""

_MOST_CLASSES: Final = 400
_INVARIANTS: Final = {"dishonest": "I8", "wrong reason": "I12", "wrong words": "I12", "downlink burst": "I8"}
QUIET_SECONDS: Final = 200.0
"""After the last socket: orphans are forgotten after 75 s, sockets that were not reported after 120 s."""


class Checker:
    """Looks at the world after each event. Raises Violation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._wrong: dict[tuple[str, FourTuple], float] = {}
        self._periods: dict[AccountKey, tuple[float, float]] = {}
        self._steps = 0
        self._second = 0
        self.checks = 0

    def note_step(self) -> None:
        """The loop has made a step."""
        second = int(self._world.clock.now)
        self._steps = self._steps + 1 if second == self._second else 1
        self._second = second
        if self._steps > _MOST_STEPS:
            raise Violation(f"I4: more than {_MOST_STEPS} steps of the loop in a second")

    def note_restart(self) -> None:
        """There is another instance of the daemon."""
        self._periods.clear()

    def check(self) -> None:
        """Everything that holds at each instant."""
        self.checks += 1
        world, kernel = self._world, self._world.proxy.kernel
        if kernel.dangling:
            if world.clock.now > world.excused_until:
                raise Violation("I7: an assignment has named a class that was not there")
            kernel.dangling = dangling(kernel.state)
        if not world.proxy.sockets and not self._wrong:
            return
        if world.daemon is None:
            self._wrong.clear()
            return
        self._check_foreign()
        self._check_unsupervised()
        self._check_rates()

    def _check_foreign(self) -> None:
        """I1: nothing of plain TCP, nor of clients in no network, is touched."""
        world = self._world
        paces = world.proxy.kernel.state.pacing.paces or {}
        for ends in (*world.proxy.kernel.minors, *paces, *world.proxy.uplinks.throttled, *world.proxy.steering.caps):
            socket = world.proxy.sockets.get(ends)
            if socket is None:
                continue
            if socket.token is None:
                raise Violation(f"I1: plain TCP is touched: {ends}")
            if world.mirror.company.place_of(socket) is None:
                raise Violation(f"I1: a client in no network is touched: {ends}")

    def _check_unsupervised(self) -> None:
        """I2: while nothing is known to be alive, all subflows are free."""
        world = self._world
        if world.clock.now <= world.blind_from or world.kernel_refuses:
            return
        held = [ends for ends in world.proxy.kernel.throttled if ends in world.proxy.sockets]
        if held:
            raise Violation(f"I2: without a sniffer, {len(held)} subflows are throttled")

    def _check_rates(self) -> None:
        world = self._world
        assert world.daemon is not None
        throttled, uplinks = world.proxy.kernel.throttled, world.proxy.uplinks.throttled
        snapshot, now = world.daemon.snapshot, world.clock.now
        present: dict[tuple[str, FourTuple], tuple[float, str]] = {}
        silent = SILENT_SECONDS if now - world.silent_at < SETTLE_SECONDS else STRANDED_SECONDS
        late = HEALTH_SECONDS if now - world.sick_at < SETTLE_SECONDS else 0.0
        for socket, down, up, *why in world.expected.throttles(world.config):
            ends = socket.ends
            rates = (("downlink", down, throttled.get(ends)), ("uplink", up, _rate(uplinks.get(ends))))
            for direction, wanted, actual in rates:
                kind = _difference(wanted, actual)
                if kind is not None and not (socket.closing and kind == "free"):
                    bound = late + (silent if kind == "too slow" else ESCAPED_SECONDS)
                    text = f"{ends.client} has {_shown(actual)} on its {direction}, and should have {_shown(wanted)}"
                    present[f"{direction} {kind}", ends] = bound, text
                elif actual is not None and actual.burst != self._burst(socket, direction, actual):
                    text = f"{ends.client} has a burst of {actual.burst} bytes on its {direction} of {actual}"
                    present[f"{direction} burst", ends] = ESCAPED_SECONDS, text
            for shown, words in zip(_reasons(snapshot, socket), why, strict=False):
                if not shown.startswith(words):
                    text = f"{ends.client}: the reason shown is {shown!r}, and should be {' or '.join(words)!r}"
                    present["wrong words", ends] = late + ESCAPED_SECONDS, text
            said = snapshot.throttled.get(ends)
            if (None if said is None else said.throttle.rate) != throttled.get(ends):
                text = f"{ends.client}: {_rate(None if said is None else said.throttle)} is said to be applied"
                present["dishonest", ends] = DISHONEST_SECONDS, f"{text}, {throttled.get(ends)} is"
            if said is not None and wanted_rule(down) is not None:
                rule = snapshot.terms.term(said.throttle.share).rule
                is_own = down is not None and down.has(said.throttle.rate.bits_per_second)
                if is_own and down is not None and rule != down.rule and not _is_bounded(snapshot, said.throttle.share):
                    text = f"{ends.client}: the reason shown is {rule}, but {down.rule} has acted"
                    present["wrong reason", ends] = late + STRANDED_SECONDS, text
        self._wrong = {key: self._wrong.get(key, now) for key in present}
        for key, since in self._wrong.items():
            bound, text = present[key]
            lasts = now - max(since, world.excused_until)
            if lasts > bound:
                invariant = _INVARIANTS.get(key[0], "I2" if "slow" in key[0] else "I7")
                raise Violation(f"{invariant}: for {lasts:.2f} s: {text}")
            if lasts >= -bound:
                world.look_at(max(since, world.excused_until) + bound + 0.001)

    def _burst(self, socket: ModelSocket, direction: str, rate: Rate) -> int:
        """That of a rate: no more than it carries in a minute; uplinks have none."""
        place = self._world.mirror.company.place_of(socket)
        if place is None or direction == "uplink":
            return 0
        return min(place.network.burst, rate.bytes_per_second * 60) // 1000 * 1000

    def check_observation(self, sockets: Iterable[ModelSocket]) -> None:
        """After each observation: what was counted, and which periods have begun."""
        world = self._world
        daemon = world.daemon
        assert daemon is not None
        world.mirror.check_clients(daemon.ledger, sockets)
        at = world.clock.time()
        if world.clock_is_right_since > world.clock.now - _PERIOD_SECONDS:
            self._periods = {key: _period(account) for key, account in daemon.ledger._accounts.items()}
            if world.config.daemon.wait_for_clock and world.clock.is_synchronised:
                for key, (begin, end) in self._periods.items():
                    if not begin - _CORRECTED_SECONDS <= at < end:
                        raise Violation(f"I11: {key} is in the period {begin, end} at {at}")
            return
        for key, account in daemon.ledger._accounts.items():
            before, present = self._periods.get(key), _period(account)
            if not present[0] <= at < present[1]:
                raise Violation(f"I11: {key} is in the period {present} at {at}")
            if before != present:
                calendar = calendar_period(account.budget, at, world.config.time_zone)
                begin = calendar[0] if account.budget.rolling else max(calendar[0], before[1] if before else -math.inf)
                # A reload may have changed the day on which months begin.
                if before is None and account.budget.every is not Every.MONTH:
                    begin = present[0] if account.budget.rolling else calendar[0]
                    before = begin, calendar[1]
                if before is not None and present != (begin, calendar[1]):
                    raise Violation(f"I11: {key} has begun the period {present}, and not {(begin, calendar[1])}")
                self._periods[key] = present

    def check_settled(self) -> None:
        """What holds once all faults are over for a while, and nothing has changed since."""
        world = self._world
        daemon = world.daemon
        assert daemon is not None
        snapshot = daemon.snapshot
        if snapshot.errors:
            raise Violation(f"I5: errors that have no reason any more: {snapshot.errors}")
        if daemon.observer.enforcement.not_enforced:
            raise Violation(f"I8: said not to be enforced: {daemon.observer.enforcement.not_enforced}")
        known = set(snapshot.connections)
        if known != set(world.proxy.connections):
            raise Violation(f"I5: {len(known ^ set(world.proxy.connections))} connections are known wrongly")
        held = {ends for ends, said in snapshot.throttled.items() if said.throttle.share.kind.is_cap}
        if held != world.proxy.steering.caps.keys():
            raise Violation(f"I8: steering holds {len(world.proxy.steering.caps)} subflows, and {len(held)} are capped")
        present = {(o.network, o.kind, o.client, bits(o.rate)) for o in snapshot.operator.overrides}
        expected = {(o.network, o.kind, o.client, o.rate) for o in world.settings.present(world.clock.now)}
        if present != expected:
            raise Violation(f"operators have set {expected}, and the daemon has {present}")

    def check_quiet(self) -> None:
        """What must be left when no socket has been there for a while: nothing."""
        world = self._world
        daemon, proxy = world.daemon, world.proxy
        if daemon is None or world.clock.now - max(world.last_socket_at, world.started_at) < QUIET_SECONDS:
            return
        state = proxy.kernel.state
        left = {
            "assignments": sum(len(of.assignments) for of in state.assignments.values()),
            "paces": len(state.pacing.paces or {}),
            "HTB": int(state.qdisc.htb is not None),
            "uplinks": len(proxy.uplinks.throttled) + proxy.uplinks.has_filter,
            "steered caps": len(proxy.steering.caps),
            "throttled": len(daemon.snapshot.throttled),
            "connections": len(daemon.snapshot.connections),
            "metered sockets": len(daemon.accounts._meter.counted) if daemon.accounts._meter else 0,
            **{f"sniffer's {name}": size for name, size in world.sniffer.tracker.sizes().items()},
        }
        left = {name: size for name, size in left.items() if size}
        if left:
            raise Violation(f"I4: no client is connected, and there are {left}")

    def check_bounds(self) -> None:
        """I4: sizes are bounded."""
        classes = self._world.proxy.kernel.state.qdisc.htb
        if classes is not None and len(classes.classes) > _MOST_CLASSES:
            raise Violation(f"I4: there are {len(classes.classes)} classes")

    def check_stopped(self) -> None:
        """I3: a daemon that has stopped leaves the kernel as it was found."""
        state = self._world.proxy.kernel.state
        uplinks = self._world.proxy.uplinks
        if state.qdisc.htb is not None or state.assignments or state.pacing.paces:
            raise Violation(f"I3: a daemon that has stopped has left {state}")
        if uplinks.throttled or uplinks.has_filter:
            raise Violation(f"I3: a daemon that has stopped has left uplinks: {uplinks.throttled}")


def wanted_rule(expected: Expected | None) -> str | None:
    """The rule that has decided a rate."""
    return None if expected is None else expected.rule


def _is_bounded(snapshot: Snapshot, share: Share) -> bool:
    """Whether a limit bounds this cap, so that the reason may be that of either."""
    if not share.kind.is_cap:
        return False
    limit = snapshot.terms.term(replace(share, kind=share.kind.direction.limit)).rate
    cap = snapshot.terms.term(share).rate
    return limit is not None and cap is not None and limit <= cap


def _difference(wanted: Expected | None, actual: Rate | None) -> str | None:
    if wanted is None or wanted.rate is None:
        return None if actual is None else "too slow"
    if actual is None:
        return "free"
    if wanted.has(actual.bits_per_second):
        return None
    return "too slow" if actual.bits_per_second < wanted.rate else "too fast"


def _reasons(snapshot: Snapshot, socket: ModelSocket) -> tuple[str, ...]:
    """The reasons that are shown for a socket, of downlink and uplink, if it is known. During a pause, all are free."""
    if socket.token is not None and snapshot.operator.pause is None:
        for decision in snapshot.decisions.get(socket.token, ()):
            if decision.subflow.ends is socket.ends or decision.subflow.ends == socket.ends:
                return decision.downlink.reason, decision.uplink.reason
    return ()


def _shown(rate: Rate | Expected | None) -> str:
    return "no rate" if rate is None else str(rate)


def _rate(throttle: Throttle | None) -> Rate | None:
    return None if throttle is None else throttle.rate


def bits(rate: Rate | None) -> int | None:
    """A rate in bits per second; None: unlimited."""
    return None if rate is None else rate.bits_per_second


def _period(account: BudgetAccount) -> tuple[float, float]:
    return account.period.start, account.period.end
