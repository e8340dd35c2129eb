"""`mptcp-throttled`: one thread decides and writes to the kernel; others bring it the table and the wishes."""

from __future__ import annotations

import argparse
import errno
import logging
import math
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_throttle import service, systemd
from mptcp_throttle.config.load import DEFAULT_PATH, find_run_directory, load_config
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import EXIT_STATUS_HELP, ConfigError, UserError
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.rpc import RpcServer
from mptcp_throttle.systemd import Watchdog
from mptcp_throttled import state as report
from mptcp_throttled.api import Methods
from mptcp_throttled.cleanup import clean_up, release_sockets
from mptcp_throttled.desired.kernel_plan import UNTOUCHED, KernelPlan, PlanSettings
from mptcp_throttled.desired.planner import Change, Planner
from mptcp_throttled.inbox import Inbox
from mptcp_throttled.kernel.htb import Marking, max_minor
from mptcp_throttled.kernel.linux_kernel import LinuxKernel
from mptcp_throttled.kernel.marking.back_end import choose_marking
from mptcp_throttled.kernel.marking.rules import RuleMarking
from mptcp_throttled.kernel.pacing import PacedSockets
from mptcp_throttled.kernel.watch import Notifications
from mptcp_throttled.operator_state import OperatorStore
from mptcp_throttled.policy.decision_table import DecisionTable
from mptcp_throttled.policy.overrides import effective
from mptcp_throttled.reconcile.reconciler import Outcome, Reconciler
from mptcp_throttled.reconcile.schedule import Schedule
from mptcp_throttled.running_config import RunningConfig
from mptcp_throttled.source import TableSource, TableUpdate
from mptcp_throttled.state import Hold, View

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from mptcp_throttle.model import AccessNetwork, FourTuple
    from mptcp_throttled.kernel.marking.back_end import MarkingBackEnd
    from mptcp_throttled.policy.decide import Decision, Share

_log = logging.getLogger("mptcp-throttled")

# include/uapi/linux/capability.h
_CAP_NET_ADMIN: Final = 12
_CAP_NET_RAW: Final = 13

_SETTLE_SECONDS: Final = 1.0
_FIRST_TABLE_SECONDS: Final = 1.0


