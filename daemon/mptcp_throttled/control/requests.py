"""What an operator may ask of the control loop, as values, and how the loop carries it out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mptcp_throttle import logs
from mptcp_throttle.config.changes import Change
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.vocabulary.operator import Override, Pause

T = TypeVar("T")


class Request(Generic[T]):
    """Asks for a change, which is answered with a `T` once it is applied."""


@dataclass(frozen=True, slots=True)
class SetRate(Request[None]):
    """Set a rate by hand."""

    override: Override


@dataclass(frozen=True, slots=True)
class ResetRates(Request[None]):
    """Return to the configured rates of a network."""

    network: str


@dataclass(frozen=True, slots=True)
class SetPause(Request[None]):
    """Free all subflows."""

    pause: Pause


@dataclass(frozen=True, slots=True)
class Resume(Request[bool]):
    """End a pause; answers whether there was one."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload has changed: nothing if there are `problems`. If not `valid`, the files are no configuration."""

    changes: Sequence[Change]
    dropped_overrides: Sequence[str]
    problems: Sequence[str]
    valid: bool


@dataclass(frozen=True, slots=True)
class Reload(Request[Reloaded]):
    """Use a configuration, if it is valid and needs no restart; `loaded` is why it could not be loaded, if so."""

    loaded: Config | ConfigError


def carry_out(request: Request[T], operator: OperatorStore, running: RunningConfig) -> Any:  # noqa: ANN401
    """Make the change; returns the answer, a `T`. Raises UserError if it is refused."""
    match request:
        case SetRate(override):
            operator.set(override)
        case ResetRates(network):
            operator.reset(network)
        case SetPause(pause):
            operator.pause(pause)
        case Resume():
            return operator.resume()
        case Reload(loaded):
            return _reload(loaded, operator, running)
    return None


def _reload(loaded: Config | ConfigError, operator: OperatorStore, running: RunningConfig) -> Reloaded:
    judgement = running.take(loaded, time.time())
    dropped = () if judgement.problems else operator.adopt(running.config.networks)
    logs.set_level(running.config.log_level)
    return Reloaded(judgement.changes, dropped, judgement.problems, judgement.valid)
