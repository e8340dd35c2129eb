"""Rates the operator has set by hand: validated, persisted, and gone when they expire.

A file in the state directory keeps them across restarts: `{"version": 1, "overrides": [{"network", "rule",
"rate_bps", "expires_at"}]}`, rates in bits per second or null for unlimited, times in seconds since the epoch.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.units import MAX_DURATION, RATE_SYNTAX, Rate
from mptcp_throttled.policy import Rule
from mptcp_throttled.state_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mptcp_throttle.model import AccessNetwork
    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-throttled")

_FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Override:
    """`rate` None is unlimited; `expires_at` None is until reset."""

    network: str
    rule: Rule
    rate: Rate | None
    expires_at: float | None


def requested_override(network: Json, rule: Json, rate: Json, seconds: Json, now: float) -> Override:
    """The override that `set_rate` asks for, `now` being in seconds since the epoch.

    Raises UserError naming the argument, its value and what is allowed.
    """
    if not isinstance(network, str):
        raise UserError(f"network: {shown(network)}: allowed: the name of an access network")
    if rule not in list(Rule):
        raise UserError(f"rule: {shown(rule)}: allowed: {', '.join(Rule)}")
    if not isinstance(rate, str | None):
        raise UserError(f"rate: {shown(rate)}: is not text; allowed: {RATE_SYNTAX}; or null, which is unlimited")
    try:
        parsed = None if rate is None else Rate.parse(rate)
    except ValueError as error:
        raise UserError(f"rate: {shown(rate)}: {error}; or null, which is unlimited") from error
    if seconds is None:
        return Override(network, Rule(rule), parsed, None)
    # Written so that it refuses NaN too; a bool is an int to Python.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_DURATION:
        allowed = f"a number above 0, up to {MAX_DURATION:.0f}; or null, which is until reset"
        raise UserError(f"seconds: {shown(seconds)}: allowed: {allowed}")
    return Override(network, Rule(rule), parsed, now + seconds)


def effective(networks: Iterable[AccessNetwork], overrides: Iterable[Override]) -> tuple[AccessNetwork, ...]:
    """The access networks with the overrides' rates in place of their own."""
    rates = {(override.network, override.rule): override.rate for override in overrides}
    return tuple(
        replace(
            network,
            cap=rates.get((network.name, Rule.CAP), network.cap),
            limit=rates.get((network.name, Rule.LIMIT), network.limit),
        )
        for network in networks
    )


class OverrideStore:
    """The overrides in force, on disk and in memory. Not for concurrent use."""

    def __init__(self, path: Path, networks: Sequence[AccessNetwork]) -> None:
        self._path = path
        self._networks = networks
        self._overrides = self._load()

    def current(self, now: float) -> tuple[Override, ...]:
        """Those in force at `now` (seconds since the epoch); expired ones are forgotten."""
        kept = tuple(o for o in self._overrides if o.expires_at is None or o.expires_at > now)
        for expired in set(self._overrides) - set(kept):
            _log.info("override of %s %s expired", expired.network, expired.rule)
        if kept != self._overrides:
            self._overrides = kept
            try:
                self._write(kept)
            except UserError as error:
                _log.error("%s", error)
        return kept

    def set(self, override: Override) -> None:
        """Put an override in force in place of an earlier one. Raises UserError with what is allowed."""
        others = tuple(o for o in self._overrides if (o.network, o.rule) != (override.network, override.rule))
        self._check(override, others)
        self._store((*others, override))

    def reset(self, network: str) -> None:
        """Return to the configured rates of a network. Raises UserError for an unknown one."""
        self._known_network(network)
        self._store(tuple(o for o in self._overrides if o.network != network))

    def _known_network(self, name: str) -> AccessNetwork:
        found = next((network for network in self._networks if network.name == name), None)
        if found is None:
            known = ", ".join(network.name for network in self._networks)
            raise UserError(f"{name}: no such access network; allowed: {known}")
        return found

    def _check(self, override: Override, others: tuple[Override, ...]) -> None:
        network = self._known_network(override.network)
        if override.rule is Rule.CAP and network.preference == min(n.preference for n in self._networks):
            raise UserError(f"{network.name}: is a most preferred network, where a cap never applies; allowed: --limit")
        then = effective([network], (*others, override))[0]
        if then.cap is not None and then.limit is not None and then.cap > then.limit:
            raise UserError(f"{network.name}: cap {then.cap} would be more than limit {then.limit}; allowed: up to it")

    def _store(self, overrides: tuple[Override, ...]) -> None:
        self._write(overrides)
        self._overrides = overrides

    def _write(self, overrides: tuple[Override, ...]) -> None:
        document = {"version": _FORMAT_VERSION, "overrides": [encode_override(o) for o in overrides]}
        try:
            write_atomically(self._path, json.dumps(document))
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror}") from error

    def _load(self) -> tuple[Override, ...]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["version"] != _FORMAT_VERSION:
                raise ValueError(f"version {document['version']}")
            return tuple(_decode_override(item) for item in document["overrides"])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            _log.error("%s: cannot be used (%s): no override is in force", self._path, error)
            return ()


def encode_override(override: Override) -> Json:
    """The JSON object of an override."""
    return {
        "network": override.network,
        "rule": override.rule,
        "rate_bps": None if override.rate is None else override.rate.bits_per_second,
        "expires_at": override.expires_at,
    }


def _decode_override(data: Json) -> Override:
    rate, expires_at = data["rate_bps"], data["expires_at"]
    if expires_at is not None and not math.isfinite(expires_at):
        raise ValueError(f"expires_at {expires_at}")
    return Override(
        str(data["network"]),
        Rule(data["rule"]),
        None if rate is None else Rate(int(rate)),
        None if expires_at is None else float(expires_at),
    )
