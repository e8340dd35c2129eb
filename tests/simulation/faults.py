"""What goes wrong in a run: each fault has a kind, a time, a length, and random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from random import Random
from typing import TYPE_CHECKING, Final

from configurations import INVALID, address
from disk import damage, make_older
from expected_rates import ByHand
from invariants import RETRIED_SECONDS, SETTLE_SECONDS
from timeline import stream
from violation import Violation

from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.control.requests import ResetRates, Resume, SetPause, SetRate
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState
from mptcp_throttled.vocabulary.operations import (
    AddClass,
    ChangeAssignments,
    ChangeClass,
    ChangePaces,
    DeleteClass,
    InstallHtb,
    MakeAssignments,
    RemoveAssignments,
)
from mptcp_throttled.vocabulary.operator import Override, Pause

if TYPE_CHECKING:
    from world import World

_SMALL_SECONDS: Final = 1_000.0
_LENGTHS: Final = (0.3, 2.0, 6.0, 30.0)
_WEEK: Final = 7 * 86_400.0

REFUSABLE: Final = (
    AddClass,
    ChangeClass,
    DeleteClass,
    MakeAssignments,
    ChangeAssignments,
    RemoveAssignments,
    ChangePaces,
    InstallHtb,
)


@dataclass(frozen=True)
class Fault:
    """The `number` names it in a command line. `at` is in seconds since the begin of the run."""

    number: int
    at: float
    kind: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} at {self.at:.1f} s for {self.seconds:.1f} s"


def planned(seed: int, seconds: float, every: float) -> list[Fault]:
    """The faults of a run of so many `seconds`, about one `every` so many."""
    random = stream(seed, "faults")
    return drawn(random, KINDS, _LENGTHS, seconds, lambda _: random.expovariate(1 / every))


def drawn(
    random: Random,
    kinds: Collection[str],
    lengths: Sequence[float],
    seconds: float,
    pause: Callable[[int], float],
) -> list[Fault]:
    """Faults of some of these kinds and lengths, until `seconds`; `pause` is how long after the one before, by number.

    Most weeks have few kinds of them, so that these meet each other often.
    """
    faults: list[Fault] = []
    chosen, chosen_until = _chosen(random, kinds), _WEEK
    at = pause(0)
    while at < seconds:
        if at >= chosen_until:
            chosen, chosen_until = _chosen(random, kinds), at + _WEEK
        faults.append(Fault(len(faults), at, random.choice(chosen), random.choice(lengths)))
        at += pause(len(faults))
    return faults


def _chosen(random: Random, kinds: Collection[str]) -> list[str]:
    return random.sample(sorted(kinds), random.choice((1, 2, 4, len(kinds))))


class Trouble:
    """Lets a fault begin and end in a world."""

    def __init__(self, world: World, fault: Fault) -> None:
        self._world, self._fault = world, fault
        self._random = stream(world.scenario.seed, "fault", fault.number)

    def begin(self) -> None:
        """It happens now."""
        self._world.proxy.carry()
        end = KINDS[self._fault.kind](self._world, self._random, self._fault.seconds)
        if end is None:
            return
        self._world.trouble_began()
        self._world.timeline.after(self._fault.seconds, lambda: self._end(end))

    def _end(self, end: Callable[[], None]) -> None:
        self._world.proxy.carry()
        end()
        self._world.trouble_ended(RETRIED_SECONDS if self._fault.kind == "kernel-refuses" else SETTLE_SECONDS)


End = Callable[[], None] | None


def _frames_get_lost(world: World, random: Random, _: float) -> End:
    wire = world.sniffer.wire
    wire.lost = random.choice((0.1, 0.5, 1.0))

    def end() -> None:
        wire.lost = 0.0

    return end


def _frames_arrive_in_another_order(world: World, random: Random, _: float) -> End:
    wire = world.sniffer.wire
    wire.late, wire.twice = random.choice((0.3, 1.0)), random.choice((0.0, 0.3))

    def end() -> None:
        wire.late = wire.twice = 0.0

    return end


def _kernel_list_is_refused(world: World, _random: Random, _seconds: float) -> End:
    world.sniffer.reads_fail = True

    def end() -> None:
        world.sniffer.reads_fail = False
        world.sniffer.note_silent_change()

    return end


def _capture_is_lost(world: World, _random: Random, seconds: float) -> End:
    world.sniffer.lose_capture(seconds)
    return lambda: None


def _sniffer_crashes(world: World, _random: Random, _seconds: float) -> End:
    world.stop_sniffer()
    return world.start_sniffer


def _messages_get_lost(world: World, random: Random, _: float) -> End:
    return _with_link(world, lost=random.choice((0.2, 1.0)))


def _messages_are_slow(world: World, random: Random, _: float) -> End:
    return _with_link(world, delay=random.choice((0.2, 2.0, 8.0)))


def _requests_are_made_twice(world: World, _random: Random, _seconds: float) -> End:
    return _with_link(world, twice=0.5)


def _with_link(world: World, *, lost: float = 0.0, delay: float = 0.0, twice: float = 0.0) -> End:
    world.set_link(lost, delay, twice)
    return lambda: world.set_link(0.0, 0.0, 0.0)


def _daemon_is_killed(world: World, _random: Random, _seconds: float) -> End:
    world.kill_daemon()
    return world.start_daemon


def _daemon_is_killed_while_it_writes(world: World, random: Random, _seconds: float) -> End:
    world.kill_at_line(random)
    return world.start_daemon


def _power_is_lost(world: World, random: Random, _seconds: float) -> End:
    world.stop_sniffer()
    world.kill_daemon(power=random)

    def end() -> None:
        world.start_sniffer()
        world.start_daemon()

    return end


def _daemon_stops(world: World, _random: Random, _seconds: float) -> End:
    world.stop_daemon(hand_over=False)
    return world.start_daemon


def _daemon_restarts(world: World, _random: Random, _seconds: float) -> End:
    world.stop_daemon(hand_over=True)
    world.start_daemon()
    world.excuse(5.0)
    return None


def _daemon_is_upgraded(world: World, _random: Random, _seconds: float) -> End:
    """From a version whose database has fewer columns."""
    if world.daemon is None:
        return None
    world.stop_daemon(hand_over=False)
    world.alter_database(make_older)
    return world.start_daemon


def _database_is_damaged(world: World, _random: Random, _seconds: float) -> End:
    if world.daemon is None:
        return None
    world.stop_daemon(hand_over=False)
    world.alter_database(damage)
    world.forget_written()
    return world.start_daemon


def _disk_is_full(world: World, _random: Random, _seconds: float) -> End:
    world.is_disk_full = True

    def end() -> None:
        world.is_disk_full = False

    return end


def _kernel_refuses(world: World, random: Random, _seconds: float) -> End:
    kernel = world.proxy.kernel
    kernel.refuse = tuple(random.sample(REFUSABLE, random.randint(1, 3)))

    def end() -> None:
        kernel.refuse = ()

    return end


def _uplinks_are_refused(world: World, random: Random, _seconds: float) -> End:
    uplinks = world.proxy.uplinks
    uplinks.refuse = set(random.sample(["attach", "throttle", "forget", "detach_if_told"], random.randint(1, 2)))

    def end() -> None:
        uplinks.refuse = set()

    return end


def _kernel_cannot_be_read(world: World, _random: Random, _seconds: float) -> End:
    world.proxy.kernel.refuses_reading = True

    def end() -> None:
        world.proxy.kernel.refuses_reading = False

    return end


def _sockets_cannot_be_read(world: World, _random: Random, _seconds: float) -> End:
    world.proxy.reads_fail = True

    def end() -> None:
        world.proxy.reads_fail = False

    return end


def _program_cannot_be_loaded(world: World, _random: Random, _seconds: float) -> End:
    kernel = world.proxy.kernel
    kernel.state = replace(kernel.state, pacing=PacingState(None, "the verifier refuses it"))

    def end() -> None:
        kernel.state = replace(kernel.state, pacing=PacingState({}))

    return end


def _others_delete_the_qdisc(world: World, random: Random, _seconds: float) -> End:
    kernel = world.proxy.kernel
    kernel.replace_qdisc(htb=None)
    kernel.bytes_by_class.clear()
    # The notification of the kernel may be lost.
    if random.random() < 0.7:
        world.note_kernel_change()
    world.excuse(20.0)
    return None


def _others_flush_assignments(world: World, _random: Random, _seconds: float) -> End:
    kernel = world.proxy.kernel
    kernel.state = KernelState(kernel.state.qdisc, {}, kernel.state.pacing)
    world.excuse(8.0)
    return None


def _clock_is_set(world: World, random: Random, _seconds: float) -> End:
    world.set_clock(random.choice((-90.0, -3.0, 2.0, 60.0)))
    world.excuse(2.0)
    return None


def _clock_is_wrong(world: World, random: Random, _seconds: float) -> End:
    """As after a start without a battery: nothing says that it is right, and in the end it is set."""
    wrong = random.choice((-40 * 86_400.0, -3_700.0, 86_400.0, 400 * 86_400.0))
    if world.config.daemon.wait_for_clock is False:
        return _clock_is_set(world, random, 0.0)
    world.clock.is_synchronised = False
    world.set_clock(wrong)

    def end() -> None:
        world.set_clock(-wrong)
        # Another such fault may not be over.
        world.clock.is_synchronised = abs(world.clock.wrong) < _SMALL_SECONDS

    return end


def _host_is_suspended(world: World, random: Random, _seconds: float) -> End:
    world.suspend(random.choice((60.0, 3_600.0, 30 * 3_600.0)))
    world.excuse(5.0)
    return None


def _files_are_changed(world: World, random: Random, _seconds: float) -> End:
    world.files.write(random.choice(world.files.variants))
    world.reload()
    return None


def _files_become_invalid(world: World, random: Random, _seconds: float) -> End:
    variant, before = world.files.variant, world.config
    world.files.break_(random.choice(INVALID))
    world.reload()
    world.files.write(variant)
    if world.config is not before or (world.daemon is not None and not world.daemon.running.status()["problems"]):
        raise Violation("I6: an invalid configuration is used, or not reported")
    return None


def _operator_sets_a_rate(world: World, random: Random, _seconds: float) -> End:
    client = random.choice((None, None, ip_address(address("lte", random.choice(world.scenario.clients)))))
    kind = random.choice((RateKind.CAP, RateKind.UPLINK_CAP))
    rate = random.choice((150_000, 900_000, 3_000_000))
    seconds = random.choice((None, 20.0, 600.0, 90_000.0))
    end = None if seconds is None else world.clock.now + seconds
    network = next(network for network in world.config.networks if network.name == "lte")
    subject = None if client is None else network.client(client)
    override = Override("lte", kind, Rate(rate), end, subject)

    def note() -> None:
        kept = [w for w in world.settings.by_hand if (w.kind, w.client) != (kind, subject)]
        world.settings.by_hand = [*kept, ByHand("lte", kind, rate, end, subject)]

    world.ask(SetRate(override), note)
    return None


def _operator_resets_rates(world: World, _random: Random, _seconds: float) -> End:
    clients = {w.client for w in world.settings.present(world.clock.now)}
    for client in sorted(clients, key=str):

        def note(gone: object = client) -> None:
            world.settings.by_hand = [w for w in world.settings.by_hand if w.client != gone]

        world.ask(ResetRates("lte", client), note)
    return None


def _operator_pauses(world: World, random: Random, _seconds: float) -> End:
    seconds = random.choice((5.0, 60.0, None))
    end = None if seconds is None else world.clock.now + seconds

    def note() -> None:
        world.settings.pause_end = float("inf") if end is None else end

    world.ask(SetPause(Pause(end)), note)
    if seconds is None:
        world.timeline.after(40.0, lambda: _resume(world))
    return None


def _resume(world: World) -> None:
    def note() -> None:
        world.settings.pause_end = 0.0

    world.ask(Resume(), note)
    world.excuse(SETTLE_SECONDS)


KINDS: Final[dict[str, Callable[[World, Random, float], End]]] = {
    function.__name__.strip("_").replace("_", "-"): function
    for function in (
        _frames_get_lost,
        _frames_arrive_in_another_order,
        _kernel_list_is_refused,
        _capture_is_lost,
        _sniffer_crashes,
        _messages_get_lost,
        _messages_are_slow,
        _requests_are_made_twice,
        _daemon_is_killed,
        _daemon_is_killed_while_it_writes,
        _power_is_lost,
        _daemon_stops,
        _daemon_restarts,
        _daemon_is_upgraded,
        _database_is_damaged,
        _disk_is_full,
        _kernel_refuses,
        _uplinks_are_refused,
        _kernel_cannot_be_read,
        _sockets_cannot_be_read,
        _program_cannot_be_loaded,
        _others_delete_the_qdisc,
        _others_flush_assignments,
        _clock_is_set,
        _clock_is_wrong,
        _host_is_suspended,
        _files_are_changed,
        _files_become_invalid,
        _operator_sets_a_rate,
        _operator_resets_rates,
        _operator_pauses,
    )
}
