"""Makes a scenario happen once: its network, programs, flows and events at their moments, all under observation."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from mptcp_lab.congestion.coupled import registered
from mptcp_lab.curve import MEGA
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import PORT as ORIGIN_PORT
from mptcp_lab.origin import Origin, start_origin
from mptcp_lab.proxy_server import PORT, Access
from mptcp_lab.sampler import Sampler, processor_times
from mptcp_lab.scenario.capturing import captured
from mptcp_lab.scenario.figures import present_rates
from mptcp_lab.scenario.flows import Flow
from mptcp_lab.scenario.interception import intercept
from mptcp_lab.scenario.kernel_choice import coupled_controls
from mptcp_lab.scenario.plan import Addresses, endpoint, event_commands, reshape, shape
from mptcp_lab.scenario.quantities import Moment
from mptcp_lab.scenario.recording import CapChange, Event, Recording, moments
from mptcp_lab.scenario.scenario_schema import CAP, Method, Program
from mptcp_lab.scenario.world import World, build, execute
from mptcp_lab.sdn.switch_plan import whole_plan
from mptcp_lab.sdn.switches import Switches
from mptcp_lab.sdn.switches import running as running_switches
from mptcp_lab.video import wifi_trace
from mptcp_lab.wall_clock import ServicesWithClock
from mptcp_throttle.model import AccessNetwork, Device, LogLevel
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mptcp_lab.port import Port
    from mptcp_lab.scenario.display import Display
    from mptcp_lab.scenario.scenario_schema import EventSection, Scenario, ThrottleSection
    from mptcp_lab.video import Step
    from mptcp_lab.watched_page import Watch

THESIS: Final = Path(__file__).parents[3] / "config/examples/thesis/mptcp-throttle.yaml"
"""The method of the thesis."""

_POLL_SECONDS: Final = 0.05
_DAY_SECONDS: Final = 86_400
# Of the daemon's log: `cap token=... client=... network=... direction=... rate=... after_ms=...`, with `device=...`
# after a client with a name; `limit` and `free` end a cap.
_CHANGE: Final = re.compile(
    r"^(?P<at>[\d:.]+) INFO (?P<kind>cap|limit|free) token=\S+ client=(?P<client>\S+)(?: device=\S+)?"
    r" network=(?P<network>\S+) direction=\S+(?: rate=(?P<rate>\S+))?.*?(?: after_ms=(?P<after>[\d.]+))?$",
    re.MULTILINE,
)


class Stage:
    """A scenario in progress. All times are in seconds since its start."""

    def __init__(
        self,
        scenario: Scenario,
        world: World,
        flows: list[Flow],
        services: _Running,
        switches: Switches | None,
        display: Display,
    ) -> None:
        self.began = time.monotonic()
        self.events: list[Event] = []
        self.backups: set[str] = set()
        self._scenario = scenario
        self._world = world
        self._flows = flows
        self._running = services
        self._switches = switches
        self._outages = ThreadPoolExecutor()
        self._lasting: dict[str, Future[tuple[float, float]]] = {}
        self._display = display
        self._asks_for_backups = any(figure.backups for figure in scenario.report.values())

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def play(self, starts: Mapping[str, float], sampler: Sampler) -> None:
        """Start the flows, do the events, and return at the end of the scenario.

        Raises LabError if a file, or the moment at which the run ends, did not come in the longest time it may take.
        """
        script: list[tuple[Moment, Callable[[], None]]] = [
            *((Moment(starts[flow.name]), flow.start) for flow in self._flows),
            *((event.at, lambda event=event: self._act(event)) for event in self._scenario.events),
            *self._steps(),
        ]
        while True:
            self._observe()
            if self._display.is_live:
                self._display.progress(self.now, present_rates(self._scenario, sampler.interfaces, self.now))
            while (due := self._next(script)) is not None:
                script.pop(due)[1]()
            if self._is_over():
                return
            time.sleep(_POLL_SECONDS)

    def outages(self) -> dict[str, float]:
        """How many seconds outages lasted, as the switches say, by the names of their events. Waits for their end."""
        ended = {name: lasting.result() for name, lasting in self._lasting.items()}
        return {name: until - since for name, (since, until) in ended.items()}

    def _next(self, script: list[tuple[Moment, Callable[[], None]]]) -> int | None:
        """The position of what is due and was due first."""
        times = [(self._when(moment), position) for position, (moment, _) in enumerate(script)]
        due = [(at, position) for at, position in times if at is not None and at <= self.now]
        return min(due)[1] if due else None

    def _when(self, moment: Moment) -> float | None:
        return moment.resolve(moments(self.events))

    def _is_over(self) -> bool:
        ended = {flow.name: flow.ended for flow in self._flows}
        limited = [flow.name for flow in self._flows if flow.limited]
        if limited and all(ended[name] for name in limited):
            return True
        until, longest = self._scenario.until, self._scenario.duration
        end = None if until is None else self._when(until)
        if end is not None and self.now >= end:
            return True
        if self.now < longest:
            return False
        late = [name for name in limited if not ended[name]]
        if late:
            raise LabError(f"flow {late[0]}: not done after {longest:g} s (duration)")
        if until is not None:
            raise LabError(f"{until}: did not come in {longest:g} s (duration)")
        return True

    def _observe(self) -> None:
        capped = {event.text for event in self.events}
        for change in self._running.new_cap_changes(self.began):
            text = f"cap on {change.network}"
            if change.mbps is not None and text not in capped:
                self._note(Event(change.at, text, None if any(e.name == CAP for e in self.events) else CAP))
                capped.add(text)
        services = self._running.services
        if self._asks_for_backups and not self.backups and services is not None:
            self.backups |= {subflow.network for subflow in services.subflows() if subflow.backup}

    def _steps(self) -> Iterator[tuple[Moment, Callable[[], None]]]:
        """The changes of rates that are traced."""
        for name, link in self._scenario.links.items():
            steps = () if link.trace is None else wifi_trace(link.trace, self._scenario.duration)
            for step in steps[1:]:
                yield Moment(step.at), partial(self._set_rate, name, step)

    def _set_rate(self, name: str, step: Step) -> None:
        link = self._scenario.links[name].model_copy(update={"rate": Rate(step.rate)})
        execute(self._world.hosts, shape(self._scenario, name, link))

    def _act(self, event: EventSection) -> None:
        at, done = self.now, None
        if event.throttle is not None and self._running.services is not None:
            self._running.services.cli(*shlex.split(event.throttle))
            done = self.now
        if event.clock is not None and self._running.services is not None:
            self._running.services.set_daemon_clock(event.clock)
        if event.outage is not None and event.seconds is not None and self._switches is not None:
            lasting = self._outages.submit(self._switches.outage, event.outage, event.seconds)
            self._lasting[event.name or f"outage-{len(self._lasting)}"] = lasting
        execute(self._world.hosts, event_commands(self._scenario, event))
        self._scenario = reshape(self._scenario, event)
        self._note(Event(at, describe(event), event.name, done))

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._display.event(event)


def describe(event: EventSection) -> str:
    """An event in a few words."""
    if event.throttle is not None:
        return event.throttle
    if event.clock is not None:
        return f"the clock shows {event.clock:%Y-%m-%d %H:%M:%S}"
    if event.outage is not None:
        return f"{event.outage} drops everything for {event.seconds:g} s"
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
    scenario: Scenario, starts: Mapping[str, float], display: Display, logs: Path, watch: Watch | None = None
) -> Recording:
    """Run the scenario once. `starts`: when each flow begins, in seconds. `display` shows what happens.

    `watch` is the page that shows the services. The logs of all programs are left in the directory `logs`. Raises
    LabError if anything but the expectations fails.
    """
    with (
        registered(coupled_controls(scenario)),
        build(whole_plan(scenario)) as world,
        _kept(world.directory, logs),
    ):
        origin = _start_programs(scenario, world)
        flows = [Flow(world, scenario, name, origin) for name in scenario.flows]
        ports = [port for link in scenario.links.values() for port in link.ends]
        namespaces = {name: world.hosts[name].namespace for name in scenario.hosts}
        running = _Running(scenario, world, watch)
        with (
            running_switches(scenario, world) as switches,
            running.started(),
            captured(scenario, world) as disorder,
        ):
            idle, total = processor_times()
            stage = Stage(scenario, world, flows, running, switches, display)
            with Sampler(namespaces, ports, scenario.interval, stage.began) as sampler:
                stage.play(starts, sampler)
                duration = stage.now
                limited = [flow for flow in flows if flow.limited]
                wait = not limited and scenario.until is None
                results = {flow.name: flow.result(wait=wait or flow.limited, since=stage.began) for flow in flows}
                if limited:
                    # When the last byte came, not when we saw it.
                    duration = max(flow.began + (results[flow.name].seconds or 0) for flow in limited) - stage.began
            outages = stage.outages()
            setups = [] if switches is None else switches.setups()
            idle_after, total_after = processor_times()
            running.new_cap_changes(stage.began)
            used = running.used()
        return Recording(
            start=min([flow.began - stage.began for flow in flows], default=0.0),
            duration=duration,
            interfaces=sampler.interfaces,
            subflows=sampler.subflows,
            counters=sampler.counters,
            flows=results,
            events=sorted(stage.events, key=lambda event: event.at),
            idle=(idle_after - idle) / max(total_after - total, 1),
            caps=running.changes,
            backups=frozenset(stage.backups),
            restored=running.restored,
            used=used,
            disorder=disorder,
            outages=outages,
            setups=setups,
        )


def _start_programs(scenario: Scenario, world: World) -> Origin | None:
    """Start the origin server, which is returned, the servers, and what their clients need. Raises LabError."""
    origin, upstream = None, ""
    its_host = scenario.host_running(Program.ORIGIN)
    if its_host is not None:
        origin, upstream = start_origin(world.hosts[its_host]), endpoint(scenario, its_host, ORIGIN_PORT)
    for name, host in scenario.hosts.items():
        if host.server is None:
            continue
        started = host.server.program
        started.start(world.hosts[name], upstream)
        if started.access is Access.TRANSPARENT and its_host is not None:
            intercept(world.hosts, scenario, name, its_host, started.port)
    for name, (program, server) in scenario.client_programs().items():
        program.start(world.hosts[name], endpoint(scenario, server, PORT))
    return origin


@contextmanager
def _kept(lab: Path, directory: Path) -> Iterator[None]:
    """At the end of the block, however it ends, leave the logs of all hosts of a lab's directory in `directory`."""
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for log in lab.glob("*/*.log"):
            shutil.copyfile(log, directory / log.name)


