"""What an operator may ask of the control loop, as values, and how the loop carries it out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mptcp_throttle import logs
from mptcp_throttle.config.changes import Change
from mptcp_throttle.config.notes import notes_of
from mptcp_throttle.config.schema import Config
from mptcp_throttle.config.subnets import parse_address
from mptcp_throttle.errors import ConfigError, UserError, listed, shown
from mptcp_throttle.model import AccessNetwork, Address, Direction, RateKind
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import MAX_DURATION, RATE_SYNTAX, Rate
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.vocabulary.operator import Override, Pause

_log = logging.getLogger("mptcp-throttled")

T = TypeVar("T")


class Request(Generic[T]):
    """A request for a change. It is answered with a `T` once the change is applied."""


@dataclass(frozen=True, slots=True)
class SetRate(Request[None]):
    """Set a rate by hand."""

    override: Override


@dataclass(frozen=True, slots=True)
class ResetRates(Request[None]):
    """Return to the configured rates of a network, or to the network's rates of one of its clients."""

    network: str
    client: Address | None = None


@dataclass(frozen=True, slots=True)
class SetPause(Request[None]):
    """Free all subflows."""

    pause: Pause


@dataclass(frozen=True, slots=True)
class Resume(Request[bool]):
    """End a pause; answers whether there was one."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload has changed: nothing, if there are `problems`. Not `valid`: the files are no configuration."""

    changes: Sequence[Change]
    dropped_overrides: Sequence[str]
    problems: Sequence[str]
    notes: Sequence[str]
    valid: bool


@dataclass(frozen=True, slots=True)
class Reload(Request[Reloaded]):
    """Use the configuration `loaded`, if it needs no restart; a ConfigError says why it could not be loaded."""

    loaded: Config | ConfigError


def requested_override(
    network: Json,
    direction: Json,
    kind: Json,
    rate: Json,
    seconds: Json,
    now: float,
    client: Json = None,
    networks: Sequence[AccessNetwork] = (),
) -> Override:
    """The override that `set_rate` asks for, `now` being in monotonic seconds. Devices are those of the `networks`.

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
    end, of_client = requested_end(seconds, now), requested_address(client, network, networks)
    return Override(network, RateKind.of(direction, kind), parsed, end, of_client)


def requested_address(client: Json, network: str, networks: Sequence[AccessNetwork]) -> Address | None:
    """The address of the client that a request is about; None: it is about the network.

    For a device, it is its first address in the network. Raises UserError with what is allowed.
    """
    if client is None:
        return None
    requested = requested_client(client, networks)
    if not isinstance(requested, str):
        return requested
    by_network = {each.name: each.devices.by_name[requested].first for each in networks if _has(each, requested)}
    if network in by_network or network not in [each.name for each in networks]:
        return by_network.get(network, next(iter(by_network.values())))
    raise UserError(f"{requested}: is in {listed(by_network)}; allowed: a device with an address in {network}")


def requested_client(client: Json, networks: Iterable[AccessNetwork]) -> Address | str:
    """The address of a client, or the name of its device. Raises UserError with what is allowed."""
    if not isinstance(client, str):
        raise UserError(f"client: {shown(client)}: is not text; allowed: an address, or the name of a device")
    if any(_has(network, client) for network in networks):
        return client
    try:
        return parse_address(client)
    except ValueError as error:
        raise UserError(f"client: {shown(client)}: {error}, or the name of a device") from error


def _has(network: AccessNetwork, device: str) -> bool:
    return device in network.devices.by_name


def requested_network(name: str, networks: Sequence[AccessNetwork]) -> AccessNetwork:
    """The access network of this name. Raises UserError with what is allowed."""
    for network in networks:
        if network.name == name:
            return network
    raise UserError(f"{shown(name)}: no such access network; allowed: {', '.join(each.name for each in networks)}")


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


def carry_out(request: Request[T], operator: OperatorStore, running: RunningConfig, now: float) -> Any:  # noqa: ANN401
    """Make the change at `now`, in seconds since the epoch; returns the answer, a `T`.

    Raises UserError if it is refused.
    """
    match request:
        case SetRate(override):
            operator.set(override)
        case ResetRates(network, client):
            operator.reset(network, client)
        case SetPause(pause):
            operator.pause(pause)
        case Resume():
            return operator.resume()
        case Reload(loaded):
            return _reload(loaded, operator, running, now)
    return None


def _reload(loaded: Config | ConfigError, operator: OperatorStore, running: RunningConfig, now: float) -> Reloaded:
    judgement = running.take(loaded, now)
    dropped = () if judgement.problems else operator.adopt(running.config.networks)
    notes = () if judgement.problems else notes_of(running.config, now)
    for note in notes:
        _log.warning("reloaded: %s", note)
    logs.set_level(running.config.log_level)
    return Reloaded(judgement.changes, dropped, judgement.problems, notes, judgement.valid)
