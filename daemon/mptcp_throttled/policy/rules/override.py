"""Overrides: rates set by hand in place of the configured ones. Pure functions, and the JSON of an override.

In JSON: `{"network", "direction", "kind", "rate_bps", "expires_at", "seconds_left"}`: `direction` is `downlink` or
`uplink`, `kind` is `cap` or `limit`, `rate_bps` null is unlimited, and the rest is as in `clock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import Direction, RateKind
from mptcp_throttle.units import MAX_DURATION, RATE_SYNTAX, Rate
from mptcp_throttled.vocabulary.clock import decode_end, encode_end
from mptcp_throttled.vocabulary.operator import Override, is_over
from mptcp_throttled.vocabulary.terms import Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mptcp_throttle.model import AccessNetwork
    from mptcp_throttle.rpc import Json
    from mptcp_throttled.vocabulary.clock import Now
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def requested_override(network: Json, direction: Json, kind: Json, rate: Json, seconds: Json, now: float) -> Override:
    """The override that `set_rate` asks for, `now` being in monotonic seconds.

    Raises UserError naming the argument, its value and what is allowed.
    """
    if not isinstance(network, str):
        raise UserError(f"network: {shown(network)}: allowed: the name of an access network")
    for name, value, allowed in (("direction", direction, list(Direction)), ("kind", kind, ["cap", "limit"])):
        if value not in allowed:
            raise UserError(f"{name}: {shown(value)}: allowed: {', '.join(allowed)}")
    if not isinstance(rate, str | None):
        raise UserError(f"rate: {shown(rate)}: is not text; allowed: {RATE_SYNTAX}; or null, which is unlimited")
    try:
        parsed = None if rate is None else Rate.parse(rate)
    except ValueError as error:
        raise UserError(f"rate: {shown(rate)}: {error}; or null, which is unlimited") from error
    return Override(network, RateKind.of(direction, kind), parsed, requested_end(seconds, now))


def requested_end(seconds: Json, now: float) -> float | None:
    """The end of a request for `seconds`, in monotonic seconds as `now` is; None: it lasts until it is reset.

    Raises UserError with what is allowed.
    """
    if seconds is None:
        return None
    # Written so that it refuses NaN too; a bool is an int to Python.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_DURATION:
        allowed = f"a number above 0, up to {MAX_DURATION:.0f}; or null, which has no end"
        raise UserError(f"seconds: {shown(seconds)}: allowed: {allowed}")
    return now + seconds


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with rates set by hand in place of all others."""
    by_hand = {
        o.kind: Term(o.rate, "by hand, until reset" if o.end is None else "by hand", o.end)
        for o in given.facts.overrides
        if o.network == given.network.name and not is_over(o, given.now)
    }
    return {**terms, **by_hand}


def objection(override: Override, overrides: Iterable[Override], networks: Sequence[AccessNetwork]) -> str | None:
    """Why an override, one of `overrides`, does not fit these networks, in one line; None if it fits."""
    network = next((network for network in networks if network.name == override.network), None)
    if network is None:
        return no_such_network(override.network, networks)
    if override.kind.is_cap and network.preference == min(n.preference for n in networks):
        return f"{network.name}: is a most preferred network, where a cap never applies; allowed: --limit"
    by_hand = {o.kind: o.rate for o in overrides if o.network == network.name}
    rates = network.with_rates(by_hand).rates
    for kind, limit_kind in ((direction.cap, direction.limit) for direction in Direction):
        cap, limit = rates.get(kind), rates.get(limit_kind)
        if cap is not None and limit is not None and cap > limit:
            return f"{network.name}: {kind} {cap} would be more than {limit_kind} {limit}; allowed: up to it"
    return None


def no_such_network(name: str, networks: Iterable[AccessNetwork]) -> str:
    """The error text for a name that no access network has."""
    return f"{name}: no such access network; allowed: {', '.join(network.name for network in networks)}"


def encode_override(override: Override, now: Now) -> Json:
    """The JSON object of an override."""
    return {
        "network": override.network,
        "direction": override.kind.direction,
        "kind": override.kind.word,
        "rate_bps": None if override.rate is None else override.rate.bits_per_second,
        **encode_end(override.end, now),
    }


def decode_override(data: Json, now: Now) -> Override:
    """The override of a JSON object. Raises ValueError, KeyError, TypeError or OverflowError if it is none."""
    rate, kind = data["rate_bps"], RateKind.of(data["direction"], data["kind"])
    parsed = None if rate is None else Rate(int(rate))
    return Override(str(data["network"]), kind, parsed, decode_end(data, now))