class _Running:
    """The services of a scenario, if it has them, and what they do.

    `changes` are those of the caps so far, as the daemon logs them. In the guest, a question to the daemon would take
    some of the time that is measured. `restored`: see `Recording`.
    """

    def __init__(self, scenario: Scenario, world: World, watch: Watch | None) -> None:
        self.services: ServicesWithClock | None = None
        self.changes: list[CapChange] = []
        self.restored: bool | None = None
        self._scenario = scenario
        self._world = world
        self._watch = watch
        self._read = 0

    @contextmanager
    def started(self) -> Iterator[None]:
        """The services run while the block does."""
        name = self._scenario.host_running(Program.THROTTLE)
        if name is None or self._scenario.throttle is None:
            yield
            return
        host, interface = self._world.hosts[name], next(self._scenario.ports(name))[0].interface
        asked = any(figure.restored for figure in self._scenario.report.values())
        before = kernel_state(host, interface) if asked else {}
        section = self._scenario.throttle
        method = _settings(section.method)
        services = ServicesWithClock(
            host,
            self._networks(section),
            interfaces=[interface],
            linger=section.linger,
            sniffer=method.get("sniffer"),
            # No program keeps the clock of every machine right on which the lab runs.
            daemon={"classifier": section.classifier.value, "wait_for_clock": False, **method.get("daemon", {})},
            devices=self._devices(section),
            time_zone=None if section.clock is None else "UTC",
            # The end of a capped subflow is logged as a detail.
            log_level=LogLevel.DEBUG,
        )
        if section.clock is not None:
            services.set_daemon_clock(section.clock)
        with services:
            self.services = services
            if self._watch is not None:
                self._watch.follow(services.sockets.daemon)
            yield
        if asked:
            self.restored = kernel_state(host, interface) == before and services.exit_statuses == (0, 0)

    def new_cap_changes(self, began: float) -> list[CapChange]:
        """What changed since the last call; `began` is the monotonic clock at the start."""
        process = None if self.services is None else self.services.daemon
        if process is None or process.log.stat().st_size == self._read:
            return []
        self._read = process.log.stat().st_size
        # The log has the time of the day.
        began_at = time.time() - (time.monotonic() - began)
        local = time.localtime(began_at)
        start = local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + began_at % 1
        changes = cap_changes(process.log_text(), start)
        new = changes[len(self.changes) :]
        self.changes = changes
        return new

    def used(self) -> dict[str, int]:
        """The bytes that all budgets of each network have counted, by network."""
        used: dict[str, int] = {}
        if self.services is not None and any(figure.used for figure in self._scenario.report.values()):
            budgets = self.services.cli_json("budgets")["budgets"]
            for budget in budgets:
                used[budget["network"]] = used.get(budget["network"], 0) + budget["used"]
        return used

    def _networks(self, section: ThrottleSection) -> list[AccessNetwork]:
        addresses = Addresses(self._scenario)
        return [
            AccessNetwork(
                name,
                tuple(addresses.subnet(network.link, family) for family in (4, 6)),
                network.preference,
                network.rates,
                network.per,
                schedule=tuple(section.window for section in network.schedule),
                budgets=tuple(section.budget for section in network.budgets),
                overflow=network.overflow,
                burst=network.burst or 0,
            )
            for name, network in section.networks.items()
        ]

    def _devices(self, section: ThrottleSection) -> Iterator[Device]:
        for name, device in section.devices.items():
            links = {section.networks[network].link: network for network in device.networks}
            addresses = {
                links[link]: tuple(map(ip_network, self._addresses_of(port)))
                for port, link in self._scenario.ports(device.host)
                if link in links
            }
            yield Device(name, addresses, {network: rates.rates for network, rates in device.networks.items()})

    def _addresses_of(self, port: Port) -> Iterator[str]:
        for family in self._scenario.families(port):
            yield from Addresses(self._scenario).all_of(port, family)


def _settings(method: Method) -> dict[str, dict[str, object]]:
    """The sections of the services' configuration that make the method."""
    if method is Method.DEFAULT:
        return {}
    settings: dict[str, dict[str, object]] = yaml.safe_load(THESIS.read_text(encoding="utf-8"))
    return settings


def cap_changes(log: str, start: float) -> list[CapChange]:
    """What the daemon's log says of caps; `start` is the time 0 in seconds of the day."""
    changes = []
    for match in _CHANGE.finditer(log):
        hours, minutes, seconds = match["at"].split(":")
        at = (int(hours) * 3600 + int(minutes) * 60 + float(seconds) - start) % _DAY_SECONDS
        capped = match["kind"] == "cap"
        rate = Rate.parse(match["rate"]).bits_per_second / MEGA if capped else None
        delay = float(match["after"]) / 1000 if capped and match["after"] else None
        changes.append(CapChange(at, match["client"], match["network"], rate, delay))
    return changes
