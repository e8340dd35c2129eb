"""Which access networks the clients' addresses may belong to: a pure function of what was seen.

Two addresses of one connection belong to two access networks, unless they are in one block (an IPv4 /24, an IPv6 /64).
Blocks with a common prefix belong to one, unless connections have addresses in both. What a client has made a backup is
expensive. Nothing else is known: where this does not decide, nothing is proposed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from itertools import combinations
from typing import Final

from mptcp_throttle.model import Address, Network, Per
from mptcp_throttle.setup.network_evidence import Sighting

_BLOCK_BITS: Final = {4: 24, 6: 64}
_Block = tuple[int, int]
"""An IP version, and the leading bits of the addresses."""
# Operators have longer prefixes than these, or several; shorter ones would contain too much that nobody has seen.
_SHORTEST: Final = {4: 16, 6: 32}
_MOST_BLOCKS: Final = 4096
_MOST_SUBNETS: Final = 1000  # of an access network in one file (`NetworkFile`)
# A client that moves from one block to another has both in one connection for a moment.
_RARE: Final = 20
_SHARED_BY: Final = 4
_MOST_NETWORKS: Final = 8

EXPENSIVE: Final = 2
"""The preference that is proposed for an expensive network; 1 is that of all others."""


@dataclass(frozen=True, slots=True)
class SeenSubnet:
    """A prefix of blocks, with the number of addresses in it (of IPv6, of /64 prefixes), and of their connections."""

    subnet: Network
    addresses: int
    connections: int


@dataclass(frozen=True, slots=True)
class ProposedNetwork:
    """An access network that is proposed, with the reasons for its preference and for what shares its rates."""

    name: str
    subnets: tuple[SeenSubnet, ...]
    preference: int
    why_preference: str
    per: Per
    why_per: str


@dataclass(frozen=True, slots=True)
class Grouping:
    """The networks, most preferred first; subnets that may belong to any of them; and how much of what was seen has
    been left out, as there was too much of it: blocks and subnets."""

    networks: tuple[ProposedNetwork, ...]
    unassigned: tuple[SeenSubnet, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Blocks with a common prefix. `backup`: whether clients make them backups; None if they have no other address."""

    blocks: frozenset[_Block]
    backup: bool | None

    @property
    def first(self) -> _Block:
        return min(self.blocks)

    @property
    def version(self) -> int:
        return self.first[0]


@dataclass(frozen=True, slots=True)
class _Group:
    """Prefixes that belong to one access network, of one IP version or of both."""

    prefixes: tuple[_Prefix, ...]

    @property
    def blocks(self) -> frozenset[_Block]:
        return frozenset().union(*(one.blocks for one in self.prefixes))

    @property
    def versions(self) -> set[int]:
        return {one.version for one in self.prefixes}

    @property
    def backup(self) -> bool | None:
        return next((one.backup for one in self.prefixes if one.backup is not None), None)

    def with_(self, *others: _Prefix) -> _Group:
        return _Group((*self.prefixes, *others))


def group(sightings: Mapping[Sighting, int], expensive: Collection[Address] = ()) -> Grouping:
    """The access networks, from how many connections had which addresses.

    `expensive` are addresses in networks of which the operator says that they are.
    """
    seen = _Seen(sightings)
    of_ipv4, of_ipv6 = _prefixes(seen, 4), _prefixes(seen, 6)
    groups, crowded = _apart(seen, of_ipv4)
    more, crowded_too = _apart(seen, of_ipv6)
    groups = _paired(seen, groups, more)
    alone = [one for one in (*of_ipv4, *of_ipv6) if not seen.is_in_conflict(one)]
    if groups:
        groups, alone = _attached(seen, groups, alone)
    else:
        groups, alone = _by_backup(alone), []
    return _proposal(seen, groups, [*alone, *crowded, *crowded_too], expensive)


