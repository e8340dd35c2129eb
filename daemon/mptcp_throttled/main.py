"""`mptcp-throttled`: the command line, the parts of the service put together, and clean-up without a service."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mptcp_throttle import logs, service, systemd
from mptcp_throttle.command_line import command_line
from mptcp_throttle.config.load import find_daemon_directory, load_config
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.rpc import RpcClient, RpcServer
from mptcp_throttle.systemd import Watchdog
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.boot import boot_identifier
from mptcp_throttled.accounting.history import History
from mptcp_throttled.answers.api import Api
from mptcp_throttled.answers.metrics.families import MetricFamilies
from mptcp_throttled.answers.metrics.server import Exposition, MetricsServer
from mptcp_throttled.answers.status import Observed
from mptcp_throttled.control.inbox import Inbox, Message
from mptcp_throttled.control.loop import Loop
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.control.running_config import RunningConfig, judge
from mptcp_throttled.control.source import TableSource
from mptcp_throttled.kernel.linux_kernel import LinuxKernel
from mptcp_throttled.kernel.uplink.clsact_filters import ClsactFilters
from mptcp_throttled.kernel.uplink.uplinks import Uplinks
from mptcp_throttled.kernel.watch import Notifications
from mptcp_throttled.lifecycle import back_ends
from mptcp_throttled.lifecycle.cleanup import clean_up, free_uplinks, release_ports, release_sockets, remove_leftovers
from mptcp_throttled.lifecycle.kept_link import KeptLink
from mptcp_throttled.lifecycle.port_record import PortRecord
from mptcp_throttled.observing.observer import Observer
from mptcp_throttled.reporting import eventlog
from mptcp_throttled.vocabulary.clock import SystemClock

_log = logging.getLogger("mptcp-throttled")

_BATCH_SECONDS: Final = 0.05
_FIRST_TABLE_SECONDS: Final = 1.0
_SNIFFER_STATUS_SECONDS: Final = 0.5
_TOP_CLIENTS: Final = 20
_TOP_CLIENTS_SECONDS: Final = 600.0
# A table of 50 000 connections takes 5 s; systemd gives a service 90 s to start.
_LONGEST_FIRST_TABLE_SECONDS: Final = 30.0


class Daemon:
    """The service: `run` is the thread of the control loop; RPC, SIGHUP and the table source leave it messages.

    `load` reads the configuration files again; it raises ConfigError. `kept` is the link of `kernel`.
    """

    def __init__(
        self, config: Config, load: Callable[[], Config], kernel: LinuxKernel, uplinks: Uplinks, kept: KeptLink
    ) -> None:
        self._config = config
        self._kernel = kernel
        self._uplinks = uplinks
        self._kept = kept
        self._load = load
        self._inbox = Inbox()
        self._stopping = False
        self._restarting = False
        running, operator = RunningConfig(config, time.time()), _operator_store(config)
        self._source = TableSource(config.sockets.sniffer, self._inbox.wake)
        boot = boot_identifier(config.sockets.daemon.parent)
        history = History(config.state_directory / "history.sqlite", boot)
        accounts = Accounts(history, SystemClock())
        self._loop = Loop(running, operator, self._source, kernel, uplinks, SystemClock(), accounts.note_closed)
        self._observer = Observer(config.proxy.ports, lambda: self._loop.snapshot, kernel.class_bytes, accounts)
        self._history = history
        self._running = running
        self._accounts = accounts
        self._metrics = MetricsServer()
        self.api = Api(
            running,
            self._inbox,
            lambda: self._loop.snapshot,
            self._observed,
            history,
            self._loop.recent_decisions,
            load,
        )

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
        requests = self._wait_for_table()
        server = None
        try:
            loop.step(requests)
            self._kept.forget_earlier()
            eventlog.log_adopted(loop.snapshot.throttled.values())
            networks = [network.name for network in config.networks]
            _log.info("throttling on %s, networks %s", ", ".join(config.proxy.interfaces), networks)
            eventlog.log_pause_at_start(loop.snapshot.operator.pause, time.monotonic())
            server = RpcServer(config.sockets.daemon, self.api.methods(), config.socket_group)
            own_ports = self._kernel.ports | self._uplinks.ports
            Notifications(config.proxy.interfaces, own_ports, self._kernel_changed).start()
            if config.sniffer.kernel_view:  # else no subflow ends at a socket of this host
                self._observer.start()
            self._serve_metrics()
            systemd.notify("READY=1")
            watchdog = Watchdog()
            while not self._stopping:
                deadline = min(loop.next_deadline, watchdog.due)
                loop.step(self._inbox.wait(deadline - time.monotonic()))
                # What is urgent is done in the kernel, where it can be.
                self._source.spacing = _BATCH_SECONDS if loop.snapshot.deciding_problem is None else 0.0
                watchdog.alive()
        finally:
            systemd.notify("STOPPING=1")
            errors = () if self._can_hand_over() else self._release()
            self._metrics.close()
            self._observer.stop()
            self._source.stop()
            if server is not None:
                server.close()
        if errors:
            raise UserError("\n".join(errors))

    def _observed(self) -> Observed:
        return Observed(self._observer.enforcement, self._accounts.networks)

    def _serve_metrics(self) -> None:
        config = self._config
        sniffer = RpcClient(config.sockets.sniffer, _SNIFFER_STATUS_SECONDS)
        common = self._running, lambda: self._loop.snapshot, self._observed, lambda: sniffer.call("status")
        top = self._top_clients if config.metrics.clients else None
        without_addresses = Exposition(MetricFamilies(*common))
        with_addresses = without_addresses if top is None else Exposition(MetricFamilies(*common, top))
        self._metrics.serve_socket(config.sockets.metrics, config.socket_group, with_addresses)
        if config.metrics.listen is not None:
            self._metrics.serve_address(config.metrics.listen, without_addresses)

    def _top_clients(self) -> list[tuple[str, int]]:
        return self._history.top_clients(time.time() - _TOP_CLIENTS_SECONDS, _TOP_CLIENTS)

    def _can_hand_over(self) -> bool:
        """Whether the next instance will act on the same objects of the kernel: it loads the configuration again."""
        if not self._restarting:
            return False
        try:
            loaded: Config | ConfigError = self._load()
        except ConfigError as error:
            loaded = error
        problems = judge(self._config, loaded).problems
        for problem in problems:
            _log.warning("everybody is freed until the next start: %s", problem)
        return not problems

    def _release(self) -> tuple[str, ...]:
        errors = self._loop.release()
        self._kept.replace(None)
        release_sockets(self._kernel.release_sockets)
        return errors

    def _wait_for_table(self) -> list[Message[Any]]:
        """Wait for the sniffer's table, or for a second without a part of it; the requests that came meanwhile.

        Without a sniffer, the source says so at once. The wait is bounded: a table may change faster than it is read.
        """
        requests, parts, end = [], -1, time.monotonic() + _LONGEST_FIRST_TABLE_SECONDS
        while self._source.empty and self._source.parts > parts and time.monotonic() < end:
            parts = self._source.parts
            requests += self._inbox.wait(_FIRST_TABLE_SECONDS)
        return requests

    def _kernel_changed(self) -> None:
        self._loop.note_kernel_change()
        self._inbox.wake()


def _operator_store(config: Config) -> OperatorStore:
    return OperatorStore(config.state_directory / "overrides.json", config.networks, SystemClock())


def _check_kernel(kernel: LinuxKernel) -> None:
    try:
        kernel.check()
        kernel.forget_stale()
    except KernelError as error:
        status = os.EX_NOPERM if error.number in (errno.EPERM, errno.EACCES) else os.EX_OSERR
        raise UserError(str(error), status) from error


def _require_capabilities() -> None:
    service.require_capabilities(CAP_NET_ADMIN=service.CAP_NET_ADMIN, CAP_NET_RAW=service.CAP_NET_RAW)


def _clean_up(path: Path) -> None:
    """Restore everything even if the configuration is invalid: our kernel objects are recognised without it."""
    _require_capabilities()
    group = None
    try:
        config = load_config(path)
        kernel, other = back_ends.kernel_to_clean(config), back_ends.other_kernel(config)
        directory, group = config.sockets.daemon.parent, config.socket_group
    except ConfigError as error:
        for problem in error.problems:
            _log.warning("%s", problem)
        directory = find_daemon_directory(path)
        kernel, other = back_ends.unconfigured_kernels(directory)
    with service.single_instance(directory, "mptcp-throttled", group):
        try:
            clean_up(kernel)
        finally:
            if other is not None:
                remove_leftovers(other)
            record = PortRecord(directory)
            with _file_errors_as_user_errors():
                recorded = record.load()
            with closing(ClsactFilters(directory)) as filters:
                free_uplinks(filters, directory, recorded)
            _release_other_ports(recorded, (), KeptLink())
            with _file_errors_as_user_errors():
                record.write(())


def _release_other_ports(recorded: Collection[int], ports: Collection[int], kept: KeptLink) -> None:
    """Free the sockets that an earlier instance has throttled on other ports than these."""
    others = {*recorded} - {*ports}
    if others:
        kept.forget_earlier()  # its program would throttle them again
        release_ports(others)


@contextmanager
def _file_errors_as_user_errors() -> Iterator[None]:
    """Turn an OSError about a file into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be used: {error.strerror}", os.EX_NOPERM) from error


