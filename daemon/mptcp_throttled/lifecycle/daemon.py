"""The service: its parts put together, from the start to the end or to the hand-over to the next instance."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_throttle import systemd
from mptcp_throttle.config.load import load_again, load_config, load_with_policy
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.linux.adjtimex import is_clock_synchronised
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.rpc import RpcClient, RpcServer
from mptcp_throttle.systemd import Watchdog
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.boot import boot_identifier
from mptcp_throttled.accounting.control_group import Comparison
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import ClientSums
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.answers.api import Api
from mptcp_throttled.answers.metrics.families import MetricFamilies
from mptcp_throttled.answers.metrics.server import Exposition, MetricsServer
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.inbox import Inbox
from mptcp_throttled.control.loop import Loop
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.control.running_config import RunningConfig, judge
from mptcp_throttled.control.source import Follower, TableSource, haste
from mptcp_throttled.kernel.allowances import Allowances
from mptcp_throttled.kernel.linux_kernel import LinuxKernel
from mptcp_throttled.kernel.sockets.proxy_sockets import SocketReader, closing_cookies
from mptcp_throttled.kernel.steering.steering import NoSteering, Steering
from mptcp_throttled.kernel.uplink.uplinks import Uplinks
from mptcp_throttled.kernel.watch import Notifications
from mptcp_throttled.lifecycle.cleanup import release_sockets
from mptcp_throttled.lifecycle.first_table import wait_for_table
from mptcp_throttled.lifecycle.kept_link import KeptLink
from mptcp_throttled.observing.charging import Charging
from mptcp_throttled.observing.observer import Observer
from mptcp_throttled.reporting import step_log
from mptcp_throttled.reporting.budget_events import budget_events
from mptcp_throttled.reporting.step_events import paused, started
from mptcp_throttled.vocabulary.budgets import BudgetChange
from mptcp_throttled.vocabulary.clock import Clock, Now
from mptcp_throttled.vocabulary.control_group import ControlGroup, EndedConnection
from mptcp_throttled.vocabulary.events import Event
from mptcp_throttled.vocabulary.features import Feature
from mptcp_throttled.vocabulary.fleet import Load, SharedRates

if TYPE_CHECKING:
    from mptcp_throttled.control.policy_follower import PolicyFollower
    from mptcp_throttled.fleet.totals_thread import TotalsThread
    from mptcp_throttled.lifecycle.fleet_member import SharedLeases

_log = logging.getLogger("mptcp-throttled")

_SNIFFER_STATUS_SECONDS: Final = 0.5
_TOP_CLIENTS: Final = 20
_TOP_CLIENTS_SECONDS: Final = 600.0


class Daemon:
    """The service: `run` is the thread of the control loop; RPC, SIGHUP and the table source leave it messages.

    `path` is that of the configuration file, which a reload reads again. `kept` is the link of `kernel`, whose programs
    count for the `allowances`.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        kernel: LinuxKernel,
        uplinks: Uplinks,
        steering: Steering | NoSteering,
        features: Mapping[str, Feature],
        kept: KeptLink,
        control_group: ControlGroup,
        allowances: Allowances | None = None,
    ) -> None:
        self._path = path
        self._config = config
        self._kernel = kernel
        self._uplinks = uplinks
        self._kept = kept
        self._inbox = Inbox()
        self._stopping = False
        self._restarting = False
        clock = Clock()
        operator = OperatorStore(config.state_directory / "overrides.json", config.networks, clock, config.proxies)
        self._running = RunningConfig(config, clock.time())
        self._follower = Follower(self._inbox.wake, clock)
        self._source = TableSource(config.sockets.sniffer, self._follower)
        boot = boot_identifier(config.sockets.daemon.parent)
        self._history = History(config.state_directory / "history.sqlite", boot)
        self._clock = clock
        synchronised = is_clock_synchronised if config.daemon.wait_for_clock else None
        url = config.fleet.url
        ledger = Ledger(self._history.budgets(), synchronised, is_shared=url is not None)
        ledger.configure(config.networks, config.time_zone, clock.time())
        self._accounts = accounts = Accounts(
            self._history, ledger, clock, config.proxies, self._note_budgets, closing_cookies
        )
        self._fleet: TotalsThread | None = None
        self._leases: SharedLeases | None = None
        if url is not None:
            from mptcp_throttled.fleet.refusals import Refusals
            from mptcp_throttled.lifecycle.fleet_member import SharedLeases, fleet_member

            refusals = Refusals()
            self._fleet = fleet_member(
                config.fleet, url, accounts, self._history, refusals, self._say, self._present_load
            )
            file = config.state_directory / "leases.json"
            changed = self._inbox.wake
            self._leases = SharedLeases(
                config.fleet, url, file, boot, self._shares_rates, self._applied_leases, changed, refusals
            )
        self._own_ports = kernel.htb.ports | uplinks.ports | steering.ports
        self._comparison = Comparison(control_group.share, self._history.days(), self._today)
        self._loop = Loop(
            self._running,
            operator,
            self._follower,
            kernel,
            uplinks,
            features,
            clock,
            accounts.note_closed,
            steering,
            self._note_ended,
            control_group,
            lambda: ledger.spent,
            lambda: self._observer.overflow.shortfalls_at(clock.monotonic()),
            lambda: None if self._leases is None else self._leases.book.held,
        )
        counted = kernel.htb.class_bytes, steering.totals, uplinks.acknowledged
        reported = accounts, self._loop.events, self._inbox.wake
        charging = Charging(allowances, accounts, self._loop, config.proxies, clock)
        accounts.budgets_changed = charging.update
        ports = config.proxy.ports
        self._observer = Observer(
            ports,
            SocketReader(ports),
            self._loop,
            *counted,
            *reported,
            clock,
            kernel.closed_subflows,
            charging,
            None if self._leases is None else self._leases.book.want,
        )
        if allowances is not None:
            allowances.watch(self._note_used_up)
        self._metrics = MetricsServer()
        reports = self._loop.recent_decisions, self._loop.events
        self.api = Api(self._running, self._inbox, self._view, self._history, accounts, *reports, self._load_again)
        self._policies: PolicyFollower | None = None
        if config.fleet.policy.fleet is not None:
            from mptcp_throttled.lifecycle.fleet_policy import follow_policies

            load = partial(load_with_policy, path)
            self._policies = follow_policies(config, self._running, load, self.api, clock)

    def _load_again(self) -> Config:
        return load_again(self._path, self._running.config.policy)

    def _view(self) -> View:
        """What is known now; for any thread."""
        return View(
            self._loop.snapshot,
            self._observer.enforcement,
            self._accounts.networks,
            Now.of(self._clock),
            self._comparison.groups if self._config.daemon.control_group else None,
            self._accounts.budget_problem,
            self._comparison.by_day,
            None if self._fleet is None else self._fleet.state,
            None if self._leases is None else self._leases.state,
        )

    def _present_load(self) -> Load:
        snapshot, enforcement = self._loop.snapshot, self._observer.enforcement
        sent, received = enforcement.network_rates.values(), enforcement.received_network_rates.values()
        return Load(round(8 * sum(sent)), round(8 * sum(received)), len(snapshot.connections), len(snapshot.throttled))

    def _shares_rates(self) -> bool:
        return any(network.shared for network in self._running.config.networks)

    def _applied_leases(self) -> SharedRates | None:
        return self._loop.snapshot.facts.shared

    def _today(self) -> str:
        return datetime.fromtimestamp(self._clock.time(), self._running.config.time_zone).date().isoformat()

    def _note_ended(self, ended: Iterable[EndedConnection]) -> None:
        self._comparison.note(ended)
        self._history.keep_days(self._comparison.own)

    def _note_used_up(self) -> None:
        """The programs go over to the next stage of a budget; for any thread."""
        # They decide for a socket once in a round trip, and each of many carries as much as one does until then.
        with suppress(KernelError):
            self._kernel.decide_now()
        self._observer.look_now()

    def _say(self, event: Event) -> None:
        """For any thread."""
        self._loop.events.say(event)

    def _note_budgets(self, told: Sequence[BudgetChange]) -> None:
        """The stages that budgets have reached may be others; for any thread."""
        self._loop.events.say(*budget_events(told, self._loop.snapshot))
        self._inbox.wake()

    def stop(self) -> None:
        """Let `run` return; may be called from a signal handler."""
        self._stopping = True
        self._inbox.wake()

    def hand_over(self) -> None:
        """As `stop`, for a restart: the next instance goes on from what is in the kernel, if it can."""
        self._restarting = True
        self.stop()

    def run(self) -> None:
        """Serve until the end, then restore the kernel or hand it over. Raises UserError if it cannot be restored."""
        config, loop = self._config, self._loop
        self._source.start()
        # The table may ask for what an earlier instance has left in the kernel.
        with suppress(KernelError):
            loop.adopt(self._kernel.adopt())
        requests = wait_for_table(self._follower, self._inbox, lambda: self._stopping)
        server = None
        try:
            loop.events.say(started(config))
            loop.step(requests)
            self._kept.forget_earlier()
            step_log.log_adopted(loop.snapshot.throttled.values())
            if loop.snapshot.operator.pause is not None:
                loop.events.say(paused(loop.snapshot.operator.pause, loop.snapshot, time.monotonic()))
            server = RpcServer(config.sockets.daemon, self.api.methods(), config.socket_group)
            Notifications(config.proxy.interfaces, self._own_ports, self._kernel_changed).start()
            if config.sniffer.kernel_view:  # else no subflow ends at a socket of this host
                self._observer.start()
            if self._fleet is not None:
                self._fleet.start()
            if self._leases is not None:
                self._leases.start()
            self._serve_metrics()
            if self._policies is not None:
                self._policies.start()
            systemd.notify("READY=1")
            watchdog = Watchdog()
            while not self._stopping:
                deadline = min(loop.next_deadline, watchdog.due)
                loop.step(self._inbox.wait(deadline - time.monotonic()))
                self._follower.spacing, self._follower.patience = haste(loop.snapshot)
                watchdog.alive()
        finally:
            systemd.notify("STOPPING=1")
            errors = () if self._can_hand_over() else self._release()
            self._metrics.close()
            if self._fleet is not None:
                self._fleet.stop()
            if self._leases is not None:
                self._leases.stop()
            if self._policies is not None:
                self._policies.stop()
            self._observer.stop()
            self._source.stop()
            loop.events.close()
            if server is not None:
                server.close()
        if errors:
            raise UserError("\n".join(errors))

    def _serve_metrics(self) -> None:
        config = self._config
        sniffer = RpcClient(config.sockets.sniffer, _SNIFFER_STATUS_SECONDS)
        common = self._running, self._view, lambda: sniffer.call("status"), self._accounts.budget_totals
        top = self._top_clients if config.metrics.clients else None
        without_addresses = Exposition(MetricFamilies(*common))
        with_addresses = without_addresses if top is None else Exposition(MetricFamilies(*common, top))
        self._metrics.serve_socket(config.sockets.metrics, config.socket_group, with_addresses)
        if config.metrics.listen is not None:
            self._metrics.serve_address(config.metrics.listen, without_addresses)

    def _top_clients(self) -> list[ClientSums]:
        return self._history.top_clients(time.time() - _TOP_CLIENTS_SECONDS, _TOP_CLIENTS)

    def _can_hand_over(self) -> bool:
        """Whether the next instance will act on the same objects of the kernel: it loads the configuration again."""
        if not self._restarting:
            return False
        try:
            loaded: Config | ConfigError = load_config(self._path)
        except ConfigError as error:
            loaded = error
        problems = judge(self._config, loaded).problems
        for problem in problems:
            _log.warning("all subflows are freed until the next start: %s", problem)
        return not problems

    def _release(self) -> tuple[str, ...]:
        errors = self._loop.release()
        self._kept.replace(None)
        release_sockets(self._kernel.release_sockets)
        return errors

    def _kernel_changed(self) -> None:
        self._loop.note_kernel_change()
        self._inbox.wake()