class _Seen:
    """What was seen, by block."""

    def __init__(self, sightings: Mapping[Sighting, int]) -> None:
        every: Counter[_Block] = Counter()
        for sighting, count in sightings.items():
            every.update(dict.fromkeys(map(block_of, sighting.addresses), count))
        most = sorted(every, key=lambda block: (-every[block], block))
        self.left_out = max(0, len(most) - _MOST_BLOCKS)
        self.blocks = frozenset(most[:_MOST_BLOCKS])
        self.connections = every
        self.together: Counter[frozenset[_Block]] = Counter()
        self.partners: dict[Address, set[_Block]] = defaultdict(set)
        self.addresses: dict[_Block, set[Address]] = defaultdict(set)
        self.conflicts: dict[_Block, set[_Block]] = defaultdict(set)
        self.backup: dict[_Block, bool] = {}
        self._look(sightings)

    def _look(self, sightings: Mapping[Sighting, int]) -> None:
        beside: Counter[_Block] = Counter()
        backups: Counter[_Block] = Counter()
        voters = set()
        for sighting, count in sightings.items():
            blocks = {address: block_of(address) for address in sighting.addresses}
            here = self.blocks.intersection(blocks.values())
            self.together[here] += count
            for address, block in blocks.items():
                if block in here:
                    self.addresses[block].add(address)
                    self.partners[address] |= here - {block}
            # Each client counts once, however many connections it opens.
            voter = sighting.addresses, bool(sighting.backups)
            if len(here) > 1 and voter not in voters:
                voters.add(voter)
                beside.update(here)
                backups.update(here & {blocks[address] for address in sighting.backups})
        self.backup = {block: backups[block] * 2 > beside[block] for block in beside}
        self._find_conflicts()

    def _find_conflicts(self) -> None:
        pairs: Counter[tuple[_Block, _Block]] = Counter()
        for here, count in self.together.items():
            for one, other in combinations(sorted(here), 2):
                if one[0] == other[0]:
                    pairs[one, other] += count
        for (one, other), count in pairs.items():
            if count * _RARE >= min(self.connections[one], self.connections[other]):
                self.conflicts[one].add(other)
                self.conflicts[other].add(one)

    def are_in_conflict(self, one: _Prefix, others: Collection[_Block]) -> bool:
        return any(not self.conflicts[block].isdisjoint(others) for block in one.blocks if block in self.conflicts)

    def is_in_conflict(self, one: _Prefix) -> bool:
        return any(block in self.conflicts for block in one.blocks)

    def count(self, blocks: Collection[_Block]) -> SeenSubnet:
        addresses = sum(len(self.addresses[block]) for block in blocks)
        return SeenSubnet(_subnet(blocks), addresses, sum(self.connections[block] for block in blocks))


def block_of(address: Address) -> _Block:
    """The block that an address is in."""
    return address.version, int(address) >> (address.max_prefixlen - _BLOCK_BITS[address.version])


def _subnet(blocks: Collection[_Block]) -> Network:
    """The longest prefix of all these blocks of one IP version."""
    (version, first), (_, last) = min(blocks), max(blocks)
    free = (first ^ last).bit_length()
    whole = IPv4Address if version == 4 else IPv6Address
    bits = whole(0).max_prefixlen - _BLOCK_BITS[version]
    return ip_network((whole(first >> free << free << bits), _BLOCK_BITS[version] - free))


def _prefixes(seen: _Seen, version: int) -> list[_Prefix]:
    """Blocks with as short a common prefix as possible, but none with two blocks of one connection."""
    blocks = sorted(block for block in seen.blocks if block[0] == version)
    return _merged(seen, [_Prefix(frozenset({block}), seen.backup.get(block)) for block in blocks])[0] if blocks else []


def _merged(seen: _Seen, parts: list[_Prefix]) -> tuple[list[_Prefix], bool]:
    """Of parts in the order of their addresses; and whether they have become one."""
    if len(parts) == 1:
        return parts, True
    (version, first), (_, last) = parts[0].first, parts[-1].first
    free = (first ^ last).bit_length()
    middle = version, last >> (free - 1) << (free - 1)
    at = next(n for n, one in enumerate(parts) if one.first >= middle)
    lower, lower_is_one = _merged(seen, parts[:at])
    upper, upper_is_one = _merged(seen, parts[at:])
    if lower_is_one and upper_is_one and _BLOCK_BITS[version] - free >= _SHORTEST[version]:
        (one,), (other,) = lower, upper
        if _are_alike(one.backup, other.backup) and not seen.are_in_conflict(one, other.blocks):
            return [_Prefix(one.blocks | other.blocks, other.backup if one.backup is None else one.backup)], True
    return lower + upper, False


def _are_alike(one: bool | None, other: bool | None) -> bool:
    return None in (one, other) or one == other


def _apart(seen: _Seen, prefixes: Iterable[_Prefix]) -> tuple[list[_Group], list[_Prefix]]:
    """Prefixes in conflict: each in the first group in which none is in conflict with it. And those that fit into no
    group, as there are too many."""
    others = [one for one in prefixes if seen.is_in_conflict(one)]
    # What has conflicts with most others first: a carrier has few prefixes, beside those of many other networks.
    degrees = {one: len(set().union(*(seen.conflicts.get(block, ()) for block in one.blocks))) for one in others}
    others.sort(key=lambda one: (-degrees[one], one.first))
    members: list[list[_Prefix]] = []
    blocks: list[set[_Block]] = []
    crowded = []
    for one in others:
        fitting = (
            n
            for n, those in enumerate(members)
            if _are_alike(those[0].backup, one.backup) and not seen.are_in_conflict(one, blocks[n])
        )
        index = next(fitting, len(members))
        if index == _MOST_NETWORKS:
            crowded.append(one)
            continue
        if index == len(members):
            members.append([])
            blocks.append(set())
        members[index].append(one)
        blocks[index] |= one.blocks
    return [_Group(tuple(those)) for those in members], crowded


def _paired(seen: _Seen, groups: Sequence[_Group], more: Sequence[_Group]) -> list[_Group]:
    """Groups of IPv4, and of IPv6: two that are one access network together, where something says so."""
    paired, single = [*groups], []
    for one, index in zip(more, _companions(seen, more, groups), strict=True):
        if index is None:
            single.append(one)
        else:
            paired[index] = paired[index].with_(*one.prefixes)
    return paired + single


