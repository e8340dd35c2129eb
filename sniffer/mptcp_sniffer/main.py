"""`mptcp-sniffer`: the command line, the composition of the service, and its reload."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mptcp_sniffer.sniffer import Sniffer
from mptcp_sniffer.stop import Stop
from mptcp_throttle import logs, service
from mptcp_throttle.command_line import command_line
from mptcp_throttle.config.changes import SNIFFER, changes
from mptcp_throttle.config.load import load_config
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.network_namespace import require_entered
from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-sniffer")


class Reload:
    """Applies the files that `load` reads, if no change against `config` needs a restart. For any thread.

    `log_level` is the only setting of the sniffer that a reload changes. `load` raises ConfigError.
    """

    def __init__(self, config: Config, load: Callable[[], Config]) -> None:
        self._config = config
        self._load = load
        self._lock = threading.Lock()

    def __call__(self) -> Json:
        """`{problems, valid}`: with problems nothing has changed. They are also logged."""
        with self._lock:
            try:
                loaded = self._load()
            except ConfigError as error:
                for problem in error.problems:
                    _log.error("reload: %s", problem)
                return {"problems": error.problems, "valid": False}
            refused = [str(change) for change in changes(self._config, loaded) if SNIFFER in change.restart]
            if refused:
                for problem in refused:
                    _log.warning("reload: %s", problem)
            elif loaded.log_level is self._config.log_level:
                _log.info("reload: no setting of the sniffer has changed")
            else:
                logs.set_level(loaded.log_level)
                _log.info("reload: log_level %s -> %s", self._config.log_level, loaded.log_level)
                self._config = loaded
            return {"problems": refused, "valid": True}


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page is made from it."""
    return command_line("mptcp-sniffer", "Publish the MPTCP subflows of a proxy.")


def _serve(path: Path) -> None:
    config = load_config(path)
    require_entered(config.proxy.namespace)
    service.prefer_latency()
    service.return_freed_memory()
    logs.configure()
    logs.set_level(config.log_level)
    stop = Stop()
    service.on_stop_signal(stop.set)
    reload = Reload(config, lambda: load_config(path))
    service.on_reload_signal(reload)
    with service.single_instance(config.sockets.sniffer.parent, "mptcp-sniffer", config.socket_group):
        Sniffer(config, reload, stop).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    options = parser().parse_args(arguments)
    return service.run(lambda: _serve(options.config))


if __name__ == "__main__":
    sys.exit(main())
