"""What the daemon's socket answers: what is, from the last round; and what is asked for, once it is in force."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttled import state as report
from mptcp_throttled.kernel.htb import Marking
from mptcp_throttled.operator_state import Pause
from mptcp_throttled.policy.overrides import requested_expiry, requested_override
from mptcp_throttled.reconcile.commands import as_commands
from mptcp_throttled.reconcile.kernel_state import KernelState
from mptcp_throttled.reconcile.reconciler import diff

if TYPE_CHECKING:
    from collections.abc import Callable

    from mptcp_throttle.config.schema import Config
    from mptcp_throttle.rpc import Json
    from mptcp_throttled.inbox import Inbox
    from mptcp_throttled.operator_state import OperatorStore
    from mptcp_throttled.running_config import RunningConfig
    from mptcp_throttled.state import View

_log = logging.getLogger("mptcp-throttled")


class Methods:
    """The methods, for any thread: what they change, they change through `inbox`, in the kernel-writing thread.

    `view` is the last round; `load` reads the configuration files again and raises ConfigError; `marks` names the
    back end that marks packets.
    """

    def __init__(
        self,
        settings: RunningConfig,
        wishes: OperatorStore,
        inbox: Inbox,
        view: Callable[[], View],
        load: Callable[[], Config],
        marks: str,
    ) -> None:
        self._settings = settings
        self._wishes = wishes
        self._inbox = inbox
        self._view = view
        self._load = load
        self._marks = marks
        self._reloading = threading.Lock()

    def table(self) -> dict[str, Callable[..., Json]]:
        """All of them by name."""
        return {
            "status": self.status,
            "connections": self.connections,
            "plan": self.plan,
            "set_rate": self.set_rate,
            "reset_rate": self.reset_rate,
            "pause": self.pause,
            "resume": self.resume,
            "reload": self.reload,
        }

    def status(self) -> Json:
        """Networks with their rates, what is in the kernel, and whether the sniffer answers."""
        settings = self._settings
        interface = settings.config.proxy.interface
        return report.status(self._view(), interface, self._marks, settings.status(), time.time())

    def connections(self) -> Json:
        """Every connection, and what is done with each subflow and why."""
        return report.connections(self._view())

    def plan(self) -> Json:
        """All operations that lead from the untouched interface to the present plan, as commands."""
        view, config = self._view(), self._settings.config
        marking = Marking(config.daemon.mark_mask, config.proxy.ports)
        return {
            "operations": [
                {
                    "operation": type(operation).__name__,
                    "commands": list(as_commands(operation, config.proxy.interface, marking, self._marks)),
                }
                for operation in diff(KernelState(), view.plan)
            ],
            "in_force": view.in_force == (view.plan if view.unpaced is None else replace(view.plan, paces={})),
        }

    def set_rate(self, network: str, rule: str, rate: str | None, seconds: float | None) -> Json:
        """Override a network's cap or limit; `rate` null is unlimited, `seconds` null is until reset.

        Answers with the network's status once the rate is in force.
        """
        override = requested_override(network, rule, rate, seconds, time.time())
        self._apply(lambda: self._wishes.set(override))
        return self._network(network)

    def reset_rate(self, network: str) -> Json:
        """Return to the configured rates of a network; answers as `set_rate`."""
        self._apply(lambda: self._wishes.reset(network))
        return self._network(network)

    def pause(self, seconds: float | None) -> Json:
        """Hold nobody to a rate; `seconds` null is until resumed. Answers `{pause}` as in `status`, once in force."""
        pause = Pause(requested_expiry(seconds, time.time()))
        self._apply(lambda: self._wishes.pause(pause))
        return {"pause": report.pause_status(pause, time.time())}

    def resume(self) -> Json:
        """End a pause, if there is one; answers as `pause`."""
        self._apply(lambda: self._wishes.pause(None))
        return {"pause": None}

    def reload(self) -> Json:
        """Load the configuration files again; answers once what has changed is in force.

        `{changes, dropped_overrides, problems, valid}`, lines for the operator. With problems, nothing has changed,
        either because the files are not `valid` or because of what only a restart can change.
        """
        with self._reloading:  # what was loaded last is adopted last
            loaded = self._loaded()
            before = self._view().errors
            answer = self._inbox.ask(lambda: self._take(loaded))
        if not answer["problems"]:
            self._raise_errors(before)
        return answer

    def hang_up(self) -> None:
        """Reload as at SIGHUP: the log tells what came of it."""
        try:
            self.reload()
        except UserError as error:
            _log.error("reload: %s", error)

    def _loaded(self) -> Config | ConfigError:
        try:
            return self._load()
        except ConfigError as error:
            return error

    def _take(self, loaded: Config | ConfigError) -> Json:
        verdict = self._settings.take(loaded, time.time())
        dropped = () if verdict.problems else self._wishes.adopt(self._settings.config.networks)
        return {
            "changes": [str(change) for change in verdict.changes],
            "dropped_overrides": list(dropped),
            "problems": list(verdict.problems),
            "valid": verdict.valid,
        }

    def _apply(self, change: Callable[[], None]) -> None:
        before = self._view().errors
        self._inbox.ask(change)
        self._raise_errors(before)

    def _raise_errors(self, before: tuple[str, ...]) -> None:
        errors = [error for error in self._view().errors if error not in before]
        if errors:
            raise UserError(f"accepted, but: {'; '.join(errors)}")

    def _network(self, name: str) -> Json:
        return next(network for network in self.status()["networks"] if network["name"] == name)
