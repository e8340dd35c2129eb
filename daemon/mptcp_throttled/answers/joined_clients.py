"""Clients over all access networks: joins the connections of one client, by its device or by addresses they share.

A connection with several paths shows that its addresses belong to one client. That client is known by its address on
the most preferred of these networks. A connection on one network only belongs to the client of its address, if exactly
one client is known to have that address: behind address translation many clients may share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_throttled.answers.known_decisions import KnownDecisions
from mptcp_throttled.vocabulary.snapshot import Snapshot

if TYPE_CHECKING:
    from mptcp_throttle.model import FourTuple, Token
    from mptcp_throttled.vocabulary.decision import Decision

_LAST: Final = 1 << 31


class Path(NamedTuple):
    """The first address of a client in an access network, which has this preference; None: in none."""

    preference: int
    network: str | None
    address: str


class Connection(NamedTuple):
    """The decisions for the subflows of a connection, and the path of each."""

    decisions: tuple[Decision, ...]
    paths: tuple[Path, ...]


class Owner:
    """A device or an address, with its connections. `name` is the device's name, or the address as text.

    Alone, or together with other owners, it is a `client`.
    """

    __slots__ = ("_text", "client", "connections", "device", "name")

    def __init__(self, name: str, device: str | None) -> None:
        self.name = name
        self.device = device
        self.connections: dict[Token, Connection] = {}
        self.client = JoinedClient([self])
        self._text: str | None = None

    def note_change(self) -> None:
        """Its connections have changed."""
        self._text = None

    @property
    def text(self) -> str:
        """The text to search: its name in lower case and all its addresses."""
        if self._text is None:
            addresses = {
                each.subflow.ends.client.address for known in self.connections.values() for each in known.decisions
            }
            self._text = "\n".join((self.name.lower(), *map(str, addresses)))
        return self._text


@dataclass(slots=True, eq=False)
class JoinedClient:
    """A client with all its connections; `device` is its name, None if it has none."""

    owners: list[Owner]

    @property
    def name(self) -> str:
        """Its device, or its address on the most preferred network that it uses."""
        return self.owners[0].name

    @property
    def device(self) -> str | None:
        """The name of its device; None: it has none."""
        return self.owners[0].device

    @property
    def connections(self) -> int:
        """The number of its connections."""
        return sum(len(owner.connections) for owner in self.owners)

    @property
    def subflows(self) -> int:
        """The number of its subflows."""
        return sum(len(known.decisions) for owner in self.owners for known in owner.connections.values())

    def decisions(self) -> Iterator[Decision]:
        """The decisions for its subflows."""
        for owner in self.owners:
            for known in owner.connections.values():
                yield from known.decisions

    def paths(self) -> Iterator[Path]:
        """The paths of its subflows, in the order of `decisions`."""
        for owner in self.owners:
            for known in owner.connections.values():
                yield from known.paths


class JoinedClients:
    """All clients of a snapshot, in `by_name`; `on_network` is their number on each network. For one thread.

    `update` takes the next snapshot; its time depends on how much has changed.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, JoinedClient] = {}
        self.on_network: Counter[str | None] = Counter()
        self.owners: dict[FourTuple, Owner] = {}
        self._known = KnownDecisions()
        self._by_name: dict[str, Owner] = {}
        self._shown_by: dict[str, Counter[str]] = {}
        self._paths: Counter[Path] = Counter()
        self._touched: set[str] = set()

    def update(self, snapshot: Snapshot) -> None:
        """Bring the clients up to date."""
        difference = self._known.take(snapshot)
        if difference is None:
            return
        if difference.networks_changed:
            for known in (self.by_name, self.owners, self._by_name, self._shown_by, self._paths, self.on_network):
                known.clear()
        for decisions in difference.outdated:
            self._remove(decisions)
        for decisions in difference.changed:
            self._add(decisions)
        self._join()

    def find(self, name: str) -> JoinedClient | None:
        """The client with this device, or with this first address of a prefix; None: it is unknown, or of several."""
        owner = self._owner_of(name) or self._by_name.get(name)
        return None if owner is None else owner.client

    def _remove(self, decisions: tuple[Decision, ...]) -> None:
        owner = None
        for decision in decisions:
            owner = self.owners.pop(decision.subflow.ends, owner)
        known = None if owner is None else owner.connections.pop(decisions[0].token, None)
        if owner is None or known is None:
            return
        self._count(known.paths, owner, -1)
        owner.note_change()
        if not owner.connections:
            del self._by_name[owner.name]
            self._leave(owner)
            del self.by_name[owner.name]

    def _add(self, decisions: tuple[Decision, ...]) -> None:
        if not decisions:
            return
        paths = tuple(self._path(decision) for decision in decisions)
        devices = (self._known.snapshot.device(each.network, each.subflow.ends.client.address) for each in decisions)
        device = next(filter(None, devices), None)
        name = min(paths, key=lambda path: path.preference).address if device is None else device
        owner = self._by_name.get(name)
        if owner is None:
            owner = self._by_name[name] = Owner(name, device)
            self.by_name[name] = owner.client
            self._touched.add(name)
        owner.connections[decisions[0].token] = Connection(decisions, paths)
        owner.note_change()
        for decision in decisions:
            self.owners[decision.subflow.ends] = owner
        self._count(paths, owner, 1)

    def _path(self, decision: Decision) -> Path:
        network, address = self._known.networks.get(decision.network), decision.subflow.ends.client.address
        if network is None:
            return Path(_LAST, None, str(address))
        return Path(network.preference, network.name, str(network.client(address)))

    def _count(self, paths: Iterable[Path], owner: Owner, number: int) -> None:
        """Count the paths of a connection, or with `number` -1 no longer.

        If it has several paths, or its owner is a device, it shows that their addresses are the owner's.
        """
        different = set(paths)
        for path in different:
            before, now = self._paths[path], self._paths[path] + number
            self._paths[path] = now
            self.on_network[path.network] += bool(now) - bool(before)
            if not now:
                del self._paths[path]
        if len(different) > 1 or owner.device is not None:
            for path in different:
                self._note_shown(path.address, owner.name, number)

    def _note_shown(self, address: str, name: str, number: int) -> None:
        counter = self._shown_by.setdefault(address, Counter())
        before = len(counter)
        counter[name] += number
        if not counter[name]:
            del counter[name]
        if len(counter) != before:
            self._touched.add(address)
        if not counter:
            del self._shown_by[address]

    def _owner_of(self, address: str) -> Owner | None:
        """The owner that an address is known to belong to; None: it is unknown, or there are several."""
        names = self._shown_by.get(address)
        return self._by_name[next(iter(names))] if names is not None and len(names) == 1 else None

    def _join(self) -> None:
        """Join each changed owner to the client that its address belongs to, or make it a client of its own.

        An owner that others join is known by its own connections with several paths, and joins no other.
        """
        touched = [self._by_name[name] for name in self._touched if name in self._by_name]
        self._touched.clear()
        for owner in touched:
            self._leave(owner)
        for owner in touched:
            first = self._owner_of(owner.name) or owner
            if first is not owner:
                del self.by_name[owner.name]
                owner.client = first.client
                first.client.owners.append(owner)

    def _leave(self, owner: Owner) -> None:
        """Make an owner a client of its own, if it was joined to another."""
        if owner.client.owners[0] is not owner:
            owner.client.owners.remove(owner)
            owner.client = self.by_name[owner.name] = JoinedClient([owner])
