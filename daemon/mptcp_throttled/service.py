"""`mptcp-throttled`: one thread decides and writes to the kernel; others bring it the table and the wishes."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_throttle import service
from mptcp_throttle.config import DEFAULT_PATH, Config, load_config
from mptcp_throttle.errors import EXIT_STATUS_HELP, UserError
from mptcp_throttle.rpc import RpcServer
from mptcp_throttled import report
from mptcp_throttled.cleanup import clean_up, restore_qdiscs
from mptcp_throttled.commands import as_commands
from mptcp_throttled.kernel import LinuxKernel
from mptcp_throttled.kernel.htb import Marking, max_minor
from mptcp_throttled.kernel_state import KernelError, KernelState
from mptcp_throttled.overrides import OverrideStore, effective, requested_override
from mptcp_throttled.plan import UNTOUCHED, PlanRules, Slots, allot, make_plan, next_expiry
from mptcp_throttled.policy import decide
from mptcp_throttled.pull import Puller, TableView
from mptcp_throttled.reconcile import Reconciler, diff
from mptcp_throttled.report import View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-throttled")

# include/uapi/linux/capability.h
_CAP_NET_ADMIN: Final = 12
_CAP_NET_RAW: Final = 13

_APPLY_SECONDS: Final = 5.0


class Daemon:
    """The service. `run` is the kernel-writing thread; RPC methods and the puller only leave messages for it."""

    def __init__(self, config: Config, kernel: LinuxKernel) -> None:
        self._config = config
        self._reconciler = Reconciler(kernel)
        self._rules = PlanRules(max_minor(config.daemon.mark_mask), config.daemon.linger, config.daemon.other_traffic)
        # What wakes the loop; an Event among the messages is set once everything before it is in force.
        self._wake: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._overrides = OverrideStore(config.state_directory / "overrides.json", config.networks)
        self._table = TableView()
        self._slots: Slots = {}
        self._stopping = False
        self._view = View()

    def stop(self) -> None:
        """Let `run` return; may be called from a signal handler."""
        self._stopping = True
        self._wake.put(None)

    def run(self) -> None:
        """Serve until `stop()`, then leave the kernel as it was found."""
        methods: dict[str, Callable[..., Json]] = {
            "status": self.status,
            "connections": self.connections,
            "plan": self.plan,
            "set_rate": self.set_rate,
            "reset_rate": self.reset_rate,
        }
        self._round(audit=True)
        server = RpcServer(self._config.daemon_socket, methods, self._config.socket_group)
        puller = Puller(self._config.sniffer_socket, self._deliver)
        puller.start()
        service.notify_systemd("READY=1")
        _log.info("steering %s, networks %s", self._config.proxy.interface, [n.name for n in self._config.networks])
        try:
            self._loop()
        finally:
            service.notify_systemd("STOPPING=1")
            left = self._reconciler.converge(UNTOUCHED).errors
            puller.stop()
            server.close()
        if left:
            raise UserError("\n".join(left))

    def _loop(self) -> None:
        audit_at = time.monotonic() + self._config.daemon.audit_interval
        while not self._stopping:
            waiting = self._wait(self._next_deadline(audit_at))
            audit = time.monotonic() >= audit_at
            if audit:
                audit_at = time.monotonic() + self._config.daemon.audit_interval
            self._round(audit=audit)
            for event in waiting:
                event.set()

    def _next_deadline(self, audit_at: float) -> float:
        expiries = [
            o.expires_at - time.time() + time.monotonic() for o in self._view.overrides if o.expires_at is not None
        ]
        idle = next_expiry(self._slots, self._rules.linger)
        return min([audit_at, *expiries, *([] if idle is None else [idle])])

    def _wait(self, deadline: float) -> list[threading.Event]:
        messages = []
        try:
            messages.append(self._wake.get(timeout=max(deadline - time.monotonic(), 0.0)))
            while True:
                messages.append(self._wake.get_nowait())
        except queue.Empty:
            return [message for message in messages if message is not None]

    def _round(self, *, audit: bool) -> None:
        """Decide and reconcile once; the kernel is looked at only for a reason."""
        before = self._view
        with self._lock:
            table = self._table
            overrides = self._overrides.current(time.time())
        networks = effective(self._config.networks, overrides)
        treatments = decide(table.connections.values(), networks)
        shares = tuple(dict.fromkeys(t.held.share for t in treatments if t.held is not None))
        self._slots = allot(shares, self._slots, time.monotonic(), self._rules)
        plan = make_plan(treatments, self._slots, self._rules)
        exhausted = tuple(
            f"no class left for {share.who or 'all'} of {share.network}: mark_mask allows {self._rules.max_minor}"
            for share in shares
            if share not in self._slots
        )
        in_force, errors = before.in_force, before.errors
        if audit or plan != before.plan:
            outcome = self._reconciler.converge(plan)
            in_force, errors = outcome.in_force, exhausted + outcome.errors
            if audit and outcome.done and plan == before.plan:
                _log.warning("audit: the kernel had changed; repaired by %d operations", len(outcome.done))
        latency = report.measure_latency(before, treatments, in_force, time.time())
        self._view = View(table, networks, overrides, treatments, plan, in_force, errors, latency)
        if table.problem != before.table.problem:
            _log_sniffer(table)
        report.log_decisions(before, self._view)

    def _deliver(self, table: TableView) -> None:
        with self._lock:
            self._table = table
        self._wake.put(None)

    def status(self) -> Json:
        """Networks with their rates, what is in the kernel, and whether the sniffer answers."""
        return report.status(self._view, self._config.networks, self._config.proxy.interface)

    def connections(self) -> Json:
        """Every connection, and what is done with each subflow and why."""
        return report.connections(self._view)

    def plan(self) -> Json:
        """All operations that lead from the untouched interface to the present plan, as commands."""
        operations = diff(KernelState(), self._view.plan)
        interface, marking = self._config.proxy.interface, _marking(self._config)
        return {
            "operations": [
                {
                    "operation": type(operation).__name__,
                    "commands": list(as_commands(operation, interface, marking)),
                }
                for operation in operations
            ],
            "in_force": self._view.in_force == self._view.plan,
        }

    def set_rate(self, network: str, rule: str, rate: str | None, seconds: float | None) -> Json:
        """Override a network's cap or limit; `rate` null is unlimited, `seconds` null is until reset.

        Answers with the network's status once the rate is in force.
        """
        override = requested_override(network, rule, rate, seconds, time.time())
        with self._lock:
            self._overrides.set(override)
        return self._applied(network)

    def reset_rate(self, network: str) -> Json:
        """Return to the configured rates of a network; answers as `set_rate`."""
        with self._lock:
            self._overrides.reset(network)
        return self._applied(network)

    def _applied(self, name: str) -> Json:
        done = threading.Event()
        self._wake.put(done)
        if not done.wait(_APPLY_SECONDS):
            raise UserError(f"accepted, but not in force after {_APPLY_SECONDS:g} s; see status")
        if self._view.errors:
            raise UserError(f"accepted, but: {'; '.join(self._view.errors)}")
        return next(network for network in self.status()["networks"] if network["name"] == name)


def _log_sniffer(table: TableView) -> None:
    if table.problem is None:
        _log.info("following the sniffer: %d connections", len(table.connections))
    else:
        _log.warning("sniffer lost, nothing stays capped: %s", table.problem)


def _check_kernel(kernel: LinuxKernel) -> None:
    try:
        kernel.check()
    except KernelError as error:
        status = os.EX_UNAVAILABLE if error.number == errno.ENODEV else os.EX_OSERR
        raise UserError(str(error), os.EX_NOPERM if error.number in (errno.EPERM, errno.EACCES) else status) from error


def _marking(config: Config) -> Marking:
    return Marking(config.daemon.mark_mask, config.proxy.ports)


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
    config = load_config(options.config)
    service.configure_logging()
    service.require_capabilities(CAP_NET_ADMIN=_CAP_NET_ADMIN, CAP_NET_RAW=_CAP_NET_RAW)
    with service.single_instance(config.run_directory, "mptcp-throttled"):
        try:
            config.state_directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{config.state_directory}: cannot be made: {error.strerror}", os.EX_NOPERM) from error
        marking, state = _marking(config), config.state_directory
        if options.cleanup:
            clean_up(marking, state)
            return
        service.require_writable(state)
        for problem in restore_qdiscs(marking, state, but=config.proxy.interface):
            _log.error("%s", problem)
        kernel = LinuxKernel(config.proxy.interface, marking, state)
        _check_kernel(kernel)
        daemon = Daemon(config, kernel)
        service.on_stop_signal(daemon.stop)
        daemon.run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    return service.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
