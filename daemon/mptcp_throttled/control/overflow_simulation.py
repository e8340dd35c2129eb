"""What an overflow would have done with a recorded trace: the rules of the service, without a kernel.

The trace says what each client carried, not what it would have carried. While it asked for more, the capped network is
assumed to carry the present cap; otherwise what the trace says, up to the cap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final

from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import AccessNetwork, Address, RateKind
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate
from mptcp_throttled.control.trace import Row
from mptcp_throttled.policy.shortfall import MOST_UNSENT_BYTES, Sample, Shortfall
from mptcp_throttled.policy.terms import rule_input, steps
from mptcp_throttled.vocabulary.terms import UNLIMITED, Facts, Term, WallClock

_LONGEST_SECONDS: Final = 5.0
"""If more time is between two rows of a client, the rows do not tell what happened in between."""


@dataclass(slots=True)
class _Client:
    """A client of the trace. The capped network carries `overflow_bytes`; with the cap alone, `cap_bytes`.

    `rate` is what it has carried last, in bits/s.
    """

    shortfall: Shortfall
    term: Term
    rate: float = 0.0
    overflow_bytes: float = 0.0
    cap_bytes: float = 0.0
    changes: list[Json] = field(default_factory=list)

    def uses_its_cap(self, at: float) -> bool:
        """Whether it uses all of its present cap, and asks for more."""
        cap = 0 if self.term.rate is None else self.term.rate.bits_per_second
        return self.rate >= cap and self.shortfall.has_asked(at)


def simulate(config: Config, rows: Iterable[Row]) -> Json:
    """The terms that each client of the trace would have had, on each network with an `overflow`.

    Raises UserError if no network has one, or for a bad trace.
    """
    networks = {network.name: network for network in config.networks}
    by_preference = sorted(config.networks, key=attrgetter("preference"))
    with_overflow = [network for network in by_preference if network.overflow is not None]
    if not with_overflow:
        raise UserError("no access network has an overflow; allowed: a trace for a configuration with one")
    clients: dict[tuple[str, Address], _Client] = {}
    seen: dict[Address, float] = {}
    for at, of_moment in groupby(rows, attrgetter("at")):
        by_client: dict[Address, list[Row]] = {}
        for row in of_moment:
            by_client.setdefault(row.client, []).append(row)
        for client, its_rows in by_client.items():
            seconds = at - seen.get(client, at)
            seen[client] = at
            for network in with_overflow if 0 < seconds <= _LONGEST_SECONDS else ():
                _follow(config, networks, network, clients, client, its_rows, seconds, at)
    return {
        "clients": [
            {
                "network": name,
                "client": str(address),
                "bytes": round(client.overflow_bytes),
                "bytes_with_cap_alone": round(client.cap_bytes),
                "changes": client.changes,
            }
            for (name, address), client in clients.items()
        ]
    }


def _follow(
    config: Config,
    networks: Mapping[str, AccessNetwork],
    network: AccessNetwork,
    clients: dict[tuple[str, Address], _Client],
    address: Address,
    rows: Iterable[Row],
    seconds: float,
    at: float,
) -> None:
    """Take what a client carried in the `seconds` until `at`."""
    first = network.client(address)
    base = _cap(config, network, first, at, None)
    if base.rate is None or network.overflow is None:
        return
    preferred = [row for row in rows if networks[row.network].preference < network.preference]
    before = _clients_on({row.network for row in preferred}, networks, clients, address)
    raised = [each for each in before.values() if each.shortfall.rate]
    carried = sum(row.sent_bps for row in rows if row.network == network.name)
    # What was not recorded counts as waiting.
    waits = (MOST_UNSENT_BYTES if row.unsent_bytes is None else row.unsent_bytes for row in preferred)
    sample = Sample(
        network.overflow.bits_per_second,
        base.rate.bits_per_second,
        carried,
        sum(row.sent_bps for row in preferred if row.network not in before)
        + sum(each.rate for each in before.values()),
        max(waits, default=0),
        preferred_used_up=bool(raised) and all(each.uses_its_cap(at) for each in raised),
    )
    client = clients.setdefault((network.name, first), _Client(Shortfall(sample.overflow, at), base))
    cap = sample.cap if client.term.rate is None else client.term.rate.bits_per_second
    wanted = math.inf if client.shortfall.asks(sample) else carried
    client.rate = min(wanted, cap)
    client.overflow_bytes += client.rate * seconds / 8
    client.cap_bytes += min(wanted, sample.cap) * seconds / 8
    client.shortfall.follow(sample, seconds, at)
    term = _cap(config, network, first, at, Rate(client.shortfall.rate) if client.shortfall.rate else None)
    if term.rate != client.term.rate:
        client.changes.append({"at": at, "cap": None if term.rate is None else str(term.rate), "reason": term.reason})
    client.term = term


def _clients_on(
    names: Iterable[str],
    networks: Mapping[str, AccessNetwork],
    clients: Mapping[tuple[str, Address], _Client],
    address: Address,
) -> dict[str, _Client]:
    """What is known of a client on those of these networks that have an overflow."""
    keys = {name: (name, networks[name].client(address)) for name in names}
    return {name: clients[key] for name, key in keys.items() if key in clients}


def _cap(config: Config, network: AccessNetwork, client: Address, at: float, shortfall: Rate | None) -> Term:
    """The cap of a client with this shortfall, at `at` in seconds since the epoch."""
    shortfalls = {} if shortfall is None else {network.name: {client: shortfall}}
    facts = Facts(wall_clock=WallClock(0.0, config.time_zone), shortfalls=shortfalls)
    return steps(rule_input(network, client, at, facts))[-1].get(RateKind.CAP, UNLIMITED)
