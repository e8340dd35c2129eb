"""Which subflow is throttled with which share, and why: a pure function of a connection and the access networks.

Invariant I2: a subflow is capped only while the same connection has, on a more preferred network, a live subflow that
is neither backup nor stalled nor sick (`AccessNetwork.healthy`). So the most preferred live path of a connection is
never capped, and neither is its only path. When all its live subflows are backups, MPTCP uses them
(net/mptcp/protocol.c, mptcp_subflow_get_send): then they count as regular ones.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from mptcp_throttle.model import AccessNetwork, Address, Connection, Direction, Per, RateKind, Subflow
from mptcp_throttle.ports import Ports
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP, ControlGroup
from mptcp_throttled.vocabulary.decision import Decision, Share, Verdict
from mptcp_throttled.vocabulary.locator import Locator
from mptcp_throttled.vocabulary.terms import PresentTerms, Terms

_CACHE_ENTRIES: Final = 65536
_OTHER_PORT: Final = "opened by the proxy: throttled only with daemon.classifier: socket or nft"
_PAUSED: Final = "paused by the operator"
_BACKUP_UPLINK: Final = "backup subflow: MP_PRIO would make it a regular one"
_IN_CONTROL_GROUP: Final = "in the control group"
_NO_NETWORK: Final = "address is in no access network"


ClientOf = Callable[[AccessNetwork, Address], Address]


class _Own(NamedTuple):
    """The terms that a client has of its own. `client` is its first address; for `kinds` these terms have a rate."""

    client: Address
    terms: Terms
    kinds: Container[RateKind]


def decide(
    connection: Connection,
    locate: Locator,
    client_of: ClientOf,
    terms: PresentTerms,
    *,
    paused: bool,
    ports: Ports | None = None,
    control_group: ControlGroup = NO_CONTROL_GROUP,
) -> tuple[Decision, ...]:
    """The decision for every subflow of a connection; while `paused`, all are free.

    `locate` gives the network of an address, `client_of` the address that stands for a client. Of the `terms` of a
    network only the kinds with a rate count. A client with terms of its own has a share of its own. No download of a
    connection in the `control_group` has a cap. `ports`: downloads can be throttled only on these ports of the proxy;
    None: on all.
    """
    networks = [locate(subflow.ends.client.address) for subflow in connection.subflows]
    located = tuple(zip(connection.subflows, networks, strict=True))
    backups_used = all(subflow.backup for subflow in connection.subflows if not subflow.stalled)
    live = [(s, n) for s, n in located if n is not None and not s.stalled and (backups_used or not s.backup)]
    healthy = [network for subflow, network in live if subflow.ailment is None]
    is_control = control_group.has(connection.token)
    best = min(healthy, key=lambda network: network.preference, default=None)

    def own_terms(subflow: Subflow, network: AccessNetwork, client: Address) -> _Own | None:
        if not terms.by_client:
            return None
        key = network.name, network.client(subflow.ends.client.address)
        if key not in terms.by_client and network.per is Per.CLIENT:
            # Terms that are decided for all addresses of a client together also have one share for all of them.
            joined = network.name, client
            key = joined if terms.is_of_all_addresses(joined) else key
        return _Own(key[1], terms.by_client[key], terms.client_rates[key]) if key in terms.by_client else None

    def decision(subflow: Subflow, network: AccessNetwork | None) -> Decision:
        if network is None:
            free = _free(_NO_NETWORK)
            return Decision(connection.token, subflow, None, free, free)
        relieved_by = best.name if best is not None and best.preference < network.preference else None
        sick = _sick(live, network) if relieved_by is None else None
        client = client_of(network, subflow.ends.client.address)
        is_used, own = backups_used or not subflow.backup, own_terms(subflow, network, client)
        downlink, uplink = (
            _verdict(
                direction,
                subflow,
                network,
                terms.rates[network.name],
                own if own is not None and direction.cap in own.terms else None,
                relieved_by,
                sick,
                client,
                is_used=is_used,
                is_control=is_control and direction is Direction.DOWNLINK,
            )
            for direction in Direction
        )
        return Decision(connection.token, subflow, network.name, downlink, uplink, client)

    decisions = tuple(decision(subflow, network) for subflow, network in located)
    if paused:
        return tuple(
            replace(d, downlink=_freed(d.downlink, _PAUSED), uplink=_freed(d.uplink, _PAUSED)) for d in decisions
        )
    if ports is None:
        return decisions
    return tuple(
        d if d.subflow.ends.proxy.port in ports else replace(d, downlink=_freed(d.downlink, _OTHER_PORT))
        for d in decisions
    )


def _sick(live: Iterable[tuple[Subflow, AccessNetwork]], network: AccessNetwork) -> str | None:
    """Why a live path on a more preferred network is sick and justifies no cap here; None if there is no such path."""
    for subflow, preferred in live:
        if subflow.ailment is not None and preferred.preference < network.preference:
            return f"{preferred.name} is sick: {preferred.healthy.broken(subflow.ailment)}"
    return None


def _freed(verdict: Verdict, reason: str) -> Verdict:
    return verdict if verdict.share is None else _free(reason)


def _verdict(
    direction: Direction,
    subflow: Subflow,
    network: AccessNetwork,
    kinds: Container[RateKind],
    own: _Own | None,
    relieved_by: str | None,
    sick: str | None,
    client: Address,
    *,
    is_used: bool,
    is_control: bool,
) -> Verdict:
    """The verdict for one direction. The network has a rate of these `kinds`; those of `own` replace them.

    `relieved_by` is the more preferred network on which the connection has a live and healthy path; None: none. Then
    `sick` says why a live path there is not healthy. `is_used`: MPTCP may send on the subflow; false for a backup
    beside regular subflows. `is_control`: no cap applies in this direction.
    """
    if own is not None:
        kinds = own.kinds
    has_cap, has_limit = direction.cap in kinds, direction.limit in kinds
    if subflow.backup and direction is Direction.UPLINK and (has_cap or has_limit):
        return _free(_BACKUP_UPLINK)
    is_capped = has_cap and relieved_by is not None and is_used
    if is_capped and not is_control:
        kind, reason = direction.cap, f"{relieved_by} is live"
    elif has_limit:
        kind, reason = direction.limit, "limit of the network" if own is None else "limit of the client"
    else:
        owner = "network" if own is None else "client"
        why = _IN_CONTROL_GROUP if is_capped else _why_free(sick, owner, has_cap=has_cap, is_used=is_used)
        return _free(why if own is None else _explained(why, own, direction))
    if own is None:
        return _throttled(network.name, kind, _who(subflow, network, client), reason)
    return _throttled(network.name, kind, str(own.client), _explained(reason, own, direction), own.client)


# With tens of thousands of subflows, equal values as one object save memory.
@lru_cache
def _free(reason: str) -> Verdict:
    return Verdict(None, reason)


@lru_cache(_CACHE_ENTRIES)
def _throttled(network: str, kind: RateKind, who: str, reason: str, client: Address | None = None) -> Verdict:
    return Verdict(Share(network, kind, who, client), reason)


def _explained(reason: str, own: _Own, direction: Direction) -> str:
    """The reason of a verdict, with the reasons of the client's own terms."""
    whys = ((kind.word, own.terms[kind].reason) for kind in (direction.cap, direction.limit))
    return "; ".join([reason, *(f"{word}: {why}" for word, why in whys if why is not None)])


def _why_free(sick: str | None, owner: str, *, has_cap: bool, is_used: bool) -> str:
    if not has_cap:
        return f"{owner} has no cap"
    if not is_used:
        return "backup subflow, which MPTCP does not use now"
    return sick or "no live subflow on a more preferred network"


def _who(subflow: Subflow, network: AccessNetwork, client: Address) -> str:
    match network.per:
        case Per.NETWORK:
            return ""
        case Per.CLIENT:
            bits = network.client_prefix.bits(client)
            return str(client) if bits == client.max_prefixlen else f"{client}/{bits}"
        case Per.SUBFLOW:
            return str(subflow.ends)
