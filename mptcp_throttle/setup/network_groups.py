"""Which access networks the clients' addresses may belong to: a pure function of what was seen.

1. Addresses are looked at by block: an IPv4 /24, an IPv6 /64. Two blocks of one IP version are in conflict if
   connections have had addresses in both: a client had them at the same time, so they are of two networks.
2. Neighbouring blocks become one prefix, as short as possible, unless blocks in it are in conflict.
3. Prefixes in conflict are divided into as few groups as possible, none with two that are in conflict: each group is an
   access network (a greedy graph colouring).
4. Groups of the other IP version, and prefixes without any conflict, join the group beside which alone they were seen.
5. Expensive is the network that the operator names, or else what most clients have made a backup.

What this does not decide is not proposed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from itertools import combinations
from typing import Final, NamedTuple

from mptcp_throttle.model import Address, Network, Per
from mptcp_throttle.setup.network_evidence import Sighting

_BLOCK_BITS: Final = {4: 24, 6: 64}
# Operators have longer prefixes than these, or several; shorter ones would contain too much that was never seen.
_SHORTEST: Final = {4: 16, 6: 32}
_MOST_BLOCKS: Final = 4096
_MOST_SUBNETS: Final = 1000  # of an access network in one file (`NetworkFile`)
# A client that moves from one block to another has both in one connection for a moment: such a conflict counts only if
# it is in at least one of so many connections.
_RARE: Final = 20
_SHARED_BY: Final = 4
_MOST_NETWORKS: Final = 8

EXPENSIVE: Final = 2
"""The preference that is proposed for an expensive network; 1 is that of all others."""

_WHY_PREFERENCE: Final = {
    ("named", True): "this network is expensive (--expensive)",
    ("named", False): "another network is expensive (--expensive)",
    ("backup", True): "clients use it as a backup, so it is expensive",
    ("backup", False): "clients use another network as a backup",
}
_ONLY_NETWORK: Final = "the only access network that has been seen; caps need another one"
_NOT_KNOWN: Final = (
    "it is not known which network is expensive, so no network is capped: give the expensive network 2 and a cap,"
    " or see --expensive"
)


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


class Block(NamedTuple):
    """An IP version, and the leading bits of addresses."""

    version: int
    bits: int


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Blocks with a common prefix. `backup`: whether clients make them backups; None if they have no other address."""

    blocks: frozenset[Block]
    backup: bool | None

    @property
    def first(self) -> Block:
        return min(self.blocks)


@dataclass(frozen=True, slots=True)
class _Group:
    """Prefixes that belong to one access network, of one IP version or of both."""

    prefixes: tuple[_Prefix, ...]

    @property
    def blocks(self) -> frozenset[Block]:
        return frozenset().union(*(prefix.blocks for prefix in self.prefixes))

    @property
    def versions(self) -> set[int]:
        return {prefix.first.version for prefix in self.prefixes}

    @property
    def backup(self) -> bool | None:
        return next((prefix.backup for prefix in self.prefixes if prefix.backup is not None), None)


def group(sightings: Mapping[Sighting, int], expensive: Collection[Address] = ()) -> Grouping:
    """The access networks, from how many connections had which addresses.

    `expensive` are addresses in networks of which the operator says that they are.
    """
    seen = _Seen(sightings)
    of_ipv4, of_ipv6 = _prefixes(seen, 4), _prefixes(seen, 6)
    ipv4_groups, ipv4_crowded = _divided(seen, of_ipv4)
    ipv6_groups, ipv6_crowded = _divided(seen, of_ipv6)
    paired, unpaired = _joined(seen, ipv4_groups, ipv6_groups)
    groups = paired + unpaired
    without_conflict = [_Group((prefix,)) for prefix in (*of_ipv4, *of_ipv6) if not seen.conflicts_of(prefix)]
    if groups:
        groups, left = _joined(seen, groups, without_conflict)
    else:
        groups, left = _by_backup(without_conflict), []
    unassigned = [prefix for group in left for prefix in group.prefixes]
    return _proposal(seen, groups, [*unassigned, *ipv4_crowded, *ipv6_crowded], expensive)


