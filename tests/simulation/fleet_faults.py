"""What goes wrong in a simulated fleet: each fault has a kind, a time, a length, and random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from faults import Fault, drawn
from fleet_server import REPLICATED_SECONDS
from timeline import stream

if TYPE_CHECKING:
    from fleet_proxy import FleetProxy
    from simulated_fleet import SimulatedFleet

End = Callable[[], None] | None

_LENGTHS: Final = (0.3, 2.0, 8.0, 30.0, 200.0)
_WRITTEN_SECONDS: Final = 6.0
"""So long after its start, a proxy has written its database."""

_MONTH: Final = 31 * 86_400.0
_MOST_LOSSES: Final = 64
"""Of databases in a month: each begins a field, of which a hash may have `MAX_FIELDS` (docs/explanation/fleet.md)."""

_COMPROMISED: Final = b"proxy-9.0000000"


def planned(seed: int, seconds: float, every: float) -> list[Fault]:
    """The faults of a run of so many `seconds`, about one `every` so many; some come close after another."""
    random = stream(seed, "faults of a fleet")

    def pause(number: int) -> float:
        is_usual = number == 0 or random.random() < 0.7
        return random.expovariate(1 / every) if is_usual else random.uniform(0.0, 8.0)

    return drawn(random, KINDS, _LENGTHS, seconds, pause)


class Trouble:
    """Lets a fault begin and end in a fleet."""

    def __init__(self, world: SimulatedFleet, fault: Fault) -> None:
        self._world, self._fault = world, fault
        self._random = stream(world.scenario.seed, "fault of a fleet", fault.number)

    def begin(self) -> None:
        """It happens now."""
        world = self._world
        world.trouble_began()
        end = KINDS[self._fault.kind](world, self._random)
        if end is None:
            world.trouble_ended()
        else:
            world.timeline.after(self._fault.seconds, lambda: self._end(end))

    def _end(self, end: Callable[[], None]) -> None:
        end()
        self._world.trouble_ended()


def _proxy_is_cut_off(world: SimulatedFleet, random: Random) -> End:
    way = _some(world, random).way
    way.is_cut, way.arrives = True, random.random() < 0.5

    def end() -> None:
        way.is_cut = False

    return end


def _answer_is_lost(world: SimulatedFleet, random: Random) -> End:
    _some(world, random).way.next_answers = random.randint(0, 5)
    return None


def _server_dies(world: SimulatedFleet, random: Random) -> End:
    server = world.server
    server.is_down = True
    server.break_connections()
    has_lost_all = random.random() < 0.5

    def end() -> None:
        server.is_down = False
        if has_lost_all:
            server.wipe(restarts=True)

    return end


def _server_is_wiped(world: SimulatedFleet, random: Random) -> End:
    server = world.server
    server.happens = random.randint(0, 12), lambda: server.wipe(restarts=False)
    return None


def _server_fails_over(world: SimulatedFleet, random: Random) -> End:
    world.server.fail_over(random.uniform(0.0, REPLICATED_SECONDS))
    return None


def _server_is_slow(world: SimulatedFleet, _random: Random) -> End:
    server = world.server
    server.is_slow = True

    def end() -> None:
        server.is_slow = False

    return end


def _server_is_full(world: SimulatedFleet, _random: Random) -> End:
    server = world.server
    server.is_full = True

    def end() -> None:
        server.is_full = False

    return end


def _password_is_refused(world: SimulatedFleet, random: Random) -> End:
    server = world.server
    server.refuses_password = True
    if random.random() < 0.5:
        server.break_connections()

    def end() -> None:
        server.refuses_password = False

    return end


def _hash_becomes_of_another_type(world: SimulatedFleet, random: Random) -> End:
    server = world.server
    if not server.hashes:
        return None
    name = random.choice(sorted(server.hashes))
    server.put_type(name, is_hash=False)
    return lambda: server.put_type(name, is_hash=True)


def _proxy_publishes_false_totals(world: SimulatedFleet, random: Random) -> End:
    """One that is not in the fleet writes into its hashes; what it has claimed stays."""
    if not world.has_compromised:
        return None
    is_over = False
    field = _COMPROMISED + b"%d" % random.randint(0, 3)

    def write() -> None:
        if is_over:
            return
        for name in sorted(world.server.hashes):
            if b":used:" in name and random.random() < 0.3:
                world.server.write(name, field, random.choice((b"%d" % 10**17, b"-5", b"NaN", b"", b"%d" % 10**6)))
                world.checks.false_totals.add((name, field.decode()))
        world.timeline.after(random.uniform(0.1, 2.0), write)

    def end() -> None:
        nonlocal is_over
        is_over = True

    write()
    return end


def _proxy_is_killed(world: SimulatedFleet, random: Random) -> End:
    proxy = _some(world, random)
    proxy.kill()
    return proxy.start


def _proxy_is_killed_while_it_writes(world: SimulatedFleet, random: Random) -> End:
    proxy = _some(world, random)
    proxy.kill_at_line(random)
    return proxy.start


def _proxy_is_killed_while_it_publishes(world: SimulatedFleet, random: Random) -> End:
    proxy = _some(world, random)
    proxy.way.dies_after = random.randint(0, 6)

    def end() -> None:
        proxy.way.dies_after = -1
        proxy.start()

    return end


def _power_is_lost(world: SimulatedFleet, random: Random) -> End:
    proxy = _some(world, random)
    proxy.kill(power=random)
    return proxy.start


def _proxy_restarts(world: SimulatedFleet, random: Random) -> End:
    proxy = _some(world, random)
    proxy.stop()
    return proxy.start


def _database_is_lost(world: SimulatedFleet, random: Random) -> End:
    """Perhaps it is killed again soon after its start, with another database."""
    proxy, again = _some(world, random), random.uniform(0.0, 12.0)
    now = world.clock.now
    world.losses = [at for at in world.losses if at > now - _MONTH]
    if len(world.losses) >= _MOST_LOSSES:
        return None
    world.losses.append(now)
    proxy.stop()
    proxy.lose_database()

    def end() -> None:
        proxy.start()
        if again < _WRITTEN_SECONDS:
            world.trouble_began()
            world.timeline.after(again, restart)

    def restart() -> None:
        proxy.kill()
        proxy.start()
        world.trouble_ended()

    return end


def _clock_is_set(world: SimulatedFleet, random: Random) -> End:
    clock = _some(world, random).clock
    if clock.is_synchronised:
        clock.ahead = random.choice((-90.0, -3.0, 2.0, 60.0))
    return None


def _clock_is_wrong(world: SimulatedFleet, random: Random) -> End:
    """As after a start without a battery: nothing says that it is right, and in the end it is set."""
    clock = _some(world, random).clock
    if not clock.is_synchronised:
        return None
    wrong = random.choice((-40 * 86_400.0, -3_700.0, 86_400.0, 400 * 86_400.0))
    clock.is_synchronised = False
    clock.ahead += wrong

    def end() -> None:
        clock.ahead = random.uniform(-1.0, 1.0)
        clock.is_synchronised = True

    return end


def _some(world: SimulatedFleet, random: Random) -> FleetProxy:
    return random.choice(world.proxies)


KINDS: Final[dict[str, Callable[[SimulatedFleet, Random], End]]] = {
    kind.__name__.strip("_").replace("_", "-"): kind
    for kind in (
        _proxy_is_cut_off,
        _answer_is_lost,
        _server_dies,
        _server_is_wiped,
        _server_fails_over,
        _server_is_slow,
        _server_is_full,
        _password_is_refused,
        _hash_becomes_of_another_type,
        _proxy_publishes_false_totals,
        _proxy_is_killed,
        _proxy_is_killed_while_it_writes,
        _proxy_is_killed_while_it_publishes,
        _power_is_lost,
        _proxy_restarts,
        _database_is_lost,
        _clock_is_set,
        _clock_is_wrong,
    )
}
