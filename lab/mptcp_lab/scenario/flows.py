"""The programs that carry a scenario's flows: curl through Squid from nginx, iperf3 directly."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab.errors import LabError
from mptcp_lab.scenario.plan import curl_arguments, iperf_arguments, origin_url, server_port
from mptcp_lab.scenario.recording import FlowResult
from mptcp_lab.scenario.schema import Protocol
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from mptcp_lab.origin import Origin
    from mptcp_lab.process import Process
    from mptcp_lab.scenario.schema import Scenario
    from mptcp_lab.scenario.world import World

_GRACE_SECONDS: Final = 10.0
"""iperf3 asks the other end for its figures when its time is over, which takes a round trip or more."""


class Flow:
    """A flow of a scenario, not yet started; its server, if it has one of its own, runs already."""

    def __init__(self, world: World, scenario: Scenario, name: str, origin: Origin | None) -> None:
        self.name = name
        self._flow = scenario.flows[name]
        self._world = world
        self._scenario = scenario
        self._process: Process | None = None
        self._url = ""
        if self._flow.via is None:
            self._serve()
        elif origin is not None:
            self._url = origin_url(scenario, name, origin.add_zeros(self._flow.size or 0))
        self._figures = world.directory / f"{name}.json"

    def start(self) -> None:
        """Start it now."""
        if self._flow.via is None:
            seconds = self._flow.duration or self._scenario.duration - self._flow.start
            host, argv = self._flow.sender, iperf_arguments(self._scenario, self.name, seconds)
        else:
            host, argv = self._flow.receiver, curl_arguments(self._scenario, self.name, self._url, PORT)
        self._process = self._world.hosts[host].start(f"flow-{self.name}", *argv, output=self._figures)

    @property
    def limited(self) -> bool:
        """Whether it ends when a file has come, instead of when its time is over."""
        return self._flow.size is not None

    @property
    def ended(self) -> bool:
        """Whether its program has ended. Raises LabError if a file did not come."""
        if self._process is None or self._process.exit_status is None:
            return False
        if self.limited and self._process.exit_status != 0:
            raise LabError(f"flow {self.name}: {self._process.log_text().strip() or 'curl failed'}")
        return True

    def result(self, *, wait: bool) -> FlowResult:
        """What its program measured; with `wait`, a moment is given to it to end by itself."""
        if self._process is None:
            return FlowResult(None, None)
        if wait:
            with suppress(LabError):
                self._process.wait(_GRACE_SECONDS)
        self._process.stop()
        try:
            figures: Any = json.loads(self._figures.read_text(encoding="utf-8"))
        except ValueError:
            return FlowResult(None, None)  # a signal ends a program before it writes them
        if self._flow.via is not None:
            return FlowResult(figures["time_total"], figures["size_download"])
        received = figures.get("end", {}).get("sum_received", {})
        return FlowResult(received.get("seconds"), received.get("bytes"))

    def _serve(self) -> None:
        host = self._world.hosts[self._flow.receiver]
        port = server_port(self._scenario, self.name)
        mptcp = self._flow.protocol is Protocol.MPTCP
        argv = [*(("mptcpize", "run") if mptcp else ()), "iperf3", "--server", "--port", str(port)]
        server = host.start(f"server-{self.name}", *argv)
        server.wait_until(lambda: host.listens(port, mptcp=mptcp), f"listening on port {port}")
