"""Rules of iptables and nftables, as their tools list them: where packets get to, and which TCP ports rules match.

Pure functions. A match that is not understood is taken for a match of everything. In JSON nft(8) lists no targets of
rules that iptables-nft(8) has made: iptables-nft-save prints them.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from mptcp_throttle.ports import ALL_PORTS, NO_PORTS, Ports
from mptcp_throttle.rpc import Json

LEGACY_SAVE: Final = ("iptables-legacy-save", "ip6tables-legacy-save")
IPTABLES_SAVE: Final = (*LEGACY_SAVE, "iptables-nft-save", "ip6tables-nft-save")
"""Without a table's name these list the tables that exist, and make none."""

NFT_LIST: Final = ("nft", "--json", "list", "ruleset")

_NO_TCP: Final = frozenset({"udp", "udplite", "sctp", "dccp", "icmp", "icmpv6", "igmp", "esp", "ah", "comp"})
_TCP: Final = frozenset({"tcp", "6", "all", "0"})  # as iptables-save prints a protocol
_PROTOCOL: Final = ({"meta": {"key": "l4proto"}}, {"payload": {"protocol": "ip", "field": "protocol"}})


def saved_rules(saved: str, table: str) -> defaultdict[str, list[list[str]]]:
    """The words of the rules of each chain of a table, from what iptables-save(8) prints."""
    rules, present = defaultdict(list), ""
    for line in saved.splitlines():
        if line.startswith("*"):
            present = line[1:]
        elif line.startswith("-A ") and present == table:
            _, chain, *words = shlex.split(line)
            rules[chain].append(words)
    return rules


def option(rule: list[str], *names: str) -> str:
    """The argument of the first of these options that a rule of iptables has; empty if it has none."""
    return next((rule[rule.index(name) + 1] for name in names if name in rule[:-1]), "")


def is_negated(rule: list[str], name: str) -> bool:
    """Whether a rule of iptables has `! NAME`."""
    return ("!", name) in pairwise(rule)


def saved_ports(rule: list[str], field: str) -> Ports:
    """The ports that a rule of iptables matches, of TCP: `field` is `sport` or `dport`."""
    protocol = option(rule, "-p")
    if protocol and (protocol in _TCP) is is_negated(rule, "-p"):
        return NO_PORTS
    ports = ALL_PORTS
    for name in (f"--{field}", f"--{field}s"):
        text = option(rule, name)
        if text:
            bounds = (each.partition(":") for each in text.split(","))
            named = Ports(tuple(range(int(first), int(last or first) + 1) for first, _, last in bounds))
            ports = ports - named if is_negated(rule, name) else ports & named
    return ports


def nft_tables(ruleset: Json) -> Mapping[tuple[str, str], list[Json]]:
    """The chains, rules and maps of each table, by its family and its name (libnftables-json(5))."""
    tables: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for item in ruleset["nftables"]:
        for kind, described in item.items():
            if kind in {"chain", "rule", "map"}:
                tables[described["family"], described["table"]].append(item)
    return tables


def nft_maps(items: Iterable[Json]) -> dict[str, Json]:
    """The elements of the maps of a table, by the name with which a rule refers to them."""
    return {f"@{item['map']['name']}": item["map"].get("elem") for item in items if "map" in item}


def nft_ports(rule: Iterable[Json], field: str) -> Ports:
    """As `saved_ports`, of the parts of a rule of nftables."""
    ports = ALL_PORTS
    for part in rule:
        match part:
            case {"match": {"left": {"payload": {"protocol": protocol}}}} if protocol in _NO_TCP:
                return NO_PORTS
            case {"match": {"op": "==" | "!=" | "in" as operator, "left": left, "right": right}}:
                matched = _of_key(left, right, field)
                ports = ports - matched if operator == "!=" and matched != ALL_PORTS else ports & matched
    return ports


def _of_key(key: Json, value: Json, field: str) -> Ports:
    """The ports with which an expression has a value."""
    match key, value:
        case {"payload": {"protocol": "tcp" | "th", "field": name}}, _ if name == field:
            return _of_value(value)
        case {"payload": {"protocol": protocol}}, _ if protocol in _NO_TCP:
            return NO_PORTS
        case {"concat": keys}, {"concat": values}:
            ports = ALL_PORTS
            for each_key, each_value in zip(keys, values, strict=False):
                ports &= _of_key(each_key, each_value, field)
            return ports
    return NO_PORTS if key in _PROTOCOL and isinstance(value, str) and value in _NO_TCP else ALL_PORTS


def _of_value(value: Json) -> Ports:
    match value:
        case int():
            return Ports.of([value])
        case {"range": [int(first), int(last)]}:
            return Ports((range(first, last + 1),))
        case {"set": list(values)}:
            return Ports(tuple(ports for each in values for ports in _of_value(each).ranges))
        case {"elem": {"val": each}}:
            return _of_value(each)
    return ALL_PORTS


def mapped(key: Json, data: Json, maps: Mapping[str, Json], field: str) -> Iterator[tuple[Ports, Json]]:
    """What a map of nftables has for which ports."""
    elements = maps.get(data) if isinstance(data, str) else data.get("set")
    for element, value in elements or ():
        plain = element["elem"]["val"] if isinstance(element, dict) and "elem" in element else element
        yield _of_key(key, plain, field), value


def nft_jumps(rule: Iterable[Json], maps: Mapping[str, Json], field: str) -> Iterator[tuple[Ports, str]]:
    """The chains to which a rule leads, by itself or by a map of verdicts, and with which ports."""
    rule = list(rule)
    ports = nft_ports(rule, field)
    for part in rule:
        verdicts: Iterable[tuple[Ports, Json]] = [(ALL_PORTS, part)]
        if "vmap" in part:
            verdicts = mapped(part["vmap"]["key"], part["vmap"]["data"], maps, field)
        for limited, verdict in verdicts:
            match verdict:
                case {"jump": {"target": chain}} | {"goto": {"target": chain}}:
                    yield ports & limited, chain


def reached(start: Iterable[str], jumps: Mapping[str, Iterable[str]]) -> set[str]:
    """The chains that packets get to from these."""
    seen: set[str] = set()
    waiting = list(start)
    while waiting:
        chain = waiting.pop()
        if chain not in seen:
            seen.add(chain)
            waiting += jumps.get(chain, ())
    return seen
