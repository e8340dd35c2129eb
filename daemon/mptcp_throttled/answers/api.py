"""The RPC methods of the daemon: reading answers from the last snapshot, changes answer once they are applied."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError, shown
from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import Every, FourTuple
from mptcp_throttle.rpc import Json
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History, requested_accounts, resolution_for, together
from mptcp_throttled.answers import budgets as of_budgets
from mptcp_throttled.answers import status
from mptcp_throttled.answers.busiest import IndexedClients, busiest, requested_order
from mptcp_throttled.answers.client_index import ClientIndex
from mptcp_throttled.answers.explanation import explain
from mptcp_throttled.answers.plan_commands.commands import as_commands
from mptcp_throttled.answers.subflow_counts import CountedSubflows
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.inbox import Inbox
from mptcp_throttled.control.requests import (
    Reload,
    Request,
    ResetRates,
    Resume,
    SetPause,
    SetRate,
    T,
    requested_address,
    requested_client,
    requested_end,
    requested_override,
)
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.enforcing.diff import diff
from mptcp_throttled.reporting.event_log import EventLog
from mptcp_throttled.reporting.recent_decisions import RecentDecisions
from mptcp_throttled.vocabulary.budgets import Addition
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState
from mptcp_throttled.vocabulary.operator import Pause

_log = logging.getLogger("mptcp-throttled")


class Api:
    """The methods, for any thread. What they change, they change through `inbox`, in the thread of the control loop.

    `load` reads the configuration files again and raises ConfigError.
    """

    def __init__(
        self,
        config: RunningConfig,
        inbox: Inbox,
        view: Callable[[], View],
        history: History,
        accounts: Accounts,
        recent_decisions: RecentDecisions,
        events: EventLog,
        load: Callable[[], Config],
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._view = view
        self._history = history
        self._accounts = accounts
        self._recent_decisions = recent_decisions
        self._events = events
        self._clients = ClientIndex()
        self._counted = CountedSubflows()
        self._load = load
        self._indexing = threading.Lock()
        self._reloading = threading.Lock()

    def methods(self) -> dict[str, Callable[..., Json]]:
        """All of them by name."""
        return {
            "status": self.status,
            "connections": self.connections,
            "explain": self.explain,
            "history": self.history,
            "top": self.top,
            "decisions": self.decisions,
            "events": self.events,
            "plan": self.plan,
            "budgets": self.budgets,
            "budget_add": self.budget_add,
            "budget_reset": self.budget_reset,
            "budget_set_used": self.budget_set_used,
            "set_rate": self.set_rate,
            "reset_rate": self.reset_rate,
            "pause": self.pause,
            "resume": self.resume,
            "reload": self.reload,
        }

    def status(self) -> Json:
        """Networks with their rates, what is applied in the kernel, and whether the sniffer answers."""
        interfaces = self._config.config.proxy.interfaces
        view = self._view()
        return status.status(view, self._counted.of(view.snapshot), interfaces, self._config.status())

    def connections(self) -> Json:
        """Every connection, with the decision for each subflow, and what it sends."""
        return status.connections(self._view())

    def explain(self, client: str, network: str | None = None) -> Json:
        """What a client, by one of its addresses or its device, has on an access network, or on all, and which rules
        say so."""
        view, proxies = self._view(), self._config.config.proxies
        asked = requested_client(client, view.snapshot.networks)
        return explain(view, asked, network, proxies, self._accounts.budget_uses())

    def top(self, number: int, order: str, pattern: str) -> Json:
        """Of each access network, up to `number` clients with their busiest subflows.

        `order` is one of `busiest.Order`. With a `pattern`, only the subflows that match it count.
        """
        chosen = requested_order(order)
        with self._indexing:
            view = self._view()
            self._clients.update(view.snapshot)
            index = IndexedClients(self._clients, self._counted.of(view.snapshot))
            return busiest(view, index, number, chosen, pattern)

    def decisions(self, number: int) -> Json:
        """The latest decisions that have changed something, the latest first, up to `number`, and no more than 200."""
        return {"decisions": self._recent_decisions.latest(number)}

    def events(self, instance: str | None = None, after: int = 0, seconds: float = 0.0) -> Json:
        """The events that are kept; those after number `after`, if that is of this `instance` of the daemon.

        A reader that has seen all waits up to `seconds` for one, and no longer than 5.
        """
        for name, value, allowed in (("after", after, int), ("seconds", seconds, int | float)):
            if isinstance(value, bool) or not isinstance(value, allowed):
                raise UserError(f"{name}: {shown(value)}: allowed: a number")
        return self._events.after(instance, after, seconds)

    def history(self, name: str, seconds: float) -> Json:
        """What an access network, or a client by one of its addresses or its device, has carried in the last `seconds`.

        `{kind, name, resolution, periods}`: the resolution in seconds, and of each period its `start`, in seconds since
        the epoch, and its traffic.
        """
        accounts = requested_accounts(name, self._view().snapshot.networks, self._config.config.proxies)
        resolution, since = resolution_for(seconds), time.time() - seconds
        periods = together(period for each in accounts for period in self._history.read(each, resolution, since))
        return status.history(accounts[0], resolution, periods)

    def budgets(self, name: str | None = None) -> Json:
        """What is used of the budgets of a network, or of a client, by an address or its device; null: of all."""
        owner = None if name is None else of_budgets.requested_owner(name, self._config.config)
        return of_budgets.describe(self._accounts.budget_uses(), owner, self._view().snapshot)

    def budget_add(self, name: str, amount: str, until: str | None = None, every: str | None = None) -> Json:
        """Add to the budget of a network or client; what is not used `until` then is lost. Answers as `budgets`."""
        owner, chosen, volume = *self._owner(name, every), of_budgets.requested_volume(amount)
        end = of_budgets.requested_until(until, self._config.config.time_zone, time.time())
        of_budgets.add(self._accounts, owner, chosen, Addition(volume, volume, end))
        return self.budgets(name)

    def budget_reset(self, name: str, every: str | None = None) -> Json:
        """Begin the budgets of a network with its clients, or of a client, again. Answers as `budgets`."""
        of_budgets.reset(self._accounts, *self._owner(name, every))
        return self.budgets(name)

    def budget_set_used(self, name: str, amount: str, every: str | None = None) -> Json:
        """Set what is used of the budget of a network or client. Answers as `budgets`."""
        volume = of_budgets.requested_volume(amount, or_nothing=True)
        of_budgets.set_used(self._accounts, *self._owner(name, every), volume)
        return self.budgets(name)

    def _owner(self, name: str, every: str | None) -> tuple[of_budgets.Owner, Every | None]:
        return of_budgets.requested_owner(name, self._config.config), of_budgets.requested_every(every)

    def plan(self) -> Json:
        """The operations that lead from untouched interfaces to the plan, as commands, and whether it is applied."""
        snapshot, config = self._view().snapshot, self._config.config
        marking = MarkedTraffic(config.daemon.mark_mask, config.proxy.ports)
        plan, applied = snapshot.plan, snapshot.applied
        is_paced = snapshot.problem_of(FeatureName.PACING) is None
        paces: dict[FourTuple, int] | None = {} if is_paced else None
        how = marking, snapshot.classifier, config.sniffer.chain_priority
        return {
            "operations": [
                {
                    "operation": type(operation).__name__,
                    "commands": list(as_commands(operation, config.proxy.interfaces, *how)),
                }
                for operation in diff(KernelState(pacing=PacingState(paces)), plan)
            ],
            "applied": applied == (plan if is_paced else replace(plan, paces=applied.paces)),
        }

    def set_rate(
        self,
        network: str,
        direction: str,
        kind: str,
        rate: str | None,
        seconds: float | None,
        client: str | None = None,
    ) -> Json:
        """Override a network's cap or limit; `rate` null is unlimited, `seconds` null is until reset.

        `direction` is `downlink` or `uplink`, `kind` is `cap` or `limit`. With `client`, an address or a device, the
        rate is that of one client. Answers with the network's status.
        """
        networks = self._view().snapshot.networks
        override = requested_override(network, direction, kind, rate, seconds, time.monotonic(), client, networks)
        self._change(SetRate(override))
        return self._network(network)

    def reset_rate(self, network: str, client: str | None = None) -> Json:
        """Return to the configured rates of a network, or of a client to its network's; answers as `set_rate`."""
        self._change(ResetRates(network, requested_address(client, network, self._view().snapshot.networks)))
        return self._network(network)

    def pause(self, seconds: float | None) -> Json:
        """Free all subflows; `seconds` null is until resumed. Answers `{pause}` as in `status`, once applied."""
        pause = Pause(requested_end(seconds, time.monotonic()))
        self._change(SetPause(pause))
        return {"pause": status.pause_status(pause, self._view().now)}

    def resume(self) -> Json:
        """End a pause; answers as `pause`, and `was_paused`: whether there was one."""
        return {"was_paused": self._change(Resume()), "pause": None}

    def reload(self) -> Json:
        """Load the configuration files again; answers once the changes are applied.

        `{changes, dropped_overrides, problems, notes, valid}`, lines for the operator. With problems, nothing has
        changed, either because the files are not `valid` or because of what only a restart can change.
        """
        with self._reloading:  # two reloads take effect in the order in which they read the files
            loaded = self._loaded()
            before = self._view().snapshot.errors
            reloaded = self._inbox.ask(Reload(loaded))
        if not reloaded.problems:
            self._raise_new_errors(before)
        return {
            "changes": [str(change) for change in reloaded.changes],
            "dropped_overrides": list(reloaded.dropped_overrides),
            "problems": list(reloaded.problems),
            "notes": list(reloaded.notes),
            "valid": reloaded.valid,
        }

    def reload_on_signal(self) -> None:
        """Reload after SIGHUP: the result is in the log."""
        try:
            self.reload()
        except UserError as error:
            _log.error("reload: %s", error)

    def _loaded(self) -> Config | ConfigError:
        try:
            return self._load()
        except ConfigError as error:
            return error

    def _change(self, request: Request[T]) -> T:
        before = self._view().snapshot.errors
        result = self._inbox.ask(request)
        self._raise_new_errors(before)
        return result

    def _raise_new_errors(self, before: tuple[str, ...]) -> None:
        errors = [error for error in self._view().snapshot.errors if error not in before]
        if errors:
            raise UserError(f"saved, but not fully applied: {'; '.join(errors)}")

    def _network(self, name: str) -> Json:
        return next(network for network in self.status()["networks"] if network["name"] == name)
