"""The operator state: rates set by hand (overrides) and a pause. They survive restarts and may expire.

The file in the state directory: `{"format": 1, "overrides": [...], "client_overrides": [...], "pause": null or {...}}`.
An override is `{"network", "direction", "kind", "rate_bps", "expires_at", "seconds_left"}`: `direction` is `downlink`
or `uplink`, `kind` is `cap` or `limit`, `rate_bps` null is unlimited. The rest is as in `clock`, and so is a pause. The
override of a client has its address, too, as `client`. Those of clients are in a list of their own: earlier versions
would take them for overrides of networks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from mptcp_throttle.config.subnets import parse_address
from mptcp_throttle.devices import named
from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.errors import UserError, listed, shown
from mptcp_throttle.logs import with_fields
from mptcp_throttle.model import AccessNetwork, Address, Direction, RateKind
from mptcp_throttle.proxies import ONE_PROXY, Proxies
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate
from mptcp_throttled.reporting.step_events import override_event
from mptcp_throttled.vocabulary.clock import Clock, Now, decode_end, encode_end
from mptcp_throttled.vocabulary.events import EventKind
from mptcp_throttled.vocabulary.locator import Locators
from mptcp_throttled.vocabulary.operator import OperatorState, Override, Pause, is_over

_log = logging.getLogger("mptcp-throttled")

_FORMAT: Final = 1
_UNUSABLE: Final = ".unusable"
_TOLERANCE_SECONDS: Final = 1.0

MAX_CLIENTS: Final = 100
"""How many clients may have overrides."""


class OperatorStore:
    """The operator state, in memory and on disk. For one thread."""

    def __init__(
        self, path: Path, networks: Sequence[AccessNetwork], clock: Clock, proxies: Proxies = ONE_PROXY
    ) -> None:
        self._path = path
        self._proxies = proxies
        self._clock = clock
        self._written_at = Now.of(clock)
        self._has_unusable_file = False
        self._state = self._load()
        self.adopt(networks)

    def current(self) -> OperatorState:
        """The present state; what has expired is removed."""
        now = self._clock.monotonic()
        overrides = tuple(o for o in self._state.overrides if not is_over(o, now))
        for expired in set(self._state.overrides) - set(overrides):
            _log_end(logging.INFO, expired, f"override of {self._subject(expired)} {expired.kind} expired")
        pause = self._state.pause
        if pause is not None and is_over(pause, now):
            _log.info("pause expired", extra=with_fields(EventKind.RESUMED.fields))
            pause = None
        self._keep(OperatorState(overrides, pause))
        return self._state

    def adopt(self, networks: Sequence[AccessNetwork]) -> tuple[str, ...]:
        """Use these access networks from now on. Overrides that do not fit them are dropped; a line for each."""
        self._networks, self._locators = networks, Locators(networks, self._proxies)
        self._by_name = {network.name: network for network in networks}
        before = self._state.overrides
        objections = {override: self._objection(override, before) for override in before}
        dropped = {o: f"override of {self._subject(o)} {o.kind} dropped: {why}" for o, why in objections.items() if why}
        for override, line in dropped.items():
            _log_end(logging.WARNING, override, line)
        self._keep(replace(self._state, overrides=tuple(o for o, why in objections.items() if why is None)))
        return tuple(dropped.values())

    def set(self, override: Override) -> None:
        """Set an override in place of an earlier one. Raises UserError if it does not fit, or cannot be written."""
        target = self._target(override.network, override.client)
        before = self._state.overrides
        kept = [o for o in before if (o.kind, self._target(o.network, o.client)) != (override.kind, target)]
        overrides = (*kept, override)
        # A rate of a network must also fit the rates of its clients.
        of_clients = [o for o in kept if o.client is not None and o.network == override.network]
        each_once = {self._target(o.network, o.client): o for o in of_clients if override.client is None}
        for concerned in (override, *each_once.values()):
            problem = self._objection(concerned, overrides)
            if problem is not None:
                raise UserError(problem)
        clients = {self._target(o.network, o.client) for o in overrides if o.client is not None}
        if len(clients) > MAX_CLIENTS:
            allowed = f"up to {MAX_CLIENTS}; reset-rate --client removes those of a client"
            raise UserError(f"{override.subject}: too many clients with rates of their own; allowed: {allowed}")
        self._store(replace(self._state, overrides=overrides))

    def reset(self, network: str, client: Address | None = None) -> None:
        """Remove the overrides of a network, or of one of its clients by one of its addresses.

        Raises UserError for an unknown network, for an address that is not in it, or if that cannot be written.
        """
        if network not in [known.name for known in self._networks]:
            raise UserError(_no_such_network(network, self._networks))
        if client is not None and (problem := self._not_in_network(network, client)) is not None:
            raise UserError(problem)
        target = self._target(network, client)
        overrides = tuple(o for o in self._state.overrides if self._target(o.network, o.client) != target)
        self._store(replace(self._state, overrides=overrides))

    def pause(self, pause: Pause | None) -> None:
        """Pause, in place of an earlier pause, or, with None, resume. Raises UserError if it cannot be written."""
        self._store(replace(self._state, pause=pause))

    def resume(self) -> bool:
        """End a pause; whether there was one. Raises UserError as `pause` does."""
        was_paused = self.current().pause is not None
        self.pause(None)
        return was_paused

    def _target(self, name: str, client: Address | None) -> tuple[str, Address | None]:
        """Whose rates an override sets: those of a client of a network, by its first address; None: the network's."""
        network = self._by_name.get(name)
        return name, client if client is None or network is None else network.client(client)

    def _subject(self, override: Override) -> str:
        """Whose rate is set, in words, with the name of the device."""
        network = self._by_name.get(override.network)
        device = None if network is None or override.client is None else network.devices.find(override.client)
        return named(override.subject, None if device is None else device.name)

    def _objection(self, override: Override, overrides: Iterable[Override]) -> str | None:
        """Why an override, together with the others in `overrides`, does not fit the networks; None: it fits."""
        target = self._target(override.network, override.client)
        of_same = [o for o in overrides if self._target(o.network, o.client) in {target, (override.network, None)}]
        problem = objection(override, of_same, self._networks)
        if problem is None and override.client is not None:
            return self._not_in_network(override.network, override.client)
        return problem

    def _not_in_network(self, network: str, client: Address) -> str | None:
        """The error text for an address that is not in a network; None if it is."""
        located = [at.name for locate in self._locators.each if (at := locate(client)) is not None]
        if network in located:
            return None
        where = listed(dict.fromkeys(located)) if located else "no access network"
        return f"{client}: is in {where}; allowed: an address in {network}"

    def _store(self, state: OperatorState) -> None:
        now = Now.of(self._clock)
        document = {
            "format": _FORMAT,
            "overrides": [_encode_override(o, now) for o in state.overrides if o.client is None],
            "client_overrides": [
                {**_encode_override(o, now), "client": str(o.client)} for o in state.overrides if o.client is not None
            ],
            "pause": None if state.pause is None else encode_end(state.pause.end, now),
        }
        try:
            if self._has_unusable_file:
                with suppress(FileNotFoundError):  # it may have been removed by hand
                    self._path.replace(self._path.with_suffix(_UNUSABLE))
                self._has_unusable_file = False
            write_atomically(self._path, json.dumps(document), mode=0o600)
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._state, self._written_at = state, now

    def _keep(self, state: OperatorState) -> None:
        """Use a state, and store it if it has changed or the file is wrong now; logs if it cannot be stored."""
        if state == self._state and not self._is_clock_set():
            return
        try:
            self._store(state)
        except UserError as error:
            self._state, self._written_at = state, Now.of(self._clock)
            _log.error("%s", error)

    def _is_clock_set(self) -> bool:
        """Whether the wall clock has been set since the file was written, so that the ends there are wrong."""
        if not self._state.expires:
            return False
        now = Now.of(self._clock)
        return abs(now.epoch - self._written_at.in_epoch(now.monotonic)) > _TOLERANCE_SECONDS

    def _load(self) -> OperatorState:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["format"] != _FORMAT:
                raise ValueError(f"format {shown(document['format'])}; allowed: {_FORMAT}")
            now, pause = self._written_at, document["pause"]
            of_networks = [_decode_override(item, now) for item in document["overrides"]]
            of_clients = [
                replace(_decode_override(item, now), client=parse_address(item["client"]))
                for item in document.get("client_overrides", ())
            ]
            return OperatorState((*of_networks, *of_clients), None if pause is None else Pause(decode_end(pause, now)))
        except FileNotFoundError:
            return OperatorState()
        except OSError as error:
            _log.error("%s: cannot be read (%s): there is no override and no pause", self._path, error.strerror)
            return OperatorState()
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            # It may be of a later version, which may come back: it stays, and is renamed before the next write.
            self._has_unusable_file = True
            why = f"no {error.args[0]}" if isinstance(error, KeyError) else error
            _log.error("%s: cannot be used (%s): there is no override and no pause", self._path, why)
            return OperatorState()