class Daemon:
    """The service. `run` is the kernel-writing thread; `methods`, SIGHUP and the puller only leave it messages.

    `load` reads the configuration files again; it raises ConfigError.
    """

    def __init__(self, config: Config, load: Callable[[], Config], kernel: LinuxKernel) -> None:
        self._settings = RunningConfig(config, time.time())
        self._reconciler = Reconciler(kernel)
        self._kernel = kernel
        self._inbox = Inbox()
        self._wishes = OperatorStore(config.state_directory / "overrides.json", config.networks)
        self._arrivals: queue.SimpleQueue[TableUpdate] = queue.SimpleQueue()
        self._decisions = DecisionTable()
        self._planner = Planner()
        self._found: Mapping[FourTuple, int] = {}
        self._holds: dict[FourTuple, Hold] = {}
        self._refused: tuple[str, ...] = ()
        self._changing = threading.Lock()
        self._schedule = Schedule(time.monotonic())
        self._kernel_changed = threading.Event()
        self._stopping = False
        self._watchdog = Watchdog()
        self._view = View()
        self.methods = Methods(self._settings, self._wishes, self._inbox, self._snapshot, load, kernel.mark_back_end)

    def stop(self) -> None:
        """Let `run` return; may be called from a signal handler."""
        self._stopping = True
        self._inbox.wake()

    def run(self) -> None:
        """Serve until `stop()`, then leave the kernel as it was found."""
        config = self._settings.config
        puller = TableSource(config.sockets.sniffer, self._deliver)
        puller.start()
        # What is found in the kernel may be what the table asks for; without a sniffer, the puller says so at once.
        with suppress(KernelError):
            self._found = self._kernel.marks()
        self._planner.adopt(self._found)
        parts = -1
        while self._arrivals.empty() and puller.parts > parts:
            parts = puller.parts
            self._inbox.wait(_FIRST_TABLE_SECONDS)
        self._round()
        self._found = {}
        if self._holds:
            _log.info("%d subflows are held as they were found, %d anew", *_count_found(self._holds.values()))
        server = RpcServer(config.sockets.daemon, self.methods.table(), config.socket_group)
        Notifications(config.proxy.interface, self._kernel.ports, self._note_kernel_change).start()
        systemd.notify("READY=1")
        _log.info(
            "steering %s, networks %s, marks through %s",
            config.proxy.interface,
            [n.name for n in config.networks],
            self._kernel.mark_back_end,
        )
        try:
            self._loop()
        finally:
            systemd.notify("STOPPING=1")
            left = self._reconciler.converge(UNTOUCHED).errors
            release_sockets(self._kernel)
            puller.stop()
            server.close()
        if left:
            raise UserError("\n".join(left))

    def _loop(self) -> None:
        while not self._stopping:
            requests = self._inbox.wait(self._next_deadline() - time.monotonic())
            for request in requests:
                request.carry_out()
            if self._kernel_changed.is_set():
                self._kernel_changed.clear()
                self._schedule.changed()
            self._round()
            for request in requests:
                request.answer()
            self._watchdog.alive()

    def _next_deadline(self) -> float:
        expiry, idle = self._view.wishes.next_expiry, self._planner.next_expiry
        return min(
            self._schedule.due,
            math.inf if self._refused else self._schedule.glance_due,
            self._watchdog.due,
            math.inf if expiry is None else expiry - time.time() + time.monotonic(),
            math.inf if idle is None else idle,
        )

    def _round(self) -> None:
        """Decide and reconcile once; the kernel is looked at only for a reason."""
        before, config = self._view, self._settings.config
        rules = PlanSettings(
            max_minor(config.daemon.mark_mask),
            config.daemon.linger,
            config.daemon.other_traffic,
            _SETTLE_SECONDS if before.unpaced is None else 0.0,
        )
        wishes = self._wishes.current(time.time())
        networks = effective(config.networks, wishes.overrides)
        update = self._take_arrivals()
        with self._changing:
            change = self._plan(update, networks, rules, paused=wishes.pause is not None)
        outcome = self._reconcile(change)
        with self._changing:
            in_force, unpaced = before.in_force, before.unpaced
            concerned = change.decisions
            if outcome is not None:
                in_force, unpaced = outcome.in_force, outcome.unpaced
                if outcome.compared and (outcome.done or outcome.errors or self._refused):
                    concerned = self._everybody()
                self._refused = outcome.refusals
            now = time.time()
            report.take_holds(self._holds, concerned, in_force, self._decisions.decisions, self._found, now)
            self._view = View(
                update or before.table,
                config.networks,
                networks,
                wishes,
                self._decisions.connections,
                self._decisions.decisions,
                self._planner.plan,
                in_force,
                self._holds,
                (*_exhausted(self._planner.without_class, rules), *self._refused),
                unpaced,
            )
        if unpaced != before.unpaced:
            _log_pacing(unpaced)
        if self._view.table.problem != before.table.problem:
            _log_sniffer(self._view)
        report.log_errors(before, self._view)

    def _take_arrivals(self) -> TableUpdate | None:
        """All updates of the table that have come, as one."""
        update: TableUpdate | None = None
        with suppress(queue.Empty):
            while True:
                later = self._arrivals.get_nowait()
                update = later if update is None else update.then(later)
        return update

    def _plan(
        self, update: TableUpdate | None, networks: Sequence[AccessNetwork], rules: PlanSettings, *, paused: bool
    ) -> Change:
        decisions = self._decisions
        former = decisions.reconfigure(networks, paused=paused)
        if update is not None:
            later = decisions.replace(update.connections) if update.whole else decisions.update(update.connections)
            former = {**later, **former}
        return self._planner.update(former, decisions.decisions, time.monotonic(), rules)

    def _reconcile(self, change: Change) -> Outcome | None:
        """Bring the kernel to the plan, by the change alone if all was in force; None if there is no reason to."""
        plan, in_force = self._planner.plan, self._view.in_force
        due = time.monotonic() >= self._schedule.due
        # What the kernel has just refused waits for its turn, whatever else changes; to let somebody go does not.
        if self._refused and not due and (change.empty or not _lets_go(in_force, plan)):
            return None
        used, outcome = time.thread_time(), None
        if self._refused or change.root or not in_force.htb:
            due = due or not change.empty
        elif not change.empty:
            # Even when it is time to look: who has just joined does not wait for that.
            outcome = self._reconciler.advance(plan, change.before, change.after)
        compared = outcome is not None and outcome.compared
        if not (due or compared or self._refused) and self._glance_shows_otherwise(plan):
            # Not at once, if somebody undoes it again and again.
            self._schedule.changed()
            due = time.monotonic() >= self._schedule.due
        if due and not compared:
            outcome = self._reconciler.converge(plan)
        if outcome is not None and outcome.compared:
            repaired = change.empty and not self._refused and bool(outcome.done)
            if repaired:
                _log.warning("the kernel had been changed; repaired by %d operations", len(outcome.done))
            ended, used = time.monotonic(), time.thread_time() - used
            interval = self._settings.config.daemon.reconcile_interval
            self._schedule.compared(ended - used, ended, interval, trouble=repaired or bool(outcome.refusals))
        return outcome

    def _glance_shows_otherwise(self, plan: KernelPlan) -> bool:
        began = time.monotonic()
        if began < self._schedule.glance_due:
            return False
        intact = self._reconciler.quick_check(plan)
        self._schedule.glanced(began, time.monotonic(), self._settings.config.daemon.reconcile_interval)
        return not intact

    def _everybody(self) -> dict[FourTuple, Decision | None]:
        """The decision of every subflow, None for one that is held and not known any more."""
        decisions: dict[FourTuple, Decision | None] = dict.fromkeys(self._holds)
        decisions.update((t.subflow.ends, t) for of in self._decisions.decisions.values() for t in of)
        return decisions

    def _snapshot(self) -> View:
        with self._changing:
            return self._view.copy()

    def _note_kernel_change(self) -> None:
        self._kernel_changed.set()
        self._inbox.wake()

    def _deliver(self, update: TableUpdate) -> None:
        self._arrivals.put(update)
        self._inbox.wake()