class _Seen:
    """What was seen, by block.

    `together` counts the connections by the set of blocks that they have had, `connections` by each of these.
    `addresses` are those in each block, `beside` the other blocks that connections of an address have had.
    `backup` says of each block that was beside another whether most clients have made it a backup.
    """

    def __init__(self, sightings: Mapping[Sighting, int]) -> None:
        self.connections: Counter[Block] = Counter()
        for sighting, count in sightings.items():
            self.connections.update(dict.fromkeys(map(block_of, sighting.addresses), count))
        by_use = sorted(self.connections, key=lambda block: (-self.connections[block], block))
        self.left_out = max(0, len(by_use) - _MOST_BLOCKS)
        self.blocks = frozenset(by_use[:_MOST_BLOCKS])
        self.together: Counter[frozenset[Block]] = Counter()
        self.beside: dict[Address, set[Block]] = defaultdict(set)
        self.addresses: dict[Block, set[Address]] = defaultdict(set)
        votes, backup_votes, voters = Counter[Block](), Counter[Block](), set()
        for sighting, count in sightings.items():
            blocks = {address: block_of(address) for address in sighting.addresses}
            here = self.blocks.intersection(blocks.values())
            self.together[here] += count
            for address, block in blocks.items():
                if block in here:
                    self.addresses[block].add(address)
                    self.beside[address] |= here - {block}
            # Each client votes once, however many connections it opens.
            voter = sighting.addresses, bool(sighting.backups)
            if len(here) > 1 and voter not in voters:
                voters.add(voter)
                votes.update(here)
                backup_votes.update(here & {blocks[address] for address in sighting.backups})
        self.backup = {block: backup_votes[block] * 2 > votes[block] for block in votes}
        self._conflicts = self._find_conflicts()

    def _find_conflicts(self) -> dict[Block, set[Block]]:
        pairs: Counter[tuple[Block, Block]] = Counter()
        for here, count in self.together.items():
            for first, second in combinations(sorted(here), 2):
                if first.version == second.version:
                    pairs[first, second] += count
        conflicts: dict[Block, set[Block]] = defaultdict(set)
        for (first, second), count in pairs.items():
            if count * _RARE >= min(self.connections[first], self.connections[second]):
                conflicts[first].add(second)
                conflicts[second].add(first)
        return conflicts

    def conflicts_of(self, prefix: _Prefix) -> set[Block]:
        return set().union(*(self._conflicts[block] for block in prefix.blocks if block in self._conflicts))

    def subnets(self, prefixes: Iterable[_Prefix]) -> list[SeenSubnet]:
        """Those with most connections first."""
        counted = map(self._count, prefixes)
        return sorted(counted, key=lambda seen: (-seen.connections, seen.subnet.version, seen.subnet))

    def _count(self, prefix: _Prefix) -> SeenSubnet:
        addresses = sum(len(self.addresses[block]) for block in prefix.blocks)
        return SeenSubnet(_subnet(prefix.blocks), addresses, sum(self.connections[block] for block in prefix.blocks))


def block_of(address: Address) -> Block:
    """The block that an address is in."""
    return Block(address.version, int(address) >> (address.max_prefixlen - _BLOCK_BITS[address.version]))


def _subnet(blocks: Collection[Block]) -> Network:
    """The longest prefix of all these blocks of one IP version."""
    (version, first), (_, last) = min(blocks), max(blocks)
    free = (first ^ last).bit_length()
    address = IPv4Address if version == 4 else IPv6Address
    host_bits = address(0).max_prefixlen - _BLOCK_BITS[version]
    return ip_network((address(first >> free << free << host_bits), _BLOCK_BITS[version] - free))


def _prefixes(seen: _Seen, version: int) -> list[_Prefix]:
    """Blocks with as short a common prefix as possible, but none with two blocks that are in conflict."""
    blocks = sorted(block for block in seen.blocks if block.version == version)
    return _merged(seen, [_Prefix(frozenset({block}), seen.backup.get(block)) for block in blocks]) if blocks else []


def _merged(seen: _Seen, prefixes: list[_Prefix]) -> list[_Prefix]:
    """Prefixes in the order of their addresses: each half that has become a single one is merged with the other."""
    if len(prefixes) == 1:
        return prefixes
    (version, first), (_, last) = prefixes[0].first, prefixes[-1].first
    free = (first ^ last).bit_length()
    middle = last >> (free - 1) << (free - 1)
    at = next(index for index, prefix in enumerate(prefixes) if prefix.first.bits >= middle)
    lower, upper = _merged(seen, prefixes[:at]), _merged(seen, prefixes[at:])
    if len(lower) == len(upper) == 1 and _BLOCK_BITS[version] - free >= _SHORTEST[version]:
        (low,), (high,) = lower, upper
        if _are_alike(low.backup, high.backup) and seen.conflicts_of(low).isdisjoint(high.blocks):
            return [_Prefix(low.blocks | high.blocks, high.backup if low.backup is None else low.backup)]
    return lower + upper


def _are_alike(backup: bool | None, other_backup: bool | None) -> bool:
    return None in (backup, other_backup) or backup == other_backup


