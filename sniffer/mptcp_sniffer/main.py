"""`mptcp-sniffer`: captures, tracks, and publishes the table on a Unix socket."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_sniffer.capture import Capture, CapturedFrame, CaptureLost
from mptcp_sniffer.list_reader import ListReader
from mptcp_sniffer.offline import read_capture
from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.segment import Malformed
from mptcp_sniffer.tracker import Bounds, Event, Kind, TableChange, Tracker
from mptcp_throttle import service, systemd
from mptcp_throttle.config.diff import SNIFFER, changes
from mptcp_throttle.config.load import DEFAULT_PATH, load_config
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import EXIT_STATUS_HELP, ConfigError, UserError
from mptcp_throttle.model import Trust, format_token
from mptcp_throttle.rpc import RpcServer
from mptcp_throttle.systemd import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mptcp_sniffer.kernel_list import KernelList
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
        self._dropped_before = 0
        self._lost = False
        self._tracking = threading.Lock()
        self._events: list[Event] = []
        self._watchdog = Watchdog()
        self._audit = ListReader(config.proxy.ports, config.sniffer, self._take_view)
        self._begin_tracking()

    def _begin_tracking(self) -> None:
        settings = self._config.sniffer
        bounds = Bounds(settings.max_connections, settings.max_half_open)
        self._tracker = Tracker(self._config.proxy.ports, bounds, settings.trust, self._events.append)

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set. Raises UserError if the capture or the socket cannot be opened at start."""
        methods: dict[str, Callable[..., Json]] = {
            "status": self.status,
            "snapshot": self._table.snapshot,
            "changes": self._table.changes,
        }
        with self._open() as capture, self._audit.running():
            server = RpcServer(self._config.sockets.sniffer, methods, self._config.socket_group)
            try:
                systemd.notify("READY=1")
                _log.info("capturing on %s, ports %s", self._config.proxy.interface, self._config.proxy.ports)
                self._follow(capture, stop)
                while not stop.is_set():
                    self._recover(stop)
            finally:
                systemd.notify("STOPPING=1")
                self._table.close()
                server.close()

    def status(self) -> Json:
        """Counters, table sizes, and the position of the published table."""
        return {
            "interface": self._config.proxy.interface,
            "ports": list(self._config.proxy.ports),
            "capturing": self._capture is not None,
            "dropped": self._dropped(),
            "uptime_seconds": time.time() - self._started_at,
            **self._table.position(),
            **self._tracker.sizes(),
            "counters": dict(self._tracker.counters),
            "kernel_view": self._audit.status(),
        }

    def _dropped(self) -> int:
        capture = self._capture
        return 0 if capture is None else capture.dropped()

    def _open(self) -> Capture:
        proxy = self._config.proxy
        return Capture(proxy.interface, proxy.ports, self._config.sniffer.capture_buffer, _POLL_SECONDS)

    def _follow(self, capture: Capture, stop: threading.Event) -> None:
        self._capture = capture
        self._lost = False
        try:
            while not stop.is_set():
                self._watchdog.alive()
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
            with self._tracking:
                self._lost = True
                self._begin_tracking()
                self._table.forget()
        finally:
            self._capture = None

    def _recover(self, stop: threading.Event) -> None:
        self._watchdog.alive()
        if stop.wait(_REOPEN_SECONDS):
            return
        try:
            with self._open() as capture:
                _log.info("capturing again on %s", self._config.proxy.interface)
                self._audit.soon()
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
        with self._tracking:
            self._publish(self._tracker.observe(segment, frame.at))
            in_doubt = self._tracker.take_doubt()
        if in_doubt:
            self._audit.soon()

    def _take_view(self, view: KernelList | None) -> None:
        dropped = self._dropped()
        if dropped > self._dropped_before:
            _log.warning("%d frames dropped, in all %d", dropped - self._dropped_before, dropped)
            self._audit.soon()
        self._dropped_before = dropped
        with self._tracking:
            if view is not None and not self._lost:
                self._publish(self._tracker.reconcile(view))
            idle_seconds = None if self._config.sniffer.kernel_view else self._config.sniffer.idle_expiry
            self._publish(self._tracker.expire(time.time(), idle_seconds))

    def _publish(self, changes: list[TableChange]) -> None:
        if changes:
            self._table.publish(changes)
        # The log can wait: those who join cannot.
        for event in self._events:
            _log_event(event)
        self._events.clear()


def _log_event(event: Event) -> None:
    if event.kind is Kind.JOINING:
        return
    subflow = "" if event.subflow is None else f" subflow={event.subflow.ends.client}"
    backup = " backup" if event.subflow is not None and event.subflow.backup else ""
    reason = f" reason={event.detail!r}" if event.detail else ""
    _log.info("%s token=%s%s%s%s", event.kind, format_token(event.token), subflow, backup, reason)


def _log_changes(path: Path, running: Config) -> None:
    """Say what has become of the configuration files: nothing in them reaches a sniffer that runs."""
    try:
        found = changes(running, load_config(path))
    except ConfigError as error:
        for problem in error.problems:
            _log.error("reload: %s", problem)
        return
    concerning = [change for change in found if SNIFFER in change.restart]
    for change in concerning:
        _log.warning("reload: %s", change)
    if not concerning:
        _log.info("reload: nothing has changed that concerns the sniffer")


def _main(arguments: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(
        prog="mptcp-sniffer",
        description="Publish the MPTCP subflows of a proxy.",
        epilog=EXIT_STATUS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help="default: %(default)s")
    offline = parser.add_argument_group("reading a capture instead of an interface; needs no configuration")
    offline.add_argument("--read", type=Path, metavar="FILE", help="pcap or pcapng: Ethernet, Linux cooked, raw IP")
    offline.add_argument("--ports", type=_ports, default=(8080,), metavar="PORT,...", help="the proxy's; default: 8080")
    offline.add_argument(
        "--trust", type=Trust, choices=list(Trust), default=Trust.HANDSHAKE, help="as in the configuration"
    )
    offline.add_argument(
        "--json", action="store_true", help="connections, events and counters instead of a line per event"
    )
    options = parser.parse_args(arguments)
    if options.read is not None:
        _print_capture(read_capture(options.read, options.ports, options.trust), as_json=options.json)
        return
    config = load_config(options.config)
    service.prefer_latency()
    service.spare_memory()
    service.configure_logging()
    stop = threading.Event()
    service.on_stop_signal(stop.set)
    service.on_reload_signal(lambda: _log_changes(options.config, config))
    with service.single_instance(config.run_directory, "mptcp-sniffer", config.socket_group):
        Sniffer(config).run(stop)


def _ports(text: str) -> tuple[int, ...]:
    ports = tuple(int(port) for port in text.split(","))
    if not all(0 < port < 65536 for port in ports):
        raise ValueError
    return ports


def _print_capture(capture: dict[str, Json], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(capture, indent=2))
        return
    for event in capture["events"]:
        subflow = f" {event['client']}:{event['client_port']}" if "client" in event else ""
        print(f"{event['at']:.6f} {event['token']} {event['event']}{subflow} {event['detail']}".rstrip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    return service.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
