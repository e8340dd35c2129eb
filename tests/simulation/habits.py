"""What clients do on a day: pages, films, uploads, calls, and downloads without MPTCP, over paths that come and go."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from configurations import address
from modelled_proxy import Link, ModelConnection, ModelSocket
from modelled_sniffer import ENDS_OF_SUBFLOW, Frame, ending, forged, handshake
from segments import prio
from timeline import stream

from mptcp_sniffer.kernel_events import KernelEventKind
from mptcp_sniffer.segment import Flag
from mptcp_throttle.model import Ailment

if TYPE_CHECKING:
    from world import World

DAY: Final = 86_400.0
USES_A_DAY: Final = 1.0
"""By one client, on average."""

_HOURS: Final = (0.3, 0.1, 0.1, 0.1, 0.1, 0.2, 0.5, 1, 1, 1, 1, 1, 2, 2, 1, 1, 1, 2, 3, 4, 6, 6, 4, 1)
"""How often something begins in each hour of UTC."""

_LINKS: Final = {"wifi": Link(4e6, 1e6), "lte": Link(2e6, 5e5), "satellite": Link(1e6, 1e5)}


class Client:
    """One client, with its own random numbers: what others do changes nothing for it."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._random = stream(world.scenario.seed, "client", number)

    def plan(self) -> None:
        """Let it begin something later, and plan again then."""
        mean = DAY / (USES_A_DAY * self._world.busy)
        if self._world.scenario.busy <= 1.0:
            mean *= sum(_HOURS) / 24 / max(_HOURS)
        self._world.timeline.after(self._random.expovariate(1 / mean), self._perhaps_use)

    def _perhaps_use(self) -> None:
        hour = int(self._world.clock.true_time // 3600) % 24
        # In short runs, there is no night.
        if self._world.scenario.busy > 1.0 or self._random.random() < _HOURS[hour] / max(_HOURS):
            self.use()
        self.plan()

    def use(self) -> None:
        """Begin something now."""
        random = self._random
        kind = random.choices(("page", "film", "upload", "call", "plain"), (5, 3, 1, 2, 1))[0]
        seconds = {"page": 4.0, "film": 45.0, "upload": 15.0, "call": 25.0, "plain": 6.0}[kind] * random.uniform(
            0.5, 1.5
        )
        Session(self._world, Random(random.getrandbits(64)), self._number, kind, seconds)  # noqa: S311


class Session:
    """A connection and all that happens to it."""

    def __init__(self, world: World, random: Random, client: int, kind: str, seconds: float) -> None:
        self._world, self._random, self._client, self._kind = world, random, client, kind
        self._key = random.randbytes(8)
        self._connection: ModelConnection | None = None
        first, second = random.choice((("wifi", "lte"), ("lte", "wifi")))
        if kind == "plain":
            self._open(first, None)
            world.timeline.after(seconds, self._end)
            return
        self._open(first, self._key)
        self._after(random.uniform(0.05, 1.5), partial(self._join, second))
        if random.random() < 0.25:
            self._after(random.uniform(1.0, seconds), partial(self._join, "satellite"))
        if random.random() < 0.5:
            self._after(random.uniform(0.2, seconds), self._something)
        if random.random() < 0.3:
            self._after(random.uniform(0.2, seconds), self._something)
        if world.files.has_more_rules:
            self._plan_bad_times(stream(world.scenario.seed, "bad times", self._key), seconds)
        world.timeline.after(seconds, self._end)

    def _plan_bad_times(self, random: Random, seconds: float) -> None:
        """Its path over Wi-Fi may become slow or sick for a while."""
        if random.random() < 0.7:
            self._after(random.uniform(0.2, seconds / 2), partial(self._slow, random))
        if random.random() < 0.3:
            self._after(random.uniform(0.2, seconds), partial(self._sicken, random))

    def _over_wifi(self) -> ModelSocket | None:
        assert self._connection is not None
        return next((socket for socket in self._connection.subflows.values() if self._is_in(socket, "wifi")), None)

    def _slow(self, random: Random) -> None:
        socket = self._over_wifi()
        if socket is not None:
            usual = _LINKS["wifi"]
            self._set_link(socket, Link(random.choice((6e4, 2e5, 4e5)), usual.up))
            self._after(random.uniform(5.0, 20.0), partial(self._set_link, socket, usual))

    def _set_link(self, socket: ModelSocket, link: Link) -> None:
        self._world.proxy.carry()
        socket.link = link

    def _sicken(self, random: Random) -> None:
        socket = self._over_wifi()
        if socket is not None:
            self._set_ailment(socket, random.choice(tuple(Ailment)))
            self._after(random.uniform(2.0, 25.0), partial(self._set_ailment, socket, None))

    def _set_ailment(self, socket: ModelSocket, ailment: Ailment | None) -> None:
        if self._lives(socket):
            self._world.proxy.carry()
            self._world.proxy.set_ailment(socket, ailment)
            self._world.note_change(sick=True)

    def _after(self, seconds: float, event: object) -> None:
        assert callable(event)
        self._world.timeline.after(seconds, partial(self._if_connected, event))

    def _if_connected(self, event: object) -> None:
        assert callable(event)
        if self._is_there():
            event()

    def _is_there(self) -> bool:
        connection = self._connection
        return connection is not None and self._world.proxy.connections.get(connection.token) is connection

    def _open(self, network: str, key: bytes | None) -> None:
        world, random = self._world, self._random
        world.proxy.carry()
        socket = world.proxy.open(address(network, self._client), _LINKS[network], key, random.randrange(2**31))
        self._plain = socket if key is None else None
        if socket.token is not None:
            self._connection = world.proxy.connections[socket.token]
        self._use(socket)
        world.sniffer.capture(handshake(socket, key, joins=False))

    def _join(self, network: str) -> None:
        world, random, connection = self._world, self._random, self._connection
        assert connection is not None
        if any(self._is_in(socket, network) for socket in connection.subflows.values()):
            return
        world.proxy.carry()
        backup = random.random() < 0.1
        sequence = random.randrange(2**31)
        socket = world.proxy.join(connection, address(network, self._client), _LINKS[network], sequence, backup=backup)
        self._use(socket)
        world.sniffer.capture(handshake(socket, connection.key, joins=True))

    def _is_in(self, socket: ModelSocket, network: str) -> bool:
        return str(socket.ends.client.address) == address(network, self._client)

    def _use(self, socket: ModelSocket) -> None:
        down = {"page": 6e5, "film": 8e5, "upload": 4e3, "call": 6e4, "plain": 3e5}[self._kind]
        up = {"page": 1e4, "film": 8e3, "upload": 2e5, "call": 6e4, "plain": 5e3}[self._kind]
        socket.wanted, socket.offered = down * self._random.uniform(0.7, 1.3), up * self._random.uniform(0.7, 1.3)

    def _something(self) -> None:
        """One of its paths ends, dies, becomes a backup, or is attacked."""
        connection, random, world = self._connection, self._random, self._world
        assert connection is not None
        socket = random.choice(list(connection.subflows.values()))
        match random.choice(("end", "end", "silence", "backup", "forge", "queue")):
            case "end" if len(connection.subflows) > 1:
                self._end_subflow(socket, random.choice(ENDS_OF_SUBFLOW))
                if random.random() < 0.5:
                    network = next(n for n in ("wifi", "lte", "satellite") if self._is_in(socket, n))
                    self._after(random.uniform(0.5, 5.0), partial(self._join, network))
            case "silence":
                self._stall(socket, stalled=True)
                if random.random() < 0.7:
                    self._after(random.uniform(2.0, 20.0), partial(self._stall, socket, stalled=False))
            case "backup":
                self._change_priority(socket, backup=not socket.backup)
                self._after(random.uniform(1.0, 10.0), partial(self._change_priority, socket, backup=socket.backup))
            case "queue" if len(connection.subflows) > 1:
                world.proxy.carry()
                socket.closing = True
                world.note_change()
                world.sniffer.report(KernelEventKind.CLOSED, socket)
                self._after(random.uniform(0.2, 3.0), partial(self._drained, socket))
            case _:
                world.sniffer.capture([forged(socket, random, connection.key)])

    def _drained(self, socket: ModelSocket) -> None:
        if self._lives(socket):
            self._end_subflow(socket, "fin of the proxy")

    def _lives(self, socket: ModelSocket) -> bool:
        return self._world.proxy.sockets.get(socket.ends) is socket

    def _stall(self, socket: ModelSocket, *, stalled: bool) -> None:
        if self._lives(socket):
            self._world.proxy.carry()
            socket.stalled = stalled
            self._world.note_change(silent=True)
            self._world.sniffer.note_silent_change()

    def _change_priority(self, socket: ModelSocket, *, backup: bool) -> None:
        if not self._lives(socket) or socket.backup == backup:
            return
        self._world.proxy.carry()
        socket.backup = backup
        self._world.note_change()
        self._world.sniffer.report(KernelEventKind.PRIORITY, socket, backup=backup)
        frame = Frame(socket.ends, False, Flag.ACK, socket.sequence + 1, 901, prio(backup=backup))
        self._world.sniffer.capture([frame])

    def _end_subflow(self, socket: ModelSocket, how: str) -> None:
        if self._lives(socket):
            assert self._connection is not None
            frames = ending(socket, how, self._connection.key)
            self._world.proxy.end(socket)
            self._world.sniffer.report(KernelEventKind.CLOSED, socket)
            self._world.sniffer.capture(frames)

    def _end(self) -> None:
        """The connection ends."""
        world = self._world
        if self._plain is not None:
            if self._lives(self._plain):
                world.proxy.end(self._plain)
                world.sniffer.capture(ending(self._plain, "fin", b""))
            return
        if not self._is_there():
            return
        assert self._connection is not None
        how = self._random.choice(("fin", "fin", "rst", "fast close"))
        frames = []
        for socket in list(self._connection.subflows.values()):
            frames += ending(socket, how, self._connection.key)
            world.proxy.end(socket)
        world.sniffer.capture(frames)
