"""Makes a scenario happen once: its world, programs, flows and events at their times, all under observation."""

from __future__ import annotations

import re
import shlex
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from mptcp_lab.errors import LabError
from mptcp_lab.logs import kept
from mptcp_lab.origin import start_origin
from mptcp_lab.scenario.flows import Flow
from mptcp_lab.scenario.plan import Addresses, event_commands, make_plan, reshape
from mptcp_lab.scenario.recording import Event, Recording
from mptcp_lab.scenario.sampler import Sampler, processor_times
from mptcp_lab.scenario.schema import Program
from mptcp_lab.scenario.world import World, build, execute
from mptcp_lab.services import Services
from mptcp_lab.squid import start_squid
from mptcp_throttle.model import AccessNetwork

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mptcp_lab.scenario.schema import EventSection, Scenario

_POLL_SECONDS: Final = 0.05
_CAP: Final = re.compile(r"^([\d:.]+) INFO cap .* network=(\S+) .* after_ms=([\d.]+)", re.MULTILINE)


class Stage:
    """A scenario in progress."""

    def __init__(self, scenario: Scenario, world: World, flows: list[Flow], services: Services | None) -> None:
        self.began = time.monotonic()
        self.began_at = _seconds_of_day(time.strftime("%H:%M:%S")) + time.time() % 1
        self.events: list[Event] = []
        self._scenario = scenario
        self._world = world
        self._flows = flows
        self._services = services

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def play(self, starts: Mapping[str, float], progress: Callable[[float], None]) -> None:
        """Start the flows, do the events, and return at the end of the scenario.

        Raises LabError if a file did not come in its time.
        """
        script: list[tuple[float, Flow | EventSection]] = [
            *((starts[flow.name], flow) for flow in self._flows),
            *((event.at, event) for event in self._scenario.events),
        ]
        script.sort(key=lambda item: item[0])
        limited = [flow for flow in self._flows if flow.limited]
        while True:
            progress(self.now)
            while script and script[0][0] <= self.now:
                _, item = script.pop(0)
                if isinstance(item, Flow):
                    item.start()
                else:
                    self._act(item)
            if limited and all(flow.ended for flow in limited):
                return
            if self.now >= self._scenario.duration:
                late = [flow.name for flow in limited if not flow.ended]
                if late:
                    raise LabError(f"flow {late[0]}: not done after {self._scenario.duration:g} s (duration)")
                return
            time.sleep(_POLL_SECONDS)

    def _act(self, event: EventSection) -> None:
        if event.throttle is not None and self._services is not None:
            self._services.cli(*shlex.split(event.throttle))
        execute(self._world.hosts, event_commands(self._scenario, event))
        self._scenario = reshape(self._scenario, event)
        self.events.append(Event(self.now, describe(event)))


def describe(event: EventSection) -> str:
    """An event in a few words."""
    if event.throttle is not None:
        return event.throttle
    if event.endpoint is not None:
        return f"{event.endpoint} {'backup' if event.backup else 'no backup'}"
    for word in ("down", "up", "leave", "join"):
        port = getattr(event, word)
        if port is not None:
            return f"{word} {port}"
    changes = {name: getattr(event, name) for name in ("rate", "delay", "jitter", "loss", "queue")}
    texts = {"delay": "{:g} s", "jitter": "{:g} s", "loss": "{:g} %"}
    return f"{event.link} " + ", ".join(
        f"{name} {texts.get(name, '{}').format(value)}" for name, value in changes.items() if value is not None
    )


def perform(
    scenario: Scenario, starts: Mapping[str, float], progress: Callable[[float], None], logs: Path
) -> Recording:
    """Run the scenario once; flow by flow, `starts` says when it begins. `progress` is told the time, again and again.

    Raises LabError if anything but the expectations fails. The logs of all programs are left in the directory `logs`.
    """
    with build(make_plan(scenario)) as world, kept(world.directory, logs), ExitStack() as stack:
        origin = None
        for name, host in scenario.hosts.items():
            if Program.ORIGIN in host.run:
                origin = start_origin(world.hosts[name])
            if Program.SQUID in host.run:
                start_squid(world.hosts[name])
        flows = [Flow(world, scenario, name, origin) for name in scenario.flows]
        services = _start_services(scenario, world, stack)
        ports = [port for link in scenario.links.values() for port in link.ends]
        namespaces = {name: world.hosts[name].namespace for name in scenario.hosts}
        idle, total = processor_times()
        stage = Stage(scenario, world, flows, services)
        with Sampler(namespaces, ports, scenario.interval, stage.began) as sampler:
            stage.play(starts, progress)
            duration = stage.now
            limited = any(flow.limited for flow in flows)
            results = {flow.name: flow.result(wait=flow.limited or not limited) for flow in flows}
        idle_after, total_after = processor_times()
        caps = {} if services is None else _caps(services)
        events = [*stage.events, *(Event(at - stage.began_at, f"cap on {name}") for name, (at, _) in caps.items())]
        return Recording(
            duration=duration,
            interfaces=sampler.interfaces,
            subflows=sampler.subflows,
            counters=sampler.counters,
            flows=results,
            events=sorted(events),
            idle=(idle_after - idle) / max(total_after - total, 1),
            join_to_cap={name: seconds for name, (_, seconds) in caps.items()},
        )


def _caps(services: Services) -> dict[str, tuple[float, float]]:
    """Per network when its first cap was in force (seconds of the day), and how long after the JOIN.

    From the daemon's log: asking it during the run would cost it, in the guest, the time that is measured.
    """
    caps: dict[str, tuple[float, float]] = {}
    for at, network, milliseconds in _CAP.findall("" if services.daemon is None else services.daemon.log_text()):
        caps.setdefault(network, (_seconds_of_day(at), float(milliseconds) / 1000))
    return caps


def _seconds_of_day(text: str) -> float:
    hours, minutes, seconds = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _start_services(scenario: Scenario, world: World, stack: ExitStack) -> Services | None:
    host = scenario.host_running(Program.THROTTLE)
    if host is None or scenario.throttle is None:
        return None
    addresses = Addresses(scenario)
    networks = [
        AccessNetwork(
            name,
            tuple(addresses.subnet(network.link, family) for family in (4, 6)),
            network.preference,
            network.cap,
            network.limit,
            network.per,
        )
        for name, network in scenario.throttle.networks.items()
    ]
    interface = next(scenario.ports(host))[0].interface
    services = Services(world.hosts[host], networks, interface=interface, linger=scenario.throttle.linger)
    return stack.enter_context(services)