def _count_found(holds: Collection[Hold]) -> tuple[int, int]:
    found = sum(hold.latency is None for hold in holds)
    return found, len(holds) - found


def _lets_go(in_force: KernelPlan, plan: KernelPlan) -> bool:
    """Whether anybody is held who is not to be, or not at that rate."""
    return any(
        plan.marks.get(ends) != minor or plan.classes.get(minor) != in_force.classes[minor]
        for ends, minor in in_force.marks.items()
    )


def _exhausted(without_class: Iterable[Share], rules: PlanSettings) -> Iterator[str]:
    for network in dict.fromkeys(share.network for share in without_class):
        yield f"no class left for all of {network}: mark_mask allows {rules.max_minor}"


def _paced_sockets(config: Config) -> PacedSockets | None:
    if not config.daemon.pacing:
        return None
    cgroup = config.daemon.cgroup
    return PacedSockets(config.proxy.ports, None if cgroup is None else Path(cgroup))


def _log_pacing(unpaced: str | None) -> None:
    if unpaced is None:
        _log.info("the proxy's sockets can be paced")
    else:
        _log.warning("HTB alone holds the rates, which slows whole connections down: %s", unpaced)


def _log_sniffer(view: View) -> None:
    if view.table.problem is None:
        _log.info("following the sniffer: %d connections", len(view.connections))
    else:
        _log.warning("sniffer lost, nothing stays capped: %s", view.table.problem)


def _check_kernel(kernel: LinuxKernel) -> None:
    try:
        kernel.check()
        kernel.forget_stale()
    except KernelError as error:
        status = os.EX_UNAVAILABLE if error.number == errno.ENODEV else os.EX_OSERR
        raise UserError(str(error), os.EX_NOPERM if error.number in (errno.EPERM, errno.EACCES) else status) from error


def _kernel(config: Config, marks: MarkingBackEnd) -> LinuxKernel:
    return LinuxKernel(
        config.proxy.interface,
        _marking(config),
        marks,
        config.run_directory,
        _paced_sockets(config),
        force=config.daemon.replace_any_qdisc,
    )


def _marking(config: Config) -> Marking:
    return Marking(config.daemon.mark_mask, config.proxy.ports)


def _clean_up(path: Path) -> None:
    """Put everything back, whatever is wrong with the configuration: what is ours can be told without it."""
    service.require_capabilities(CAP_NET_ADMIN=_CAP_NET_ADMIN, CAP_NET_RAW=_CAP_NET_RAW)
    group = None
    marks = RuleMarking(1)  # it removes what is ours, sets too, and needs no kernel that has them
    try:
        config = load_config(path)
        run_directory, kernel, group = config.run_directory, _kernel(config, marks), config.socket_group
    except ConfigError as error:
        for problem in error.problems:
            _log.warning("%s", problem)
        run_directory = find_run_directory(path)
        kernel = LinuxKernel("", Marking(1, ()), marks, run_directory)
    with service.single_instance(run_directory, "mptcp-throttled", group):
        clean_up(kernel)


def _main(arguments: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(
        prog="mptcp-throttled",
        description="Hold MPTCP subflows to their rates.",
        epilog=EXIT_STATUS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--cleanup", action="store_true", help="put everything back as it was found, and exit")
    options = parser.parse_args(arguments)
    service.configure_logging()
    if options.cleanup:
        _clean_up(options.config)
        return
    config = load_config(options.config)
    service.prefer_latency()
    service.spare_memory()
    service.require_capabilities(CAP_NET_ADMIN=_CAP_NET_ADMIN, CAP_NET_RAW=_CAP_NET_RAW)
    with service.single_instance(config.run_directory, "mptcp-throttled", config.socket_group):
        try:
            config.state_directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{config.state_directory}: cannot be made: {error.strerror}", os.EX_NOPERM) from error
        kernel = _kernel(config, choose_marking(config.daemon.marks, _marking(config)))
        service.require_writable(config.state_directory)
        _check_kernel(kernel)
        daemon = Daemon(config, lambda: load_config(options.config), kernel)
        service.on_stop_signal(daemon.stop)
        service.on_reload_signal(daemon.methods.hang_up)
        daemon.run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    return service.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
