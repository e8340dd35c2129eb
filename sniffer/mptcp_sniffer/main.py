"""`mptcp-sniffer`: the command line and the composition of the service."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from mptcp_sniffer.reload import Reload
from mptcp_sniffer.sniffer import Sniffer
from mptcp_throttle import logs, service
from mptcp_throttle.command_line import command_line
from mptcp_throttle.config.load import load_config


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page is made from it."""
    return command_line("mptcp-sniffer", "Publish the MPTCP subflows of a proxy.")


def _serve(path: Path) -> None:
    config = load_config(path)
    service.prefer_latency()
    service.return_freed_memory()
    logs.configure()
    logs.set_level(config.log_level)
    stop = threading.Event()
    service.on_stop_signal(stop.set)
    reload = Reload(config, lambda: load_config(path))
    service.on_reload_signal(reload)
    with service.single_instance(config.sockets.sniffer.parent, "mptcp-sniffer", config.socket_group):
        Sniffer(config, reload).run(stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    options = parser().parse_args(arguments)
    return service.run(lambda: _serve(options.config))


if __name__ == "__main__":
    sys.exit(main())
