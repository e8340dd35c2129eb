"""Which subflow is throttled to which rate, and why: a pure function of a connection and the access networks.

Invariant I2: a subflow is capped only while the same connection has, on a more preferred network, a live subflow that
is neither backup nor stalled. So the most preferred live path of a connection is never capped, and neither is its only
path. When all its live subflows are backups, MPTCP uses them (net/mptcp/protocol.c, mptcp_subflow_get_send): they count
as if none were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from mptcp_throttle.model import AccessNetwork, Address, Connection, Direction, Per, RateKind, Subflow, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.decision import Decision, Share, Throttle
from mptcp_throttled.vocabulary.locator import Locator

_CACHE_ENTRIES: Final = 65536
_OTHER_PORT: Final = "opened by the proxy: throttled only with daemon.classifier: socket or nft"
_PAUSED: Final = "paused by the operator"
_BACKUP_UPLINK: Final = "backup subflow: to throttle it by MP_PRIO would make it a regular one"
_NO_NETWORK: Final = "address is in no access network"


def decide(
    connection: Connection,
    locate: Locator,
    client_of: Callable[[Address], Address],
    *,
    paused: bool,
    ports: frozenset[int] | None = None,
) -> tuple[Decision, ...]:
    """The decision for every subflow of a connection; while `paused`, all are free.

    `ports`: only subflows on these ports of the proxy can be throttled, but for their uplinks; None: all of them.
    `client_of` gives the address, the first of a prefix, that stands for the client with an address.
    """
    networks = [locate(subflow.ends.client.address) for subflow in connection.subflows]
    located = tuple(zip(connection.subflows, networks, strict=True))
    backups_used = all(subflow.backup for subflow in connection.subflows if not subflow.stalled)
    live = [n for s, n in located if n is not None and not s.stalled and (backups_used or not s.backup)]
    best = min(live, key=lambda network: network.preference, default=None)
    decisions = (
        _decide(connection.token, subflow, network, best, client_of, is_used=backups_used or not subflow.backup)
        for subflow, network in located
    )
    if paused:
        return tuple(_free_uplink(_free(decision, _PAUSED)) for decision in decisions)
    if ports is None:
        return tuple(decisions)
    return tuple(d if d.subflow.ends.proxy.port in ports else _free(d, _OTHER_PORT) for d in decisions)


def _free(decision: Decision, reason: str) -> Decision:
    return decision if decision.throttle is None else replace(decision, throttle=None, reason=reason)


def _free_uplink(decision: Decision) -> Decision:
    return decision if decision.uplink is None else replace(decision, uplink=None, uplink_reason=_PAUSED)


def _decide(
    token: Token,
    subflow: Subflow,
    network: AccessNetwork | None,
    best: AccessNetwork | None,
    client_of: Callable[[Address], Address],
    *,
    is_used: bool,
) -> Decision:
    """`best` is the most preferred network on which the connection has a live path.

    `is_used`: MPTCP may send on the subflow; false for a backup beside others.
    """
    if network is None:
        return Decision(token, subflow, None, None, _NO_NETWORK, None, _NO_NETWORK)
    preferred = best if best is not None and best.preference < network.preference else None
    throttle, reason = _applicable(Direction.DOWNLINK, subflow, network, preferred, client_of, is_used=is_used)
    uplink, uplink_reason = _applicable(Direction.UPLINK, subflow, network, preferred, client_of, is_used=is_used)
    return Decision(token, subflow, network.name, throttle, reason, uplink, uplink_reason)


def _applicable(
    direction: Direction,
    subflow: Subflow,
    network: AccessNetwork,
    preferred: AccessNetwork | None,
    client_of: Callable[[Address], Address],
    *,
    is_used: bool,
) -> tuple[Throttle | None, str]:
    """What applies in one direction, and why."""
    cap, limit = network.rates.get(direction.cap), network.rates.get(direction.limit)
    if subflow.backup and direction is Direction.UPLINK and (cap or limit):
        return None, _BACKUP_UPLINK
    if cap is not None and preferred is not None and is_used:
        kind, rate, reason = direction.cap, (cap if limit is None else min(cap, limit)), _relieved_by(preferred.name)
    elif limit is not None:
        kind, rate, reason = direction.limit, limit, "limit of the network"
    else:
        return None, _why_free(cap, is_used=is_used)
    return _throttle(network.name, kind, _who(subflow, network, client_of), rate), reason


# With tens of thousands of subflows, equal values as one object save memory.
@lru_cache(_CACHE_ENTRIES)
def _throttle(network: str, kind: RateKind, who: str, rate: Rate) -> Throttle:
    return Throttle(Share(network, kind, who), rate)


@lru_cache
def _relieved_by(network: str) -> str:
    return f"{network} is live"


def _why_free(cap: Rate | None, *, is_used: bool) -> str:
    if cap is None:
        return "network has no cap"
    if not is_used:
        return "backup subflow, which MPTCP does not use now"
    return "no live subflow on a more preferred network"


def _who(subflow: Subflow, network: AccessNetwork, client_of: Callable[[Address], Address]) -> str:
    match network.per:
        case Per.NETWORK:
            return ""
        case Per.CLIENT:
            client = client_of(subflow.ends.client.address)
            bits = network.client_prefix.bits(client)
            return str(client) if bits == client.max_prefixlen else f"{client}/{bits}"
        case Per.SUBFLOW:
            return str(subflow.ends)
