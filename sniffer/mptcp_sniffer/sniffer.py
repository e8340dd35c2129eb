"""The service: captures, tracks, and publishes the table of connections on a Unix socket."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Final

from mptcp_sniffer.capture import Capture, CapturedFrame, Captures, InterfaceAbsent, InterfaceLost
from mptcp_sniffer.events import Event, EventKind
from mptcp_sniffer.kernel_events import KernelEvent
from mptcp_sniffer.kernel_list import KernelList
from mptcp_sniffer.kernel_reader import KernelReader
from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.segment import Malformed, PackedEndpoint, Segment
from mptcp_sniffer.stop import Stop
from mptcp_sniffer.tracker import Bounds, TableChange, Tracker
from mptcp_throttle import systemd
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import listed
from mptcp_throttle.logs import about
from mptcp_throttle.model import Endpoint, format_token
from mptcp_throttle.rpc import Json, RpcServer, peer_uid
from mptcp_throttle.systemd import Watchdog

_log = logging.getLogger("mptcp-sniffer")

_POLL_SECONDS: Final = 0.2
_GATHER_SECONDS: Final = 0.2
# After a JOIN to a connection that readers know, frames do not gather for this time: its subflow needs a class.
_JOIN_SECONDS: Final = 1.0
_REOPEN_SECONDS: Final = 1.0
_UNLISTED_AGAIN_SECONDS: Final = 3600.0
_MOST_NAMED: Final = 3
_ROOT: Final = 0


class Sniffer:
    """The main thread captures and tracks, two threads read from the kernel, the RPC threads read the table.

    `stop` ends the first three.
    """

    def __init__(self, config: Config, reload: Callable[[], Json], stop: Stop) -> None:
        self._config = config
        self._reload = reload
        self._stop = stop
        self._daemon_directory = config.sockets.daemon.parent
        self._table = PublishedTable(config.sniffer.history)
        proxy, buffer_bytes = config.proxy, config.sniffer.capture_buffer
        self._captures = Captures(proxy.interfaces, lambda name: Capture(name, proxy.ports, buffer_bytes), stop)
        self._reopen_due = 0.0
        self._join_until = 0.0
        self._refusals: dict[str, str] = {}
        self._captured_before: set[str] = set()
        self._started_at = time.monotonic()
        self._dropped_before = 0
        self._unlisted_due = 0.0
        self._tracking = threading.Lock()
        self._events: list[Event] = []
        self._watchdog = Watchdog()
        self._kernel_reader = KernelReader(
            config.proxy.ports,
            config.sniffer,
            self._apply_kernel_list,
            self._apply_kernel_event,
            lambda: self._tracker.expects_other_ports,
            lambda: self._table.is_patient,
            stop,
        )
        self._begin_tracking()

    def _begin_tracking(self) -> None:
        self._unlisted: str | None = None
        settings = self._config.sniffer
        bounds = Bounds(settings.max_connections, settings.max_half_open)
        steered = self._config.daemon.steering
        self._tracker = Tracker(self._config.proxy.ports, bounds, settings.trust, self._events.append, steered=steered)

    def run(self) -> None:
        """Serve until stopped. Raises UserError if the capture or the socket cannot be opened at start.

        It waits for interfaces that are missing or down.
        """
        with self._captures:
            self._open_captures(at_start=True)
            with self._kernel_reader.running():
                self._serve()

    def _serve(self) -> None:
        server = RpcServer(self._config.sockets.sniffer, self.methods(), self._config.socket_group)
        try:
            systemd.notify("READY=1")
            while not self._stop.is_set():
                self._watchdog.alive()
                if self._captures.missing and time.monotonic() >= self._reopen_due:
                    self._reopen_captures()
                if self._captures.captured:
                    self._observe_frames()
                else:
                    self._stop.wait(_REOPEN_SECONDS)
        finally:
            systemd.notify("STOPPING=1")
            self._table.close()
            server.close()

    def methods(self) -> dict[str, Callable[..., Json]]:
        """The RPC methods by name."""
        return {
            "status": self.status,
            "snapshot": self._table.snapshot,
            "changes": self._changes,
            "reload": self._reload,
        }

    def status(self) -> Json:
        """Counters, table sizes, and the position of the published table."""
        return {
            "interfaces": list(self._config.proxy.interfaces),
            "ports": self._config.proxy.ports.items,
            "captured": list(self._captures.captured),
            "dropped": self._captures.dropped(),
            "uptime_seconds": time.monotonic() - self._started_at,
            **self._table.position(),
            **self._tracker.sizes(),
            "counters": dict(self._tracker.counters),
            "kernel_view": {**self._kernel_reader.status(), "unlisted": self._unlisted},
        }

    def _changes(self, epoch: str, revision: int, timeout: float, patience: float = 0.0) -> Json:
        return self._table.changes(epoch, revision, timeout, patience, to_daemon=self._asks_daemon())

    def _asks_daemon(self) -> bool:
        """Whether the client of this call is root or the owner of the daemon's directory."""
        client = peer_uid()
        try:
            return client in (_ROOT, self._daemon_directory.stat().st_uid)
        except OSError:
            return client == _ROOT

    def _open_captures(self, *, at_start: bool = False) -> None:
        """Capture on missing interfaces. At the start, raises UserError if an interface is there but refused."""
        opened, refusals = self._captures.open_missing()
        self._reopen_due = time.monotonic() + _REOPEN_SECONDS
        for name, refusal in refusals.items():
            is_absent = isinstance(refusal, InterfaceAbsent)
            if at_start and not is_absent:
                raise refusal
            if at_start or (not is_absent and self._refusals.get(name) != str(refusal)):
                _log.error("%s; subflows there are free until it can be captured", refusal)
        self._refusals = {name: str(refusal) for name, refusal in refusals.items()}
        for name in opened:
            again = " again" if name in self._captured_before else ""
            _log.info("capturing%s on %s, ports %s", again, name, self._config.proxy.ports)
        self._captured_before.update(opened)

    def _reopen_captures(self) -> None:
        captured = self._captures.captured
        self._open_captures()
        if self._captures.captured != captured:
            self._kernel_reader.request()

    def _observe_frames(self) -> None:
        may_gather = self._table.is_patient and time.monotonic() >= self._join_until
        seen = self._captures.frames(_POLL_SECONDS, _GATHER_SECONDS if may_gather else 0.0)
        if seen.frames:
            with self._track() as tracker:
                tracker.kernel_confirms = self._kernel_reader.available
                self._publish(tracker.observe_all(self._segments(seen.frames)))
                if any(map(self._table.knows, tracker.take_joining())):
                    self._join_until = time.monotonic() + _JOIN_SECONDS
        for lost in seen.lost:
            self._give_up(lost)

    def _segments(
        self, frames: Iterable[tuple[Capture, CapturedFrame]]
    ) -> Iterator[tuple[Segment, float, bool | None]]:
        kernel_view = self._config.sniffer.kernel_view
        for capture, frame in frames:
            try:
                segment = capture.parse(frame.data)
            except Malformed:
                self._tracker.counters["malformed"] += 1
                continue
            if segment is not None:
                # A host that only forwards sends the segments of both sides.
                yield segment, frame.at, frame.outgoing if kernel_view else None

    @contextmanager
    def _track(self) -> Iterator[Tracker]:
        with self._tracking:
            self._tracker.on_event = self._events.append if _log.isEnabledFor(logging.DEBUG) else None
            yield self._tracker
            if self._tracker.take_kernel_list_request():
                self._kernel_reader.request()

    def _give_up(self, lost: InterfaceLost) -> None:
        """Go on without an interface: its FINs are missed, and an ended subflow must not keep another one capped.

        The kernel list shows which subflows have ended. Without it, or with no interface left, the table is cleared.
        """
        self._reopen_due = time.monotonic() + _REOPEN_SECONDS
        if self._captures.captured and self._config.sniffer.kernel_view and self._kernel_reader.available:
            _log.error("capture on %s lost (%s): ends of subflows there come from the kernel list", lost.name, lost.why)
            self._note_missed_frames()
            return
        _log.error("capture on %s lost (%s): the table is cleared, so no subflow stays throttled", lost.name, lost.why)
        with self._tracking:
            self._begin_tracking()
            self._table.reset()

    def _apply_kernel_list(self, kernel_list: KernelList | None) -> None:
        dropped = self._captures.dropped()
        if dropped > self._dropped_before:
            _log.warning(
                "capture cannot keep up: %d frames dropped, %d in total", dropped - self._dropped_before, dropped
            )
            self._note_missed_frames()
        self._dropped_before = dropped
        with self._track() as tracker:
            if kernel_list is not None and self._captures.captured:
                tracker.kernel_confirms = True
                self._publish(tracker.apply_kernel_list(kernel_list))
                self._tell_unlisted(tracker.unlisted.endpoints)
            idle_seconds = None if self._config.sniffer.kernel_view else self._config.sniffer.idle_expiry
            self._publish(tracker.expire(time.monotonic(), idle_seconds))

    def _note_missed_frames(self) -> None:
        with self._tracking:
            self._tracker.unlisted.distrust(time.monotonic())
        self._kernel_reader.request()

    def _tell_unlisted(self, endpoints: Sequence[PackedEndpoint]) -> None:
        unlisted = self._unlisted
        self._unlisted = _unlisted_text(endpoints) if endpoints else None
        now = time.monotonic()
        if unlisted is None and self._unlisted is not None and now >= self._unlisted_due:
            self._unlisted_due = now + _UNLISTED_AGAIN_SECONDS
            _log.error("%s", self._unlisted)

    def _apply_kernel_event(self, event: KernelEvent) -> None:
        with self._track() as tracker:
            if self._captures.captured:
                self._publish(tracker.apply_kernel_event(event, time.monotonic()))

    def _publish(self, changes: list[TableChange]) -> None:
        if changes:
            self._table.publish(changes)
        # After the readers have been woken: logging must not delay a cap.
        for event in self._events:
            _log_event(event)
        self._events.clear()


def _unlisted_text(endpoints: Sequence[PackedEndpoint]) -> str:
    named = listed((str(Endpoint(ip_address(address), port)) for address, port in endpoints), _MOST_NAMED)
    return (
        f"connections to {named} are proved on the wire, not in this kernel:"
        " do connections end in a container or behind address translation?"
    )


def _log_event(event: Event) -> None:
    if event.kind in (EventKind.JOINING, EventKind.FAILED):
        return
    subflow = "" if event.subflow is None else f" subflow={event.subflow.ends.client}"
    backup = " backup" if event.subflow is not None and event.subflow.backup else ""
    reason = f" reason={event.detail!r}" if event.detail else ""
    token = f"token={format_token(event.token)}"
    _log.debug("%s %s%s%s%s", event.kind, token, subflow, backup, reason, extra=about(token))