def _divided(seen: _Seen, prefixes: Iterable[_Prefix]) -> tuple[list[_Group], list[_Prefix]]:
    """Groups of the prefixes that have conflicts; and those that fit into no group, as there are too many.

    Each is in the first group with none that is in conflict with it. What has most conflicts comes first: a carrier has
    few prefixes, beside those of many other networks.
    """
    conflicts = {prefix: seen.conflicts_of(prefix) for prefix in prefixes}
    members: list[list[_Prefix]] = []
    blocks: list[set[Block]] = []
    crowded = []
    for prefix in sorted(filter(conflicts.get, conflicts), key=lambda prefix: (-len(conflicts[prefix]), prefix.first)):
        fitting = (
            index
            for index, present in enumerate(members)
            if _are_alike(present[0].backup, prefix.backup) and conflicts[prefix].isdisjoint(blocks[index])
        )
        index = next(fitting, len(members))
        if index == _MOST_NETWORKS:
            crowded.append(prefix)
            continue
        if index == len(members):
            members.append([])
            blocks.append(set())
        members[index].append(prefix)
        blocks[index] |= prefix.blocks
    return [_Group(tuple(present)) for present in members], crowded


def _joined(seen: _Seen, groups: Sequence[_Group], newcomers: Sequence[_Group]) -> tuple[list[_Group], list[_Group]]:
    """The groups, each with the newcomers that are the other IP version of the same network; and the newcomers left.

    Connections with addresses in a group and a newcomer alone say so.
    """
    newcomer_of = {block: index for index, newcomer in enumerate(newcomers) for block in newcomer.blocks}
    group_of = {block: index for index, group in enumerate(groups) for block in group.blocks}
    votes: list[set[int]] = [set() for _ in newcomers]
    for blocks in seen.together:
        of_newcomers = {newcomer_of[block] for block in blocks if block in newcomer_of}
        of_groups = {group_of.get(block) for block in blocks if block not in newcomer_of}
        if len(of_newcomers) == len(of_groups) == 1:
            votes[of_newcomers.pop()].update(index for index in of_groups if index is not None)
    joined, left = [*groups], []
    for newcomer, indices in zip(newcomers, votes, strict=True):
        index = _elected(newcomer, indices, groups)
        if index is None:
            left.append(newcomer)
        else:
            joined[index] = _Group(joined[index].prefixes + newcomer.prefixes)
    return joined, left


def _elected(newcomer: _Group, votes: set[int], groups: Sequence[_Group]) -> int | None:
    """The only group of the other IP version with votes; without any votes, the only one that is a backup as it is."""
    fitting = {index for index, group in enumerate(groups) if group.versions.isdisjoint(newcomer.versions)}
    alike = {index for index in fitting if newcomer.backup is not None and groups[index].backup == newcomer.backup}
    candidates = votes or alike
    return next(iter(candidates)) if len(candidates) == 1 and candidates <= fitting else None


def _by_backup(groups: Sequence[_Group]) -> list[_Group]:
    """Prefixes without conflicts, such as IPv4 beside IPv6: one access network, or two if clients make some backups."""
    prefixes = [prefix for group in groups for prefix in group.prefixes]
    parts = (tuple(p for p in prefixes if (p.backup is True) == is_backup) for is_backup in (False, True))
    return [_Group(part) for part in parts if part]


def _proposal(
    seen: _Seen, groups: Sequence[_Group], unassigned: Iterable[_Prefix], expensive: Collection[Address]
) -> Grouping:
    subnets = [seen.subnets(group.prefixes) for group in groups]
    named = [any(address in counted.subnet for counted in present for address in expensive) for present in subnets]
    is_expensive = named if any(named) else [group.backup is True for group in groups]
    if all(is_expensive):
        is_expensive = [False] * len(groups)
    source = "named" if any(named) else "backup"
    unknown = _ONLY_NETWORK if len(groups) == 1 else _NOT_KNOWN
    connections = [sum(counted.connections for counted in present) for present in subnets]
    proposed: list[ProposedNetwork] = []
    for index in sorted(range(len(groups)), key=lambda index: (is_expensive[index], -connections[index])):
        proposed.append(
            ProposedNetwork(
                f"network-{len(proposed) + 1}",
                tuple(subnets[index][:_MOST_SUBNETS]),
                EXPENSIVE if is_expensive[index] else 1,
                _WHY_PREFERENCE[source, is_expensive[index]] if any(is_expensive) else unknown,
                *_per(seen, groups[index].blocks),
            )
        )
    left_out = seen.left_out + sum(max(0, len(present) - _MOST_SUBNETS) for present in subnets)
    return Grouping(tuple(proposed), tuple(seen.subnets(unassigned)), left_out)


def _per(seen: _Seen, blocks: Iterable[Block]) -> tuple[Per, str]:
    """What shares the rates of a network, and why: subflows, if clients share an address."""
    beside = {address: len(seen.beside[address]) for block in blocks for address in seen.addresses[block]}
    most = max(beside, key=lambda address: beside[address])
    if beside[most] >= _SHARED_BY:
        subnets = f"{beside[most]} other subnets, as with address translation"
        return Per.SUBFLOW, f"Each subflow, since {most} was used beside addresses in {subnets}"
    return Per.CLIENT, "Each client: no address seems to be shared by many"
