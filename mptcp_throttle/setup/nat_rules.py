"""Which rules send connections from other hosts elsewhere than to the port they ask for.

These are pure functions of what the tools of iptables and nftables list.

Only what packets meet in PREROUTING counts, and of rules for certain addresses those for addresses of this host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

from mptcp_throttle.model import Address
from mptcp_throttle.packet_rules import (
    is_negated,
    mapped,
    nft_jumps,
    nft_maps,
    nft_ports,
    nft_tables,
    option,
    saved_ports,
    saved_rules,
)
from mptcp_throttle.ports import ALL_PORTS, NO_PORTS, Ports
from mptcp_throttle.rpc import Json
from mptcp_throttle.setup.host_facts import Translation

_DESTINATION: Final = re.compile(
    r"\[(?P<v6>[^\]]+)\](?::(?P<v6_port>.*))?|(?P<v4>(?:\d+\.[\d.-]+)?)(?::(?P<v4_port>.*))?"
)
_ADDRESSES: Final = (
    {"payload": {"protocol": "ip", "field": "daddr"}},
    {"payload": {"protocol": "ip6", "field": "daddr"}},
)
_LOOPBACK: Final = {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lo"}}


class _Rule(NamedTuple):
    """The destination ports that it matches; and the chain to which it leads, or the new address and port.

    An `address` of None is this host's.
    """

    ports: Ports
    chain: str | None = None
    address: str | None = None
    port: int | None = None


def saved_translations(saved: str, program: str, own: Collection[Address]) -> Iterator[Translation]:
    """From what iptables-save(8) prints; `own` are the addresses of this host."""
    listed = saved_rules(saved, "nat")
    rules = {
        chain: [made for words in lines if _is_to(words, own) for made in _saved_rule(words, own)]
        for chain, lines in listed.items()
    }
    return _walk(rules, ["PREROUTING"], f"table nat ({program.removesuffix('-save')})")


def saved_interceptions(saved: str, program: str) -> Iterator[Translation]:
    """As `saved_translations`, of TPROXY: connections keep their address and port, and `port` is that of the listener.

    The addresses of a rule do not matter: they are those of other hosts.
    """
    listed = saved_rules(saved, "mangle")
    rules = {chain: [_saved_interception(words) for words in lines] for chain, lines in listed.items()}
    return _walk(rules, ["PREROUTING"], f"table mangle ({program.removesuffix('-save')})")


def _saved_interception(words: list[str]) -> _Rule:
    ports, target = saved_ports(words, "dport"), option(words, "-j", "-g")
    return _Rule(ports, port=_number(option(words, "--on-port"))) if target == "TPROXY" else _Rule(ports, chain=target)


def _is_to(words: list[str], own: Collection[Address]) -> bool:
    """Whether a rule may match packets from other hosts to one of these addresses."""
    if option(words, "-i") == "lo" and not is_negated(words, "-i"):
        return False
    text = option(words, "-d")
    if not text or is_negated(words, "-d"):
        return True
    return any(address in ip_network(text, strict=False) for address in own)


def _saved_rule(words: list[str], own: Collection[Address]) -> Iterator[_Rule]:
    ports, target = saved_ports(words, "dport"), option(words, "-j", "-g")
    match target:
        case "DNAT":
            text = option(words, "--to-destination")
            parsed = _DESTINATION.fullmatch(text)
            address, port = (text, None) if parsed is None else (parsed["v6"] or parsed["v4"], _port(parsed))
            yield _Rule(ports, address=_foreign(address, own), port=port)
        case "REDIRECT":
            yield _Rule(ports, port=_number(option(words, "--to-ports")))
        case _:
            yield _Rule(ports, chain=target)


def _port(destination: re.Match[str]) -> int | None:
    return _number(destination["v6_port"] or destination["v4_port"] or "")


def _number(text: str) -> int | None:
    """A port; None if there is none, or a range."""
    return int(text) if text.isdecimal() else None


def _foreign(address: str, own: Collection[Address]) -> str | None:
    """The address; None for one of this host, or none at all."""
    try:
        return None if not address or ip_address(address) in own or ip_address(address).is_loopback else address
    except ValueError:
        return address


def led_away(translation: Translation, ports: Ports) -> Ports:
    """Of these ports, those whose connections a rule sends to another host or port."""
    concerned = ports & translation.ports
    if translation.address is not None:
        return concerned
    return NO_PORTS if translation.port is None else concerned - Ports.of([translation.port])


def nft_translations(ruleset: Json, own: Collection[Address]) -> Iterator[Translation]:
    """From what `nft -j list ruleset` prints."""

    def made(parts: Sequence[Json], maps: Mapping[str, Json]) -> Iterator[_Rule]:
        return _nft_rules(parts, maps, own) if all(_may_be_to(part, own) for part in parts) else iter(())

    return _walk_nft(ruleset, "nat", made)


def nft_interceptions(ruleset: Json) -> Iterator[Translation]:
    """As `saved_interceptions`, from what `nft -j list ruleset` prints."""
    return _walk_nft(ruleset, "filter", _nft_interceptions)


def _walk_nft(
    ruleset: Json, chain_type: str, made: Callable[[Sequence[Json], Mapping[str, Json]], Iterable[_Rule]]
) -> Iterator[Translation]:
    """What the rules of chains of this type do, and those of the chains that these lead to."""
    for (family, table), items in nft_tables(ruleset).items():
        maps = nft_maps(items)
        rules: dict[str, list[_Rule]] = {}
        hooked = []
        for item in items:
            match item:
                case {"chain": {"type": kind, "hook": "prerouting", "name": name}} if kind == chain_type:
                    hooked.append(name)
                case {"rule": {"chain": name, "expr": parts}}:
                    rules.setdefault(name, []).extend(made(parts, maps))
        yield from _walk(rules, hooked, f"table {family} {table}")


def _nft_interceptions(parts: Sequence[Json], maps: Mapping[str, Json]) -> Iterator[_Rule]:
    yield from (_Rule(ports, chain=chain) for ports, chain in nft_jumps(parts, maps, "dport"))
    for part in parts:
        if "tproxy" in part:
            port = part["tproxy"].get("port")
            yield _Rule(nft_ports(parts, "dport"), port=port if isinstance(port, int) else None)


def _may_be_to(part: Json, own: Collection[Address]) -> bool:
    """Whether a part of a rule may match packets from other hosts to one of these addresses."""
    match part:
        case {"match": {"op": "==", "left": left, "right": right}} if left in _ADDRESSES:
            return _has_own(right, own)
    return bool(part != _LOOPBACK)


def _has_own(value: Json, own: Collection[Address]) -> bool:
    match value:
        case str() if not value.startswith("@"):
            return ip_address(value) in own
        case {"prefix": {"addr": address, "len": length}}:
            return any(each in ip_network(f"{address}/{length}", strict=False) for each in own)
        case {"set": list(values)}:
            return any(_has_own(each, own) for each in values)
    return True


def _nft_rules(parts: Sequence[Json], maps: Mapping[str, Json], own: Collection[Address]) -> Iterator[_Rule]:
    yield from (_Rule(ports, chain=chain) for ports, chain in nft_jumps(parts, maps, "dport"))
    for part in parts:
        for statement in ("dnat", "redirect"):
            if statement in part:
                to = part[statement] or {}
                for ports, address, port in _destinations(to.get("addr"), to.get("port"), maps):
                    yield _Rule(nft_ports(parts, "dport") & ports, None, _foreign(address, own), port)


def _destinations(address: Json, port: Json, maps: Mapping[str, Json]) -> Iterator[tuple[Ports, str, int | None]]:
    for first, named in _values(address, maps):
        for second, number in _values(port, maps):
            match named:
                case {"concat": [str(host), int(its_port)]}:
                    yield first & second, host, its_port
                case str() | None:
                    yield first & second, named or "", number if isinstance(number, int) else None
                case _:
                    yield first & second, "another address", None


def _values(value: Json, maps: Mapping[str, Json]) -> Iterable[tuple[Ports, Json]]:
    """What an expression may be, with which ports."""
    match value:
        case {"map": {"key": key, "data": data}}:
            return mapped(key, data, maps, "dport")
    return [(ALL_PORTS, value)]


def _walk(rules: Mapping[str, Iterable[_Rule]], start: Iterable[str], table: str) -> Iterator[Translation]:
    """What the rules do with packets that begin in these chains."""
    waiting = [(chain, ALL_PORTS) for chain in start]
    seen = set(waiting)
    while waiting:
        chain, allowed = waiting.pop()
        for rule in rules.get(chain, ()):
            ports = allowed & rule.ports
            step = (rule.chain or "", ports)
            if ports and rule.chain is None:
                yield Translation(f"{chain} of {table}", ports, rule.address, rule.port)
            elif ports and step not in seen:
                seen.add(step)
                waiting.append(step)