def _attached(seen: _Seen, groups: Sequence[_Group], alone: Sequence[_Prefix]) -> tuple[list[_Group], list[_Prefix]]:
    """Each prefix without conflicts with the group that is the same access network; and those of which none is."""
    attached, left = [*groups], []
    companions = _companions(seen, [_Group((one,)) for one in alone], groups)
    for one, index in zip(alone, companions, strict=True):
        if index is None:
            left.append(one)
        else:
            attached[index] = attached[index].with_(one)
    return attached, left


def _companions(seen: _Seen, ones: Sequence[_Group], groups: Sequence[_Group]) -> list[int | None]:
    """For each, which group has the other IP version of the same access network.

    Connections with addresses in these two alone say so; else that of all groups one is a backup, as it is.
    """
    of_one = {block: index for index, one in enumerate(ones) for block in one.blocks}
    of_group = {block: index for index, group in enumerate(groups) for block in group.blocks}
    votes: list[set[int]] = [set() for _ in ones]
    for here in seen.together:
        own = {of_one[block] for block in here if block in of_one}
        others = {of_group.get(block) for block in here if block not in of_one}
        if len(own) == len(others) == 1:
            votes[own.pop()].update(index for index in others if index is not None)
    return [_elected(one, found, groups) for one, found in zip(ones, votes, strict=True)]


def _elected(one: _Group, votes: set[int], groups: Sequence[_Group]) -> int | None:
    found = [index for index in votes if groups[index].versions.isdisjoint(one.versions)]
    if votes:
        return found[0] if len(found) == len(votes) == 1 else None
    candidates = (index for index, group in enumerate(groups) if group.versions.isdisjoint(one.versions))
    alike = [index for index in candidates if one.backup is not None and groups[index].backup == one.backup]
    return alike[0] if len(alike) == 1 else None


def _by_backup(prefixes: Sequence[_Prefix]) -> list[_Group]:
    """Prefixes without conflicts, such as IPv4 beside IPv6: one access network, or two if clients make some backups."""
    parts = ([one for one in prefixes if (one.backup is True) == backup] for backup in (False, True))
    return [_Group(tuple(part)) for part in parts if part]


def _proposal(
    seen: _Seen, groups: Sequence[_Group], left: Iterable[_Prefix], expensive: Collection[Address]
) -> Grouping:
    subnets = [_subnets(seen, group.prefixes) for group in groups]
    is_named = [any(address in one.subnet for one in those for address in expensive) for those in subnets]
    chosen = is_named if any(is_named) else [group.backup is True for group in groups]
    if all(chosen):
        chosen = [False] * len(groups)
    order = sorted(range(len(groups)), key=lambda n: (chosen[n], -sum(one.connections for one in subnets[n])))
    proposed = []
    for number, n in enumerate(order, 1):
        why = _why_preference(
            is_expensive=chosen[n], is_known=any(chosen), is_named=any(is_named), alone=len(groups) == 1
        )
        preference = EXPENSIVE if chosen[n] else 1
        kept = tuple(subnets[n][:_MOST_SUBNETS])
        proposed.append(ProposedNetwork(f"network-{number}", kept, preference, why, *_per(seen, groups[n].blocks)))
    left_out = seen.left_out + sum(max(0, len(those) - _MOST_SUBNETS) for those in subnets)
    return Grouping(tuple(proposed), tuple(_subnets(seen, left)), left_out)


def _subnets(seen: _Seen, prefixes: Iterable[_Prefix]) -> list[SeenSubnet]:
    """Those with most connections first."""
    counted = (seen.count(one.blocks) for one in prefixes)
    return sorted(counted, key=lambda one: (-one.connections, one.subnet.version, one.subnet))


def _why_preference(*, is_expensive: bool, is_known: bool, is_named: bool, alone: bool) -> str:
    if is_known and is_named:
        return (
            "this network is expensive (--expensive)" if is_expensive else "another network is expensive (--expensive)"
        )
    if is_known:
        return (
            "clients use it as a backup, so it is expensive"
            if is_expensive
            else "clients use another network as a backup"
        )
    if alone:
        return "the only access network that has been seen; caps need another one"
    return (
        "nothing says which network is expensive, so none caps another: give that one 2 and a cap, or see --expensive"
    )


def _per(seen: _Seen, blocks: Iterable[_Block]) -> tuple[Per, str]:
    """What shares the rates of a network, and why: subflows, if clients share an address."""
    beside = {address: len(seen.partners[address]) for block in blocks for address in seen.addresses[block]}
    most = max(beside, key=lambda address: beside[address])
    if beside[most] >= _SHARED_BY:
        others = f"{beside[most]} other subnets, as with address translation"
        return Per.SUBFLOW, f"Each subflow, since {most} was used beside addresses in {others}"
    return Per.CLIENT, "Each client, since no address seems to be shared by many"