def _serve(path: Path) -> None:
    kept = KeptLink()
    config = load_config(path)
    logs.set_level(config.log_level)
    service.prefer_latency()
    service.return_freed_memory()
    _require_capabilities()
    with service.single_instance(config.sockets.daemon.parent, "mptcp-throttled", config.socket_group):
        try:
            config.state_directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{config.state_directory}: cannot be made: {error.strerror}", os.EX_NOPERM) from error
        kernel = back_ends.kernel_of(config, kept.replace)
        service.require_writable(config.state_directory)
        # First: if this back end cannot be used, nobody may stay throttled by the other one.
        other = back_ends.other_kernel(config)
        if other is not None:
            remove_leftovers(other)
        _check_kernel(kernel)
        directory = config.sockets.daemon.parent
        record = PortRecord(directory)
        with _file_errors_as_user_errors():
            recorded = record.load()
        with closing(ClsactFilters(directory)) as filters:
            free_uplinks(filters, directory, {*recorded, *config.proxy.ports})
            _release_other_ports(recorded, config.proxy.ports if config.daemon.pacing else (), kept)
            with _file_errors_as_user_errors():
                record.write(config.proxy.ports)
            uplinks = Uplinks(config.proxy.interfaces, filters)
            daemon = Daemon(config, lambda: load_config(path), kernel, uplinks, kept)
            service.on_stop_signal(daemon.stop)
            service.on_hand_over_signal(daemon.hand_over)
            service.on_reload_signal(daemon.api.reload_on_signal)
            daemon.run()


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page is made from it."""
    made = command_line("mptcp-throttled", "Throttle MPTCP subflows to the rates of their access networks.")
    made.add_argument("--cleanup", action="store_true", help="restore everything as it was found, and exit")
    return made


def _main(arguments: Sequence[str] | None) -> None:
    options = parser().parse_args(arguments)
    logs.configure()
    if options.cleanup:
        _clean_up(options.config)
    else:
        _serve(options.config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    return service.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