def objection(override: Override, overrides: Iterable[Override], networks: Sequence[AccessNetwork]) -> str | None:
    """Why an override does not fit these networks, in one line; None: it fits.

    `overrides` has the other overrides of its network; those of clients are all of the client whose rate it sets.
    """
    network = next((network for network in networks if network.name == override.network), None)
    if network is None:
        return _no_such_network(override.network, networks)
    if override.kind.is_cap and network.is_most_preferred(networks):
        return f"{network.name}: is a most preferred network, where a cap never applies; allowed: --limit"
    present = [o for o in overrides if o.network == network.name]
    by_hand = {o.kind: o.rate for o in present if o.client is None}
    if override.client is not None:
        by_hand |= {o.kind: o.rate for o in present if o.client is not None}
    device = None if override.client is None else network.devices.find(override.client)
    rates = network.with_rates({**({} if device is None else device.rates), **by_hand}).rates
    for kind, limit_kind in ((direction.cap, direction.limit) for direction in Direction):
        cap, limit = rates.get(kind), rates.get(limit_kind)
        if cap is not None and limit is not None and cap > limit:
            return f"{override.subject}: {kind} {cap} would be more than {limit_kind} {limit}; allowed: up to it"
    return None


def _log_end(level: int, override: Override, line: str) -> None:
    _log.log(level, "%s", line, extra=with_fields(override_event(EventKind.RATE_RESET, override, line).fields))


def _no_such_network(name: str, networks: Iterable[AccessNetwork]) -> str:
    """The error text for a name that no access network has."""
    return f"{name}: no such access network; allowed: {', '.join(network.name for network in networks)}"


def _encode_override(override: Override, now: Now) -> Json:
    """The JSON object of an override."""
    return {
        "network": override.network,
        "direction": override.kind.direction,
        "kind": override.kind.word,
        "rate_bps": None if override.rate is None else override.rate.bits_per_second,
        **encode_end(override.end, now),
    }


def _decode_override(data: Json, now: Now) -> Override:
    """The override of a JSON object. Raises ValueError, KeyError, TypeError or OverflowError if it is none."""
    rate, kind = data["rate_bps"], RateKind.of(data["direction"], data["kind"])
    parsed = None if rate is None else Rate(int(rate))
    return Override(str(data["network"]), kind, parsed, decode_end(data, now))
