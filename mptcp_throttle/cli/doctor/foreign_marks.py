"""Which foreign chains change marks or priorities of packets after ours: pure functions of what the tools list.

Ours is in the hook POSTROUTING with the priority of `mangle`, in front of what iptables-legacy(8) has there. Which of
several tables with one priority is first depends on which was made first: foreign tables count as later. Where the
socket names the class, all chains that see what leaves this host are later (`all_hooks`).
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import and_, or_, xor
from typing import Final

from mptcp_throttle.model import OWN_CHAIN, OWN_TABLE
from mptcp_throttle.rpc import Json

_HOOK: Final = "POSTROUTING"
_OUTPUT: Final = "OUTPUT"
_ALL: Final = 0xFFFF_FFFF
_PRIORITY: Final = -150  # NF_IP_PRI_MANGLE, include/uapi/linux/netfilter_ipv4.h
_MARK: Final = {"meta": {"key": "mark"}}
_OWN_TABLES: Final = frozenset({("ip", OWN_TABLE), ("ip6", OWN_TABLE)})
_PACKET_PRIORITY: Final = {"meta": {"key": "priority"}}
_OPERATORS: Final = {"&": and_, "|": or_, "^": xor}


def iptables_chains(saved: str, mask: int | None, *, all_hooks: bool = False) -> list[str]:
    """The chains of the mangle table that change bits under `mask`, from what iptables-save(8) prints.

    With None, those that change the priority of packets.
    """
    rules = _mangle_rules(saved)
    targets = [_option(rule, "-j") for rule in rules[_HOOK]]
    if OWN_CHAIN in targets and not all_hooks:
        rules[_HOOK] = rules[_HOOK][targets.index(OWN_CHAIN) + 1 :]
    jumps = {chain: [_option(rule, "-j") or _option(rule, "-g") for rule in listed] for chain, listed in rules.items()}
    reached = _reached([_OUTPUT, _HOOK] if all_hooks else [_HOOK], jumps)
    return [chain for chain in rules if chain in reached and any(_changes(rule, mask) for rule in rules[chain])]


def _mangle_rules(saved: str) -> defaultdict[str, list[list[str]]]:
    """The words of the rules of each chain."""
    rules, table = defaultdict(list), ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith("-A ") and table == "mangle":
            _, chain, *words = shlex.split(line)
            rules[chain].append(words)
    return rules


def _option(rule: list[str], name: str) -> str:
    return rule[rule.index(name) + 1] if name in rule[:-1] else ""


def _changes(rule: list[str], mask: int | None) -> bool:
    return _option(rule, "-j") == "CLASSIFY" if mask is None else bool(_iptables_bits(rule) & mask)


def _iptables_bits(rule: list[str]) -> int:
    """The bits of the mark that a rule's target may change (iptables-extensions(8))."""
    match _option(rule, "-j"):
        case "MARK":
            value, _, mask = _option(rule, "--set-xmark").partition("/")
            return int(value, 0) | int(mask or str(_ALL), 0) if value else _ALL
        case "CONNMARK" if "--restore-mark" in rule:
            masks = _option(rule, "--nfmask"), _option(rule, "--ctmask")
            return reduce(or_, (int(mask or str(_ALL), 0) for mask in masks))
        case "SET" if "--map-mark" in rule:
            return _ALL
        case "HMARK":
            return _ALL
    return 0


def nft_chains(ruleset: Json, mask: int | None, *, all_hooks: bool = False) -> list[str]:
    """The chains that change bits under `mask`, from what `nft -j list ruleset` prints (libnftables-json(5)).

    With None, those that change the priority of packets. What iptables-nft(8) has made is there without its targets:
    iptables-nft-save prints it for `iptables_chains`.
    """
    tables: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for item in ruleset["nftables"]:
        for kind, described in item.items():
            if kind in {"chain", "rule", "map"}:
                tables[described["family"], described["table"]].append(item)
    return [
        f"{chain} of table {family} {table}"
        for (family, table), items in tables.items()
        if (family, table) not in _OWN_TABLES
        for chain in _chains_of_table(items, mask, all_hooks=all_hooks)
    ]


def _chains_of_table(items: Iterable[Json], mask: int | None, *, all_hooks: bool) -> Iterator[str]:
    rules: dict[str, list[Json]] = defaultdict(list)
    maps: dict[str, Json] = {}
    hooked = []
    for item in items:
        match item:
            case {"chain": chain} if _is_later(chain, all_hooks=all_hooks):
                hooked.append(chain["name"])
            case {"rule": rule}:
                rules[rule["chain"]].append(rule["expr"])
            case {"map": map_}:
                maps[f"@{map_['name']}"] = map_.get("elem")
    reached = _reached(hooked, {chain: list(_targets(listed, maps)) for chain, listed in rules.items()})
    return (chain for chain in rules if chain in reached and any(_nft_changes(rule, mask) for rule in rules[chain]))


def _is_later(chain: Json, *, all_hooks: bool) -> bool:
    hook, kind, priority = (chain.get(key) for key in ("hook", "type", "prio"))
    if kind == "nat":  # it sees only the first packet of a connection
        return False
    if all_hooks:
        return hook in {"output", "postrouting", "egress"}
    return hook == "egress" or (hook == "postrouting" and int(priority) >= _PRIORITY)


def _targets(part: Json, maps: Mapping[str, Json]) -> Iterator[str]:
    """The chains to which a part of a rule leads, by itself or by a map of verdicts."""
    if isinstance(part, str):
        part = maps.get(part)
    if isinstance(part, dict):
        if "target" in part:
            yield part["target"]
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        yield from _targets(inner, maps)


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


def _reached(start: Iterable[str], jumps: Mapping[str, Iterable[str]]) -> set[str]:
    """The chains that packets get to from these."""
    reached: set[str] = set()
    waiting = list(start)
    while waiting:
        chain = waiting.pop()
        if chain not in reached:
            reached.add(chain)
            waiting += jumps.get(chain, ())
    return reached
