"""A proxy with its clients, its sniffer and its daemon in one process, under virtual time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final
from zoneinfo import ZoneInfo

from bursts import BurstBounds
from byte_mirror import ByteMirror, Company, Written, replace_at
from configurations import MORE_RULES, PLAIN_RULES, YEAR_RULES, ZONES, Files, is_free
from disk import DATABASE, FILES, WRITTEN_BACK_SECONDS, WriteAheadLog, copied, full_disk, killed_at
from expected_rates import ExpectedRates, OperatorSettings
from faults import KINDS, Trouble, planned
from habits import Client
from invariants import BLIND_SECONDS, QUIET_SECONDS, SETTLE_SECONDS, Checker, bits
from modelled_daemon import ModelDaemon
from modelled_link import ModelLink
from modelled_proxy import ModelProxy, ModelSocket
from modelled_sniffer import ModelSniffer
from scenario import Scenario
from timeline import BOOT, Timeline, VirtualClock, stream
from violation import Violation

from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttled.control.inbox import Message
from mptcp_throttled.control.requests import Reload, Request

_STEP_SECONDS: Final = 0.0005
"""A step of the loop takes so long, so that a loop that is always due does not stop the time."""

_QUIET_LOOK_SECONDS: Final = 3600.0
WITH_MORE_RULES: Final = 2
"""The rest that every fourth seed has, in whose runs there are overflows, bursts and bounds of healthy paths."""

_DAYS: Final = ((2027, 1, 31), (2027, 3, 27), (2027, 4, 3), (2027, 9, 4), (2027, 10, 30), (2027, 12, 31), (2028, 2, 28))
"""Among them the days before summer time begins or ends in the time zones of `ZONES`."""

_TIMES: Final = ((23, 0), (1, 10), (4, 40))
"""Before midnight, before the window in which nothing counts, and before its end; in hours and minutes."""


class World:
    """All of it. `run` raises Violation, or whatever the product raises."""

    def __init__(self, scenario: Scenario, directory: Path) -> None:
        self.scenario = scenario
        random = stream(scenario.seed, "world")
        zone, wait, day = random.choice(ZONES), random.random() < 0.7, random.choice(_DAYS)
        begins = datetime(*day, *random.choice(_TIMES), tzinfo=ZoneInfo(zone)).timestamp()
        began = begins if scenario.begins is None else scenario.begins
        # In some runs, no client is connected most of the time.
        self.busy = scenario.busy * (1.0 if scenario.busy <= 1.0 else random.choice((1.0, 1.0, 0.15)))
        self.clock = VirtualClock(began)
        self.timeline = Timeline(self.clock)
        rules = MORE_RULES if scenario.seed % 4 == WITH_MORE_RULES else PLAIN_RULES
        rules = YEAR_RULES if scenario.busy <= 1.0 else rules
        self.files = Files(directory, max(scenario.clients) + 1, zone, wait_for_clock=wait, rules=rules)
        self.config: Config = self.files.load()
        self.proxy = ModelProxy(self.clock)
        self.proxy.changed = self.note_change
        self.settings = OperatorSettings()
        self.mirror = ByteMirror(self.proxy, lambda network, at: is_free(network, at, ZoneInfo(zone)))
        self.proxy.ended = self._socket_ended
        self.expected = ExpectedRates(self.proxy, self.mirror, self.settings, self.clock)
        self.checker = Checker(self)
        self.bursts = BurstBounds(self)
        self.proxy.flowed = self.bursts.take
        self.sniffer = ModelSniffer(self.proxy, self.clock, self.timeline, stream(scenario.seed, "sniffer"))
        self.sniffer.published = self._table_changed
        self.daemon: ModelDaemon | None = None
        self._link: ModelLink | None = None
        self._link_faults = (0.0, 0.0, 0.0)
        self._directory, self._instances, self._boots = directory, 0, 0
        self._state = directory / "state-0"
        self._state.mkdir()
        self._log = WriteAheadLog()
        self._kept: list[Written] = [Written()]
        self._boots_again = self._is_direct = False
        self._other_settings: OperatorSettings | None = None
        self._troubles = 0
        self._excused_until = -math.inf
        self._changed_at = self._unsettled_at = BOOT
        self.silent_at = self.sick_at = self.last_socket_at = self.started_at = -math.inf
        self.clock_is_right_since = -math.inf
        self.is_disk_full = False
        self.blind_from = math.inf
        """From when on a daemon must know that it knows nothing, in monotonic seconds."""
        self._poked_at = math.inf
        self._quiet_look_at = self._full_look_at = BOOT
        self._ended: list[ModelSocket] = []
        self._random = stream(scenario.seed, "link")
        self._digest = hashlib.sha256()
        self._step_at = 0.0
        self._dirty = True
        self._seen: tuple[object, ...] = (None, None, None)
        self.counts = {"steps": 0, "observations": 0, "connections": 0, "faults": 0, "restarts": 0}
        self.until = BOOT + (scenario.seconds if scenario.ends is None else scenario.ends)
        self.faults = planned(scenario.seed, scenario.seconds, scenario.every)
        present = [each for each in self.faults if scenario.faults is None or each.number in scenario.faults]
        for fault in present:
            self.timeline.at(BOOT + fault.at, Trouble(self, fault).begin)
        # Of what was written long before, all is on the disk.
        self._losses = [BOOT + fault.at for fault in present if fault.kind == "power-is-lost"]
        for number in scenario.clients:
            Client(self, number).plan()
        self.start_daemon()

    # Services

    def close(self) -> None:
        """End the daemon."""
        if self.daemon is not None:
            self.daemon.kill()

    def start_daemon(self) -> None:
        """A daemon starts, if there is none: after an orderly end, a kill, or a loss of power."""
        if self.daemon is not None:
            return
        self._instances += 1
        self.config = self.files.load()
        # As the service does at its start: uplinks are freed, and programs are loaded with maps of their own.
        self.proxy.uplinks.release()
        self.proxy.steering.caps.clear()
        boot = f"boot-{self._boots}"
        daemon = ModelDaemon(self.config, self._state, boot, self.proxy, self.clock, self.mirror.heard)
        self.daemon = daemon
        self.proxy.is_heard = True
        self.started_at = self.clock.now
        daemon.history.writing = self._settle_bytes
        daemon.history.written = self._written
        self.mirror.company = Company(self.config.networks)
        self.mirror.started(daemon.ledger, self._kept, boots_again=self._boots_again)
        self._boots_again = False
        self._kept = self.mirror.versions
        self._adopt_settings(daemon)
        self.checker.note_restart()
        self.bursts.forget()
        self._link = ModelLink(self.sniffer, daemon.follower, self.clock, self.timeline, self._random)
        self.set_link(*self._link_faults)
        self.counts["restarts"] += 1
        self.note_change()

    def _adopt_settings(self, daemon: ModelDaemon) -> None:
        """What was set by hand holds on; of a request during which the daemon was killed, all or nothing."""
        state = daemon.operator.current()
        present = {(o.network, o.kind, o.client, bits(o.rate)): o for o in state.overrides}
        for settings in self._possible_settings():
            expected = {(w.network, w.kind, w.client, w.rate): w for w in settings.present(self.clock.now)}
            paused = settings.pause_end > self.clock.now
            if expected.keys() == present.keys() and paused == (state.pause is not None):
                self.settings.by_hand, self.settings.pause_end = list(settings.by_hand), settings.pause_end
                # After a clock that was set, an end may be earlier than it was.
                for key, override in present.items():
                    expected[key].end = override.end
                if state.pause is not None:
                    self.settings.pause_end = math.inf if state.pause.end is None else state.pause.end
                self._other_settings = None
                return
        raise Violation(f"operators have set {self.settings}, and after a restart the daemon has {state}")

    def _possible_settings(self) -> Iterator[OperatorSettings]:
        yield self.settings
        if self._other_settings is not None:
            yield self._other_settings

    def stop_daemon(self, *, hand_over: bool) -> None:
        """As systemd does, for a restart or not."""
        daemon = self.daemon
        if daemon is None:
            return
        with full_disk(is_full=self.is_disk_full):
            self._before_observation()
            daemon.stop(hand_over=hand_over)
            self._settle_bytes()
        if not (hand_over or self.kernel_refuses or self.proxy.uplinks.refuse):
            self.checker.check_stopped()
        self._gone([self.mirror.versions[-1]])

    def kill_daemon(self, power: Random | None = None) -> None:
        """kill -9, or with random numbers for what is left of the log, a loss of power."""
        daemon = self.daemon
        kept = self.mirror.versions
        if daemon is not None:
            self._keep_state(power)
            daemon.kill()
        if power is not None:
            self.proxy.lose_power()
            self._boots, self._boots_again = self._boots + 1, True
            sure = [each for each in kept if each.at <= self.clock.now - WRITTEN_BACK_SECONDS]
            kept = [*sure[-1:], *(each for each in kept if each not in sure)]
        elif daemon is not None:
            kept = kept[-1:]
        if daemon is not None:
            self._gone(kept)

    def kill_at_line(self, random: Random) -> None:
        """Kill it while it writes, or just after that."""
        daemon = self.daemon
        if daemon is None:
            return
        earlier = replace_at(self.mirror.versions[-1], self.mirror.versions[-1].at)
        if random.random() < 0.6:
            daemon.accounts._flush_at = 0.0
            self._before_observation()
            line = random.randint(1, random.choice((60, 120, 300)))
            is_killed = killed_at(line, DATABASE, daemon.observe, self._keep_state)
        else:
            is_killed = killed_at(
                random.randint(1, random.choice((3, 20))), FILES, lambda: self._set_some_rate(random), self._keep_state
            )
        if not is_killed:
            self._keep_state()
        self._settle_bytes()
        daemon.kill()
        self._gone([earlier, replace_at(self.mirror.present, self.clock.now)])

    def _set_some_rate(self, random: Random) -> None:
        self._other_settings = OperatorSettings(list(self.settings.by_hand), self.settings.pause_end)
        self._is_direct = True
        try:
            KINDS["operator-sets-a-rate"](self, random, 0.0)
        finally:
            self._is_direct = False

    def _keep_state(self, power: Random | None = None) -> None:
        """The next instance finds the files as they are now."""
        state = self._directory / f"state-{self._instances}"
        copied(self._state, state, power_lost=power is not None)
        if power is not None:
            self._log.tear(state, self.clock.now, power)
        self._state = state

    def _gone(self, kept: list[Written]) -> None:
        self.daemon = None
        self.proxy.is_heard = False
        self._kept = kept
        assert self._link is not None
        self._link.close()
        self._link = None
        self.mirror.killed()
        self.proxy.kernel.closed.clear()

    def alter_database(self, alter: Callable[[Path], None]) -> None:
        """While no daemon runs, something happens to its database."""
        alter(self._state / "history.sqlite")

    def forget_written(self) -> None:
        """What was written cannot be read any more."""
        self._kept = [Written()]

    def stop_sniffer(self) -> None:
        """It crashes, or is stopped."""
        self.sniffer.stop()
        # A call may have been lost before, and the daemon may be starting.
        self.blind_from = self.clock.now + BLIND_SECONDS
        self.look_at(self.blind_from + 0.001)
        self._table_changed()

    @property
    def kernel_refuses(self) -> bool:
        """Whether it would refuse to free subflows."""
        kernel = self.proxy.kernel
        return bool(kernel.refuse or kernel.refuses_reading)

    def start_sniffer(self) -> None:
        """It starts."""
        self.blind_from = math.inf
        if not self.sniffer.is_running:
            self.sniffer.start()
            self._table_changed()

    def set_link(self, lost: float, delay: float, twice: float) -> None:
        """How messages between sniffer and daemon fare: usual with zeros."""
        self._link_faults = lost, delay, twice
        if self._link is not None:
            self._link.lost, self._link.twice = lost, twice
            self._link.delay = delay or _STEP_SECONDS

    def _table_changed(self) -> None:
        if self._link is not None:
            self._link.look()

    def note_kernel_change(self) -> None:
        """The kernel notifies the daemon of what another program has changed."""
        if self.daemon is not None:
            self.daemon.loop.note_kernel_change()
            self.daemon.wake()

    def reload(self) -> None:
        """An operator reloads the configuration."""
        if self.daemon is None:
            return
        try:
            loaded: Config | ConfigError = self.files.load()
        except ConfigError as error:
            loaded = error

        def use() -> None:
            if isinstance(loaded, Config):
                self.config = loaded
                self.mirror.company = Company(loaded.networks)

        self.ask(Reload(loaded), use)

    def ask(self, request: Request[Any], note: Callable[[], None]) -> None:
        """An operator asks the daemon for something, and knows it as set if he is told that it is so."""
        if self.daemon is None:
            return
        self.proxy.carry()
        if self._is_direct:
            # Before the answer: he who is not answered does not know.
            note()
            message = Message(request)
            self.daemon.step([message])
            return
        with full_disk(is_full=self.is_disk_full):
            try:
                self.daemon.ask(request)
            except UserError:
                return
        note()
        self.note_change()

    # Clocks

    def set_clock(self, by: float) -> None:
        """The wall clock jumps."""
        self.clock.wrong += by
        self.clock_is_right_since = self.clock.now
        # Within seconds the services see it, also while no client is connected.
        self._poked_at = self._quiet_look_at = self.clock.now + 1.0

    def suspend(self, seconds: float) -> None:
        """The host sleeps: the monotonic clock stands still, and connections do not survive it."""
        self.clock.epoch += seconds
        for socket in list(self.proxy.sockets.values()):
            self.proxy.end(socket)
        self.clock_is_right_since = self.clock.now
        self.sniffer.note_silent_change()
        # Within seconds the services see it, also while no client is connected.
        self._poked_at = self._quiet_look_at = self.clock.now + 1.0

    # What is noted

    def note_change(self, *, silent: bool = False, sick: bool = False) -> None:
        """Something has changed of connections, of files, or of what operators set.

        `silent`: only the kernel list tells. `sick`: only the kernel program tells, when it is asked.
        """
        self._changed_at = self.clock.now
        self._dirty = True
        if silent:
            self.silent_at = self.clock.now
        if sick:
            self.sick_at = self.clock.now
        if self.proxy.sockets:
            self.last_socket_at = self.clock.now

    def _socket_ended(self, socket: ModelSocket) -> None:
        self.last_socket_at = self.clock.now
        self.counts["connections"] += socket.address_id == 0
        self._ended.append(socket)
        self.mirror.ended(socket)

    def trouble_began(self) -> None:
        """A fault that lasts has begun."""
        self._troubles += 1
        self.counts["faults"] += 1

    def trouble_ended(self, settle: float) -> None:
        """It is over; the services have so many seconds to recover."""
        self._troubles -= 1
        self.excuse(settle)

    def excuse(self, seconds: float) -> None:
        """After something that goes wrong, the services have so long to recover."""
        self._excused_until = max(self._excused_until, self.clock.now + seconds)
        self._dirty = True

    @property
    def excused_until(self) -> float:
        """Until when what is wrong is excused; infinite while a fault lasts."""
        return math.inf if self._troubles else self._excused_until

    def look_at(self, when: float) -> None:
        """Look again then."""
        if when < math.inf:
            self.timeline.at(when, self._look)

    def _look(self) -> None:
        self._dirty = True

    # Time

    def run(self) -> None:
        """Until the end, or until something does not hold."""
        while True:
            at, what = self._next()
            if at > self.until:
                break
            self.clock.now = max(self.clock.now, at)
            what()
            if self._dirty:
                self._dirty = False
                self.checker.check()

    def _next(self) -> tuple[float, Callable[[], None]]:
        event_at, daemon = self.timeline.next_at, self.daemon
        if daemon is None:
            return event_at, self._happen
        if not self.proxy.sockets and self._is_quiet(daemon):
            step_at = min(daemon.next_change, self._poked_at)
            observe_at = self._quiet_look_at
        else:
            step_at, observe_at = min(daemon.step_due, self._poked_at), daemon.observe_due
        step_at = max(step_at, self._step_at + _STEP_SECONDS)
        if event_at <= step_at and event_at <= observe_at:
            return event_at, self._happen
        return (step_at, self._step) if step_at <= observe_at else (observe_at, self._observe)

    def _happen(self) -> None:
        self.timeline.take()()

    def _is_quiet(self, daemon: ModelDaemon) -> bool:
        """Whether nothing is connected and all is counted, so that time can be skipped."""
        return (
            not self.proxy.sockets
            and self._troubles == 0
            and self.mirror.versions[-1].at > self.last_socket_at
            and daemon.is_quiet
        )

    def _step(self) -> None:
        assert self.daemon is not None
        self._poked_at = math.inf
        self._step_at = self.clock.now
        self.proxy.carry()
        with full_disk(is_full=self.is_disk_full):
            self.daemon.step()
        self.counts["steps"] += 1
        self.checker.note_step()
        present = self.daemon.snapshot.throttled, self.proxy.kernel.state, self.daemon.snapshot.terms
        if any(new is not old for new, old in zip(present, self._seen, strict=True)):
            self._seen = present
            self._dirty = True
            rates = self.proxy.kernel.throttled.items()
            texts = sorted((e.client.address.packed, e.client.port, rate.bits_per_second) for e, rate in rates)
            self._note(f"{self.clock.now:.6f} {texts}")

    def _before_observation(self) -> None:
        self.mirror.read()

    def _observe(self) -> None:
        daemon = self.daemon
        assert daemon is not None
        quiet_at, hour = (
            max(self.last_socket_at, self.started_at) + QUIET_SECONDS,
            self.clock.now // _QUIET_LOOK_SECONDS + 1,
        )
        self._quiet_look_at = hour * _QUIET_LOOK_SECONDS
        if quiet_at > self.clock.now:
            self._quiet_look_at = min(self._quiet_look_at, quiet_at)
        sockets, self._ended = [*self.proxy.sockets.values(), *self._ended], []
        self.proxy.carry()
        self.expected.look(self.config)
        self._before_observation()
        self.proxy.forget_calls()
        with full_disk(is_full=self.is_disk_full):
            is_done = daemon.observe()
        self.counts["observations"] += 1
        if not is_done:
            self._ended = [*sockets, *self._ended]
            return
        self._settle_bytes()
        self.checker.check_observation(sockets)
        self._dirty = True
        self._look_at_rest(daemon)
        if self._is_quiet(daemon):
            self.checker.check_quiet()
            # Those of clients that have carried something are looked at after each observation.
            if self.clock.now >= self._full_look_at:
                self._full_look_at = self.clock.now + _QUIET_LOOK_SECONDS
                self.mirror.check(daemon.ledger)
        self._note(
            f"{self.clock.now:.6f} {sum(s.sent for s in self.proxy.sockets.values())} {len(daemon.ledger.spent)}"
        )

    def _look_at_rest(self, daemon: ModelDaemon) -> None:
        self.checker.check_bounds()
        rest = max(self._changed_at, self._excused_until, self._step_at if daemon._woken else 0.0)
        if self._troubles == 0 and self.clock.now > rest + SETTLE_SECONDS and not daemon.snapshot.sniffer.problem:
            self.checker.check_settled()

    def _settle_bytes(self) -> None:
        """The daemon has counted what it has read."""
        if not self.mirror.is_read:
            return
        assert self.daemon is not None
        known = {decision.subflow.ends for decision in self.daemon.snapshot.all_decisions()}
        self.mirror.settle(self.daemon.ledger, known, self.clock.time())

    def _written(self) -> None:
        self.mirror.written(self.clock.now)
        while self._losses and self._losses[0] < self.clock.now:
            self._losses.pop(0)
        if self._losses and self._losses[0] < self.clock.now + 2 * _QUIET_LOOK_SECONDS:
            self._log.note(self._state, self.clock.now)

    def _note(self, text: str) -> None:
        self._digest.update(text.encode())

    @property
    def digest(self) -> str:
        """Of all that has happened."""
        return self._digest.hexdigest()
