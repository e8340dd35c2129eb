"""`mptcp-sniffer`: captures, tracks, and publishes the table on a Unix socket."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_sniffer.capture import Capture, CapturedFrame, CaptureLost
from mptcp_sniffer.packet_filter import handshake_filter
from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.segment import Malformed
from mptcp_sniffer.tracker import TableChange, Tracker
from mptcp_throttle import service
from mptcp_throttle.config import DEFAULT_PATH, Config, load_config
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import format_token
from mptcp_throttle.rpc import RpcServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-sniffer")

_POLL_SECONDS: Final = 0.2
_REOPEN_SECONDS: Final = 1.0


class Sniffer:
    """The service: one thread captures and tracks, the RPC threads read."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._table = PublishedTable(config.sniffer.history)
        self._capture: Capture | None = None
        self._started_at = time.time()
        self._begin_tracking()

    def _begin_tracking(self) -> None:
        bounds = self._config.sniffer
        self._tracker = Tracker(self._config.proxy.ports, bounds.max_connections, bounds.max_half_open)

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set. Raises UserError if the capture or the socket cannot be opened at start."""
        methods: dict[str, Callable[..., Json]] = {
            "status": self.status,
            "snapshot": self._table.snapshot,
            "changes": self._table.changes,
        }
        with self._open() as capture:
            server = RpcServer(self._config.sniffer_socket, methods, self._config.socket_group)
            try:
                service.notify_systemd("READY=1")
                _log.info("capturing on %s, ports %s", self._config.proxy.interface, self._config.proxy.ports)
                self._follow(capture, stop)
                while not stop.is_set():
                    self._recover(stop)
            finally:
                service.notify_systemd("STOPPING=1")
                self._table.close()
                server.close()

    def status(self) -> Json:
        """Counters, table sizes, and the position of the published table."""
        return {
            "interface": self._config.proxy.interface,
            "ports": list(self._config.proxy.ports),
            "capturing": self._capture is not None,
            "dropped": 0 if self._capture is None else self._capture.dropped(),
            "uptime_seconds": time.time() - self._started_at,
            **self._table.position(),
            **self._tracker.sizes(),
            "counters": dict(self._tracker.counters),
        }

    def _open(self) -> Capture:
        proxy = self._config.proxy
        packet_filter = handshake_filter(proxy.ports)
        return Capture(proxy.interface, packet_filter, self._config.sniffer.capture_buffer, _POLL_SECONDS)

    def _follow(self, capture: Capture, stop: threading.Event) -> None:
        self._capture = capture
        try:
            while not stop.is_set():
                frame = capture.next_frame()
                if frame is not None:
                    self._observe(capture, frame)
        except CaptureLost as lost:
            # A FIN may have been missed, and a subflow that is only believed to be alive would keep another capped.
            _log.error(
                "capture on %s lost (%s): table forgotten, nothing stays capped",
                self._config.proxy.interface,
                lost,
            )
            self._begin_tracking()
            self._table.forget()
        finally:
            self._capture = None

    def _recover(self, stop: threading.Event) -> None:
        if stop.wait(_REOPEN_SECONDS):
            return
        try:
            with self._open() as capture:
                _log.info("capturing again on %s", self._config.proxy.interface)
                self._follow(capture, stop)
        except UserError:
            return

    def _observe(self, capture: Capture, frame: CapturedFrame) -> None:
        try:
            segment = capture.parse(frame.data)
        except Malformed:
            self._tracker.counters["malformed"] += 1
            return
        if segment is None:
            return
        changes = self._tracker.observe(segment, frame.at)
        if changes:
            self._table.publish(changes)
            for change in changes:
                _log_change(change)


def _log_change(change: TableChange) -> None:
    token = format_token(change.token)
    if change.connection is None:
        _log.info("connection token=%s ended", token)
        return
    subflows = ", ".join(
        f"{subflow.ends.client}{' backup' if subflow.backup else ''}" for subflow in change.connection.subflows
    )
    _log.info("connection token=%s subflows: %s", token, subflows)


def _main(arguments: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(prog="mptcp-sniffer", description="Publish the MPTCP subflows of a proxy.")
    parser.add_argument("--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help="default: %(default)s")
    options = parser.parse_args(arguments)
    config = load_config(options.config)
    service.configure_logging()
    stop = threading.Event()
    service.on_stop_signal(stop.set)
    with service.single_instance(config.run_directory, "mptcp-sniffer"):
        Sniffer(config).run(stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    return service.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
