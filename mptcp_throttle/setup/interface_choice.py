"""Through which interfaces clients come: what the operator has named, or what speaks for one most convincingly."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import yaml

from mptcp_throttle.errors import EX_COMMAND_LINE, UserError
from mptcp_throttle.setup.host_facts import HostFacts, Interface, Listener
from mptcp_throttle.setup.proposed_value import Value
from mptcp_throttle.setup.wording import listed


def interface_value(names: Collection[str], why: str) -> Value:
    """The value for these interfaces."""
    if len(names) == 1:
        (name,) = names
        return Value(("proxy", "interface"), _quoted(name), why, alternative="interfaces")
    return Value(("proxy", "interfaces"), f"[{', '.join(map(_quoted, names))}]", why, alternative="interface")


def _quoted(name: str) -> str:
    """The name of an interface in YAML: almost any character may be in it, and one may be called `null` or `1`."""
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) and yaml.safe_load(name) == name
    return name if is_plain else json.dumps(name)


class _Candidates(NamedTuple):
    """Interfaces, and what speaks for them; `all_count`: for each of them, not only for one or the other."""

    names: set[str]
    why: str
    all_count: bool


def choose_interfaces(
    facts: HostFacts, named: Collection[str], listening: Collection[Listener]
) -> tuple[list[str], str]:
    """The names, and why, for a proxy that listens on these sockets. Raises UserError."""
    usable = {one.name: one for one in facts.interfaces if not one.loopback}
    for name in named:
        if name not in usable:
            raise UserError(
                f"setup: --interface {name}: no such interface, or loopback; allowed: {listed(usable)}",
                EX_COMMAND_LINE,
            )
    if named:
        return list(dict.fromkeys(named)), "named with --interface"
    for candidates in _candidates(facts, usable.values(), listening):
        found = sorted(candidates.names & usable.keys())
        if len(found) == 1 or (found and candidates.all_count):
            return found, candidates.why
        if found:
            raise UserError(
                f"setup: clients may come through {listed(found)} ({candidates.why}); allowed: those through which"
                " they come, each with --interface",
                EX_COMMAND_LINE,
            )
    raise UserError(
        "setup: no interface is up that has an address for other hosts; allowed: one, named with --interface",
        EX_COMMAND_LINE,
    )


def _candidates(
    facts: HostFacts, usable: Iterable[Interface], listening: Collection[Listener]
) -> Iterator[_Candidates]:
    """The most convincing first."""
    ports = {one.port for one in listening}
    paths = [path for path in facts.client_paths if path.port in ports]
    clients = sum(path.clients for path in paths)
    connected = f"the way to the {clients} clients that are connected now"
    yield _Candidates({path.interface for path in paths}, connected, all_count=True)
    if listening and not any(one.address.is_unspecified for one in listening):
        bound = {one.address for one in listening}
        having = {one.name for one in usable if bound & set(one.addresses)}
        yield _Candidates(having, f"has what the proxy listens on: {listed(sorted(map(str, bound)))}", all_count=True)
    yield _Candidates(set(facts.default_routes), "the default route leaves through it", all_count=False)
    with_address = {one.name for one in usable if one.up and one.addresses}
    yield _Candidates(with_address, "it is up, and has an address for other hosts", all_count=False)
