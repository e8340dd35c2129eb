"""The RPC methods of the daemon: some read the last snapshot, others make changes and answer once these are applied."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError, shown
from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import FourTuple
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import ClientOrder
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import HourOfWaiting, resolution_for, summed
from mptcp_throttled.accounting.ledger import Choice
from mptcp_throttled.accounting.requested_accounts import requested_accounts, requested_path
from mptcp_throttled.answers import budgets as budget_answers
from mptcp_throttled.answers import calendar, client_details, costs, status
from mptcp_throttled.answers.busiest import IndexedClients, busiest, requested_order
from mptcp_throttled.answers.cached import Cached
from mptcp_throttled.answers.client_index import ClientIndex
from mptcp_throttled.answers.client_list import ClientList, Wanted
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
    requested_network,
    requested_override,
)
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.enforcing.diff import diff
from mptcp_throttled.reporting.event_log import EventLog
from mptcp_throttled.reporting.recent_decisions import RecentDecisions
from mptcp_throttled.vocabulary.budgets import Addition
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState
from mptcp_throttled.vocabulary.locator import Locators
from mptcp_throttled.vocabulary.operator import Pause

_log = logging.getLogger("mptcp-throttled")


_HELD_SINCE_SECONDS: Final = 600.0
# The history is written every 5 s.
_HELD_SECONDS: Final = 10.0
# With ten thousand clients, a day has 240 000 rows.
_WAITING_SECONDS: Final = 60.0


class Api:
    """The methods, for any thread. What they change, they change through `inbox`, in the thread of the control loop.

    `load` reads the configuration files again and raises ConfigError. `policy` gives the part of `status` about the
    policy of the fleet; None: there is no fleet.
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
        self._listed = ClientList(Cached(_HELD_SECONDS, self._held_back))
        self._waiting = Cached(_WAITING_SECONDS, self._find_waiting)
        self._counted = CountedSubflows()
        self._load = load
        self.policy: Callable[[], Json] = lambda: None
        self._indexing = threading.Lock()
        self._reloading = threading.Lock()

    def methods(self) -> dict[str, Callable[..., Json]]:
        """All RPC methods by name."""
        return {
            "status": self.status,
            "connections": self.connections,
            "explain": self.explain,
            "history": self.history,
            "top": self.top,
            "client": self.client,
            "clients": self.clients,
            "decisions": self.decisions,
            "events": self.events,
            "overrides": self.overrides,
            "plan": self.plan,
            "savings": self.savings,
            "waiting": self.waiting,
            "week": self.week,
            "budgets": self.budgets,
            "budget_add": self.budget_add,
            "budget_reset": self.budget_reset,
            "budget_set_used": self.budget_set_used,
            "budget_take_back": self.budget_take_back,
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
        config, policy = self._config.status(), self.policy()
        return status.status(view, self._counted.of(view.snapshot), interfaces, config, policy)

    def connections(self) -> Json:
        """Every connection, with the decision for each subflow, and what it sends."""
        return status.connections(self._view())

    def explain(self, client: str, network: str | None = None) -> Json:
        """The rates of a client, by one of its addresses or its device, on one access network or on all, and which
        rules have made them."""
        view, proxies = self._view(), self._config.config.proxies
        asked = requested_client(client, view.snapshot.networks)
        return explain(view, asked, network, proxies, self._accounts.budget_uses_of)

    def top(self, number: int, order: str, pattern: str) -> Json:
        """Each access network with up to `number` clients and their busiest subflows.

        `order` is one of `busiest.Order`. With a `pattern`, only the subflows that match it count.
        """
        chosen = requested_order(order)
        with self._indexing:
            view = self._view()
            self._clients.update(view.snapshot)
            index = IndexedClients(self._clients, self._counted.of(view.snapshot))
            return busiest(view, index, number, chosen, pattern)

    def clients(
        self,
        number: int,
        start: int = 0,
        order: str = ClientOrder.SENT,
        search: str = "",
        network: str = "",
        rule: str = "",
    ) -> Json:
        """Up to `number` clients over all access networks, in an `order`, from place `start` on.

        Only those with `search` in their names or addresses, with a subflow on `network`, and with a downlink that
        `rule` has decided. An empty text chooses all.
        """
        wanted = Wanted.of(number, start, order, search, network, rule)
        with self._indexing:
            return self._listed.answer(self._view(), wanted)

    def decisions(self, number: int) -> Json:
        """The latest decisions that have changed something, the latest first, up to `number`, and no more than 200."""
        return {"decisions": self._recent_decisions.latest(number)}

    def events(self, instance: str | None = None, after: int = 0, seconds: float = 0.0) -> Json:
        """The kept events after number `after`; all of them if `instance` is not this instance of the daemon.

        If there are none, waits up to `seconds` for one, and no longer than 5 s. Raises UserError.
        """
        for name, value, allowed in (("after", after, int), ("seconds", seconds, int | float)):
            if isinstance(value, bool) or not isinstance(value, allowed):
                raise UserError(f"{name}: {shown(value)}: allowed: a number")
        return self._events.after(instance, after, seconds)

    def history(self, name: str, seconds: float, network: str | None = None) -> Json:
        """What an access network, or a client by one of its addresses or its device, has carried in the last `seconds`.

        With `network`, only what the client has carried there. Answers `{kind, name, resolution, periods}`: resolution
        in seconds; each period with its `start`, in seconds since the epoch, and its traffic. Raises UserError.
        """
        networks, proxies = self._view().snapshot.networks, self._config.config.proxies
        accounts = requested_accounts(name, networks, proxies)
        parts = accounts if network is None else requested_path(name, network, networks, proxies)
        resolution, since = resolution_for(seconds), time.time() - seconds
        periods = summed(row for each in parts for row in self._history.read(each, resolution, since))
        return status.history(accounts[0], resolution, periods)

    def budgets(self, name: str | None = None) -> Json:
        """The use of the budgets of a network, or of a client, by an address or its device; null: of all."""
        owner = None if name is None else budget_answers.requested_owner(name, self._config.config)
        uses, view = budget_answers.uses_of(self._accounts, owner), self._view()
        return budget_answers.describe(uses, view.snapshot, self._accounts.budget_problem, view.proxy)

    def budget_add(
        self, name: str, amount: str, until: str | None = None, every: str | None = None, direction: str | None = None
    ) -> Json:
        """Add to the budget of a network or client; what is not used by `until` is lost. Answers as `budgets`."""
        owner, choice, volume = *self._chosen(name, every, direction), budget_answers.requested_volume(amount)
        end = budget_answers.requested_until(until, self._config.config.time_zone, time.time())
        budget_answers.add(self._accounts, owner, choice, Addition(volume, volume, end))
        return self.budgets(name)

    def budget_reset(self, name: str, every: str | None = None, direction: str | None = None) -> Json:
        """Begin again the budgets of a network and of all its clients, or those of one client. Answers as `budgets`."""
        budget_answers.reset(self._accounts, *self._chosen(name, every, direction))
        return self.budgets(name)

    def budget_set_used(self, name: str, amount: str, every: str | None = None, direction: str | None = None) -> Json:
        """Set what is used of the budget of a network or client. Answers as `budgets`."""
        volume = budget_answers.requested_volume(amount, or_nothing=True)
        budget_answers.set_used(self._accounts, *self._chosen(name, every, direction), volume)
        return self.budgets(name)

    def budget_take_back(
        self, name: str, amount: str, until: str | None = None, every: str | None = None, direction: str | None = None
    ) -> Json:
        """Take back what `budget_add` has added: what was used of it is used of the budget. Answers as `budgets`."""
        owner, choice, volume = *self._chosen(name, every, direction), budget_answers.requested_volume(amount)
        end = budget_answers.requested_until(until, self._config.config.time_zone, time.time())
        budget_answers.take_back(self._accounts, owner, choice, volume, end)
        return self.budgets(name)

    def _held_back(self) -> dict[str, int]:
        return self._history.held_back_by_client(time.time() - _HELD_SINCE_SECONDS)

    def _chosen(self, name: str, every: str | None, direction: str | None) -> tuple[budget_answers.Owner, Choice]:
        owner = budget_answers.requested_owner(name, self._config.config)
        return owner, budget_answers.requested_choice(every, direction)

    def savings(self) -> Json:
        """What caps have saved today and this month, by the control group."""
        return costs.savings(self._view(), self._config.config.time_zone)

    def waiting(self) -> Json:
        """How long data of clients waited for capped subflows that were held back, in each hour of the last day.

        Those that waited longest in the last hour are named, with what caps them now.
        """
        view = self._view()
        answer = costs.waiting(*self._waiting(), time.time(), view.snapshot.networks)
        with self._indexing:
            for client in answer["clients"]:
                client |= self._listed.cap_of(client["device"] or client["client"], view)
        return answer

    def _find_waiting(self) -> tuple[list[HourOfWaiting], dict[str, int]]:
        now = time.time()
        return self._history.waiting_by_hour(now - costs.WAITING_SECONDS), self._history.held_back_by_client(now - 3600)

    def week(self, at: float | None = None) -> Json:
        """What schedules say in the week with the time `at`, in seconds since the epoch; null: in this week."""
        config, now = self._config.config, time.time()
        return calendar.week(config.networks, calendar.requested_time(at, now, config.time_zone), now, config.time_zone)

    def client(self, name: str) -> Json:
        """A client by one of its addresses or its device: its subflows and rates on all access networks, and what has
        changed for it."""
        view, proxies = self._view(), self._config.config.proxies
        asked = requested_client(name, view.snapshot.networks)
        with self._indexing:
            self._listed.clients.update(view.snapshot)
            known = client_details.find(self._listed.clients, asked, Locators(view.snapshot.networks, proxies))
            row = None if known is None else self._listed.describe(known, view)
        explained = explain(view, asked, None, proxies, self._accounts.budget_uses_of)
        reports = self._recent_decisions, self._events.after(None, 0, 0.0)["events"]
        return client_details.describe(view, name, known, row, explained, *reports)

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

    def overrides(self, network: str, client: str | None = None) -> Json:
        """The rates that are set by hand for a network, or for a client there, as parameters of `set_rate`."""
        snapshot = self._view().snapshot
        address = requested_address(client, network, snapshot.networks)
        known = requested_network(network, snapshot.networks)
        return {"overrides": status.overrides(snapshot.operator, known, address, time.monotonic())}

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
