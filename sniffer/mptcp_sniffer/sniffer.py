"""The service: captures, tracks, and publishes the table of connections on a Unix socket."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from mptcp_sniffer.capture import Capture, CapturedFrame, CaptureLost, InterfaceAbsent
from mptcp_sniffer.events import Event, EventKind
from mptcp_sniffer.kernel_events import KernelEvent
from mptcp_sniffer.kernel_list import KernelList
from mptcp_sniffer.kernel_reader import KernelReader
from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.segment import Malformed
from mptcp_sniffer.tracker import Bounds, TableChange, Tracker
from mptcp_throttle import systemd
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import UserError
from mptcp_throttle.logs import about
from mptcp_throttle.model import format_token
from mptcp_throttle.rpc import Json, RpcServer, peer_uid
from mptcp_throttle.systemd import Watchdog

_log = logging.getLogger("mptcp-sniffer")

_POLL_SECONDS: Final = 0.2
_REOPEN_SECONDS: Final = 1.0
_ROOT: Final = 0


class Sniffer:
    """The main thread captures and tracks, two threads read from the kernel, the RPC threads read the table."""

    def __init__(self, config: Config, reload: Callable[[], Json]) -> None:
        self._config = config
        self._reload = reload
        self._table = PublishedTable(config.sniffer.history)
        self._capture: Capture | None = None
        self._started_at = time.monotonic()
        self._dropped_before = 0
        self._capture_lost = False
        self._tracking = threading.Lock()
        self._events: list[Event] = []
        self._watchdog = Watchdog()
        self._kernel_reader = KernelReader(
            config.proxy.ports,
            config.sniffer,
            self._apply_kernel_list,
            self._apply_kernel_event,
            lambda: self._tracker.expects_other_ports,
        )
        self._begin_tracking()

    def _begin_tracking(self) -> None:
        settings = self._config.sniffer
        bounds = Bounds(settings.max_connections, settings.max_half_open)
        self._tracker = Tracker(self._config.proxy.ports, bounds, settings.trust, self._events.append)

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set. Raises UserError if the capture or the socket cannot be opened at start.

        An interface that is missing or down is waited for, now as later.
        """
        methods: dict[str, Callable[..., Json]] = {
            "status": self.status,
            "snapshot": self._table.snapshot,
            "changes": self._changes,
            "reload": self._reload,
        }
        try:
            capture = self._open_capture()
        except InterfaceAbsent as error:
            _log.error("%s; no subflow is throttled until it can be captured", error)
            capture, self._capture_lost = None, True
        with capture or nullcontext(), self._kernel_reader.running():
            if capture is not None:
                _log.info("capturing on %s, ports %s", self._config.proxy.interface, self._config.proxy.ports)
            server = RpcServer(self._config.sockets.sniffer, methods, self._config.socket_group)
            try:
                systemd.notify("READY=1")
                if capture is not None:
                    self._follow(capture, stop)
                while not stop.is_set():
                    self._reopen_capture(stop)
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
            "uptime_seconds": time.monotonic() - self._started_at,
            **self._table.position(),
            **self._tracker.sizes(),
            "counters": dict(self._tracker.counters),
            "kernel_view": self._kernel_reader.status(),
        }

    def _changes(self, epoch: str, revision: int, timeout: float) -> Json:
        return self._table.changes(epoch, revision, timeout, to_daemon=self._asks_daemon())

    def _asks_daemon(self) -> bool:
        """Whether the client of this call is the daemon: its user, who has its directory, or root."""
        client = peer_uid()
        try:
            return client in (_ROOT, self._config.sockets.daemon.parent.stat().st_uid)
        except OSError:
            return client == _ROOT

    def _dropped(self) -> int:
        capture = self._capture
        return 0 if capture is None else capture.dropped()

    def _open_capture(self) -> Capture:
        proxy = self._config.proxy
        return Capture(proxy.interface, proxy.ports, self._config.sniffer.capture_buffer, _POLL_SECONDS)

    def _follow(self, capture: Capture, stop: threading.Event) -> None:
        self._capture = capture
        self._capture_lost = False
        try:
            while not stop.is_set():
                self._watchdog.alive()
                for frame in capture.frames():
                    self._observe(capture, frame)
        except CaptureLost as lost:
            # FINs may be missed from now on, and a subflow that has ended must not keep another one capped.
            _log.error(
                "capture on %s lost (%s): the table is cleared, so that no subflow stays throttled",
                self._config.proxy.interface,
                lost,
            )
            with self._tracking:
                self._capture_lost = True
                self._begin_tracking()
                self._table.reset()
        finally:
            self._capture = None

    def _reopen_capture(self, stop: threading.Event) -> None:
        self._watchdog.alive()
        if stop.wait(_REOPEN_SECONDS):
            return
        try:
            with self._open_capture() as capture:
                _log.info("capturing again on %s", self._config.proxy.interface)
                self._kernel_reader.request()
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
        # A host that only forwards sends the segments of both sides.
        by_proxy = frame.outgoing if self._config.sniffer.kernel_view else None
        with self._tracking:
            self._tracker.kernel_confirms = self._kernel_reader.available
            self._publish(self._tracker.observe(segment, frame.at, by_proxy))
            needs_kernel_list = self._tracker.needs_kernel_list()
        if needs_kernel_list:
            self._kernel_reader.request()

    def _apply_kernel_list(self, kernel_list: KernelList | None) -> None:
        dropped = self._dropped()
        if dropped > self._dropped_before:
            _log.warning(
                "capture cannot keep up: %d frames dropped, %d in total", dropped - self._dropped_before, dropped
            )
            self._kernel_reader.request()
        self._dropped_before = dropped
        with self._tracking:
            if kernel_list is not None and not self._capture_lost:
                self._tracker.kernel_confirms = True
                self._publish(self._tracker.apply_kernel_list(kernel_list))
            idle_seconds = None if self._config.sniffer.kernel_view else self._config.sniffer.idle_expiry
            self._publish(self._tracker.expire(time.monotonic(), idle_seconds))

    def _apply_kernel_event(self, event: KernelEvent) -> None:
        with self._tracking:
            if self._capture_lost:
                return
            self._publish(self._tracker.apply_kernel_event(event, time.monotonic()))
            needs_kernel_list = self._tracker.needs_kernel_list()
        if needs_kernel_list:
            self._kernel_reader.request()

    def _publish(self, changes: list[TableChange]) -> None:
        if changes:
            self._table.publish(changes)
        # After the readers have been woken: logging must not delay a cap.
        if _log.isEnabledFor(logging.DEBUG):
            for event in self._events:
                _log_event(event)
        self._events.clear()


def _log_event(event: Event) -> None:
    if event.kind in (EventKind.JOINING, EventKind.FAILED):
        return
    subflow = "" if event.subflow is None else f" subflow={event.subflow.ends.client}"
    backup = " backup" if event.subflow is not None and event.subflow.backup else ""
    reason = f" reason={event.detail!r}" if event.detail else ""
    token = f"token={format_token(event.token)}"
    _log.debug("%s %s%s%s%s", event.kind, token, subflow, backup, reason, extra=about(token))
