"""The programs of a scenario's flows: curl or a player through a proxy; directly iperf3, or ours with a size."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import write_random
from mptcp_lab.playback import LADDER, SEGMENT_SECONDS, Played
from mptcp_lab.scenario.plan import (
    curl_arguments,
    document_size,
    iperf_arguments,
    origin_url,
    player_arguments,
    send_arguments,
    server_port,
)
from mptcp_lab.scenario.recording import FlowResult
from mptcp_lab.scenario.scenario_schema import Protocol
from mptcp_lab.traffic import program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mptcp_lab.origin import Origin
    from mptcp_lab.process import Process
    from mptcp_lab.scenario.scenario_schema import Scenario
    from mptcp_lab.scenario.world import World

_CHUNK: Final = 2**20
_GRACE_SECONDS: Final = 10.0
"""iperf3 asks the other end for its figures when its time is over, which takes a round trip or more."""


class Flow:
    """A flow of a scenario, not yet started; its server, if it has one of its own, runs already."""

    def __init__(self, world: World, scenario: Scenario, name: str, origin: Origin | None) -> None:
        self.name = name
        self.began = float("inf")  # by the monotonic clock
        self._flow = scenario.flows[name]
        self._world = world
        self._scenario = scenario
        self._process: Process | None = None
        self._url = ""
        self._urls: list[str] = []  # of a video, by bitrate
        self._sent: Path | None = None  # what is sent, if what arrives is compared with it
        self._figures = world.directory / f"{name}.json"
        self._received = world.directory / f"{name}.received"
        if self._flow.via is None:
            self._serve()
        elif origin is not None and scenario.is_upload(name):
            self._sent, self._received = world.directory / f"{name}.sent", origin.uploads / name
            write_random(self._sent, document_size(scenario, name))
            self._url = origin_url(scenario, name, f"uploads/{name}")
        elif origin is not None and self._flow.video is not None:
            documents = [origin.add_zeros(round(bitrate / 8 * SEGMENT_SECONDS)) for bitrate in LADDER]
            self._urls = [origin_url(scenario, name, document) for document in documents]
        elif origin is not None:
            size, checked = document_size(scenario, name), self._flow.check or not self.limited
            document = origin.add(size).name if checked else origin.add_zeros(size)
            self._sent = origin.documents / document if checked else None
            self._url = origin_url(scenario, name, document)

    def start(self) -> None:
        """Start it now."""
        host, via = self._flow.sender, self._flow.via
        kind = None if via is None else self._scenario.hosts[via].server
        argv: Sequence[str | Path]
        if self._flow.video is not None:
            host = self._flow.receiver
            argv = player_arguments(self._scenario, self.name, self._urls)
        elif kind is not None:
            is_upload = self._scenario.is_upload(self.name)
            file = "/dev/null" if self._sent is None else str(self._sent if is_upload else self._received)
            host = self._scenario.client_of(self.name)
            argv = curl_arguments(self._scenario, self.name, self._url, kind.program, file)
        elif self.limited:
            argv = program(*send_arguments(self._scenario, self.name))
        else:
            seconds = self._flow.duration or self._scenario.duration - self._flow.start
            argv = iperf_arguments(self._scenario, self.name, seconds)
        self._process = self._world.hosts[host].start(f"flow-{self.name}", *argv, output=self._figures)
        self.began = time.monotonic()

    @property
    def limited(self) -> bool:
        """Whether it ends when all data have come, instead of when its time is over."""
        return self._flow.is_limited

    @property
    def ended(self) -> bool:
        """Whether its program has ended. Raises LabError if not all data came, or a file without a size ended."""
        if self._process is None or self._process.exit_status is None:
            return False
        has_failed = self.limited and self._process.exit_status != 0
        if has_failed or (self._flow.via is not None and not self.limited):
            raise LabError(f"flow {self.name}: {self._process.log_text().strip() or 'ended too early'}")
        return True

    def result(self, *, wait: bool, since: float) -> FlowResult:
        """What its program measured; with `wait`, a program that ends by itself is given a moment for that.

        Segments of a video have times from `since` (monotonic seconds) on. Raises LabError if what arrived is not what
        was sent.
        """
        if self._process is None:
            return FlowResult(None, None)
        if wait and (self.limited or self._flow.via is None):
            with suppress(LabError):
                self._process.wait(_GRACE_SECONDS)
        self._process.stop()
        seconds = time.monotonic() - self.began
        if self._sent is not None:
            size = compare(self._received, self._sent, whole=self.limited)
            if not self.limited:
                return FlowResult(seconds, size)
        try:
            figures: Any = json.loads(self._figures.read_text(encoding="utf-8"))
        except ValueError:
            return FlowResult(None, None)  # a signal ends a program before it writes them
        if self._flow.video is not None:
            played = [Played(**segment) for segment in figures]
            size = round(sum(segment.bitrate / 8 * SEGMENT_SECONDS for segment in played))
            return FlowResult(played[-1].arrived - self.began, size, [segment.later(-since) for segment in played])
        if self._flow.via is not None:
            size = figures["size_upload" if self._scenario.is_upload(self.name) else "size_download"]
            return FlowResult(figures["time_total"], size)
        if self.limited:
            return FlowResult(figures["seconds"], figures["bytes"])
        received = figures.get("end", {}).get("sum_received", {})
        return FlowResult(received.get("seconds"), received.get("bytes"))

    def _serve(self) -> None:
        host = self._world.hosts[self._flow.receiver]
        port = server_port(self._scenario, self.name)
        mptcp = self._flow.protocol is Protocol.MPTCP
        if self.limited:
            argv = [*program("sink", port, "mptcp" if mptcp else "tcp")]
        else:
            argv = [*(("mptcpize", "run") if mptcp else ()), "iperf3", "--server", "--port", str(port)]
        server = host.start(f"server-{self.name}", *argv)
        server.wait_until(lambda: host.listens(port, mptcp=mptcp), f"listening on port {port}")


def compare(received: Path, sent: Path, *, whole: bool) -> int:
    """How many bytes arrived. Raises LabError if they are not what was sent: the `whole`, or the beginning of it."""
    received.touch()  # curl makes the file when the first byte arrives
    with received.open("rb") as arrived, sent.open("rb") as original:
        while chunk := arrived.read(_CHUNK):
            if original.read(len(chunk)) != chunk:
                raise LabError(f"{received.stem}: what arrived is not what was sent, up to {arrived.tell()} bytes")
        if whole and original.read(1):
            raise LabError(f"{received.stem}: only {arrived.tell()} bytes arrived")
        return arrived.tell()
