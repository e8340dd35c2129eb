"""Which foreign chains change marks or priorities of packets after ours: pure functions of what the tools list.

Ours is in the hook POSTROUTING with the priority `own`; with that of `mangle` it is in front of what iptables-legacy(8)
has there. Which of several tables with one priority is first depends on which was made first: foreign tables count as
later. Where the socket names the class, all chains that see what leaves this host are later (`own` is None). Rules that
match nothing that is sent from the `ports` of the proxy are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import and_, or_, xor
from typing import Final

from mptcp_throttle.own_chains import BEFORE_NAT, OWN_CHAIN, OWN_TABLE
from mptcp_throttle.packet_rules import (
    nft_jumps,
    nft_maps,
    nft_ports,
    nft_tables,
    option,
    reached,
    saved_ports,
    saved_rules,
)
from mptcp_throttle.ports import ALL_PORTS, Ports
from mptcp_throttle.rpc import Json

_HOOK: Final = "POSTROUTING"
_OUTPUT: Final = "OUTPUT"
_ALL: Final = 0xFFFF_FFFF
_MARK: Final = {"meta": {"key": "mark"}}
_OWN_TABLES: Final = frozenset({("ip", OWN_TABLE), ("ip6", OWN_TABLE)})
_PACKET_PRIORITY: Final = {"meta": {"key": "priority"}}
_OPERATORS: Final = {"&": and_, "|": or_, "^": xor}


def iptables_chains(
    saved: str, mask: int | None, own: int | None = BEFORE_NAT, *, ports: Ports = ALL_PORTS
) -> list[str]:
    """The chains of the mangle table that change bits under `mask`, from what iptables-save(8) prints.

    With None, those that change the priority of packets.
    """
    rules = saved_rules(saved, "mangle")
    targets = [option(rule, "-j") for rule in rules[_HOOK]]
    if OWN_CHAIN in targets and own is not None:
        rules[_HOOK] = rules[_HOOK][targets.index(OWN_CHAIN) + 1 :]
    matching = {
        chain: [rule for rule in listed if ports & saved_ports(rule, "sport")] for chain, listed in rules.items()
    }
    jumps = {chain: [option(rule, "-j", "-g") for rule in listed] for chain, listed in matching.items()}
    later = [_OUTPUT, _HOOK] if own is None else [_HOOK] if own <= BEFORE_NAT else []
    present = reached(later, jumps)
    return [chain for chain in rules if chain in present and any(_changes(rule, mask) for rule in matching[chain])]


def _changes(rule: list[str], mask: int | None) -> bool:
    return option(rule, "-j") == "CLASSIFY" if mask is None else bool(_iptables_bits(rule) & mask)


def _iptables_bits(rule: list[str]) -> int:
    """The bits of the mark that a rule's target may change (iptables-extensions(8))."""
    match option(rule, "-j"):
        case "MARK":
            value, _, mask = option(rule, "--set-xmark").partition("/")
            return int(value, 0) | int(mask or str(_ALL), 0) if value else _ALL
        case "CONNMARK" if "--restore-mark" in rule:
            masks = option(rule, "--nfmask"), option(rule, "--ctmask")
            return reduce(or_, (int(mask or str(_ALL), 0) for mask in masks))
        case "SET" if "--map-mark" in rule:
            return _ALL
        case "HMARK":
            return _ALL
    return 0


def nft_chains(ruleset: Json, mask: int | None, own: int | None = BEFORE_NAT, *, ports: Ports = ALL_PORTS) -> list[str]:
    """The chains that change bits under `mask`, from what `nft -j list ruleset` prints.

    With None, those that change the priority of packets.
    """
    return [
        f"{chain} of table {family} {table}"
        for (family, table), items in nft_tables(ruleset).items()
        if (family, table) not in _OWN_TABLES
        for chain in _chains_of_table(items, mask, own, ports)
    ]


def _chains_of_table(items: Iterable[Json], mask: int | None, own: int | None, ports: Ports) -> Iterator[str]:
    rules: dict[str, list[Json]] = defaultdict(list)
    maps, hooked = nft_maps(items), []
    for item in items:
        match item:
            case {"chain": chain} if _is_later(chain, own):
                hooked.append(chain["name"])
            case {"rule": {"chain": chain, "expr": rule}}:
                if ports & nft_ports(rule, "sport"):
                    rules[chain].append(rule)
    jumps = {
        chain: [target for rule in listed for matched, target in nft_jumps(rule, maps, "sport") if ports & matched]
        for chain, listed in rules.items()
    }
    present = reached(hooked, jumps)
    return (chain for chain in rules if chain in present and any(_nft_changes(rule, mask) for rule in rules[chain]))


def _is_later(chain: Json, own: int | None) -> bool:
    hook, kind, priority = (chain.get(key) for key in ("hook", "type", "prio"))
    if kind == "nat":  # it sees only the first packet of a connection
        return False
    if own is None:
        return hook in {"output", "postrouting", "egress"}
    return hook == "egress" or (hook == "postrouting" and int(priority) >= own)


def _nft_changes(rule: Iterable[Json], mask: int | None) -> bool:
    if mask is None:
        return any("mangle" in part and part["mangle"]["key"] == _PACKET_PRIORITY for part in rule)
    return bool(_nft_bits(rule) & mask)


def _nft_bits(rule: Iterable[Json]) -> int:
    """The bits of the mark that a rule may change."""
    values = [part["mangle"]["value"] for part in rule if "mangle" in part and part["mangle"]["key"] == _MARK]
    return reduce(or_, map(_changed_bits, values), 0)


def _changed_bits(value: Json) -> int:
    """The bits in which `value` may differ from the mark: each of its bits follows from the same bit of the mark."""
    of_zeros, of_ones = _evaluate(value, 0), _evaluate(value, _ALL)
    return _ALL if of_zeros is None or of_ones is None else of_zeros | (of_ones ^ _ALL)


def _evaluate(value: Json, mark: int) -> int | None:
    """An expression; None for one that depends on something besides the mark."""
    if isinstance(value, int):
        return value
    if value == _MARK:
        return mark
    for name, operator in _OPERATORS.items():
        if isinstance(value, dict) and name in value:
            operands = [_evaluate(operand, mark) for operand in value[name]]
            return None if None in operands else reduce(operator, operands)
    return None
