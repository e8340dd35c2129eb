"""Reload of the configuration files: `log_level` is the only setting of the sniffer that a reload changes."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from mptcp_throttle import logs
from mptcp_throttle.config.changes import SNIFFER, changes
from mptcp_throttle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mptcp_throttle.config.schema import Config
    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-sniffer")


class Reload:
    """Applies the files that `load` reads, if no change against `config` needs a restart. For any thread.

    `load` raises ConfigError.
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
