"""A fleet of proxies with their clients and one server of Valkey in one process, under virtual time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

import pytest
from configurations import ZONES
from disk import Killed
from fleet_checks import LATE_SECONDS, REST_SECONDS, FleetChecks
from fleet_faults import Trouble, planned
from fleet_proxy import FleetProxy
from fleet_server import PORTS, ModelValkey, SlowAnswer
from timeline import Timeline, VirtualClock, stream

import mptcp_throttle.valkey.connect
import mptcp_throttled.accounting.history
import mptcp_throttled.fleet.totals_thread
from mptcp_throttle.config.load import load_config

if TYPE_CHECKING:
    from random import Random

    from scenario import Scenario

    from mptcp_throttle.valkey.server import Server

LINKS: Final = {False: "10gbit", True: "200mbit"}
"""The fastest link of a proxy, in runs without and with a compromised one: the lower, the less false totals add."""

_SESSION_SECONDS: Final = 6.0 * 3600.0
"""Between two sessions of a client that is as busy as usual, on average."""

_RATES: Final = (20e3, 100e3, 400e3, 1.2e6)
_LENGTHS: Final = (0.5, 5.0, 20.0, 60.0)
_HOUR: Final = 3600.0
_CHECKED_TICKS, _REST_TICKS = 3, 12
"""A tick in so many is checked, and while nothing is carried."""

_KEPT_PERIODS_SECONDS: Final = 32 * 86_400.0
_RECOVERY_SECONDS: Final = LATE_SECONDS
"""After a fault, what the others have counted is known so soon: 2 s until the next attempt, and 2 s for all to read."""

_DAYS: Final = ((2027, 1, 31), (2027, 3, 27), (2027, 4, 3), (2027, 9, 4), (2027, 10, 30), (2027, 12, 31), (2028, 2, 28))
_TIMES: Final = ((23, 40), (23, 57), (4, 40))
"""Most runs see a period begin; in hours and minutes."""

_SERVICE: Final = """\
proxy: {{interface: eth0, ports: [8080]}}
time_zone: {zone}
run_directory: {directory}/run
state_directory: {directory}/state
fleet: {{url: "valkey://127.0.0.1:{first},127.0.0.1:{second}", name: {name}, share_clients: true, link: {link}}}
"""
_NETWORK: Final = """\
name: lte
subnets: [10.1.0.0/16]
preference: 1
budgets:
  - {amount: 30MB, per: client, direction: both, every: day, then: [{at: 60%, limit: 800kbit}, {limit: 200kbit}]}
  - {amount: 3GB, per: network, direction: both, every: month, starts: 15, then: {limit: 2mbit}}
"""
_DEVICE: Final = """\
name: phone-0
networks: {lte: {addresses: [10.1.0.1]}}
budgets:
  - {amount: 100MB, every: week, starts: Wed, direction: both, networks: [lte], then: {limit: 400kbit}}
"""


class SimulatedFleet:
    """All of it. `run` raises Violation, or whatever the product raises."""

    def __init__(self, scenario: Scenario, directory: Path) -> None:
        self.scenario = scenario
        random = stream(scenario.seed, "fleet")
        zone = random.choice(ZONES)
        # In some runs, no client is connected most of the time.
        self._busy = scenario.busy * (1.0 if scenario.busy <= 1.0 else random.choice((1.0, 0.3, 0.1)))
        begins = datetime(*random.choice(_DAYS), *random.choice(_TIMES), tzinfo=ZoneInfo(zone)).timestamp()
        self.clock = VirtualClock(begins if scenario.begins is None else scenario.begins)
        self.timeline = Timeline(self.clock)
        self.server = ModelValkey(self.clock, self.timeline, stream(scenario.seed, "server"))
        self.has_compromised, two_have_one_name = random.random() < 0.25, random.random() < 0.25
        self.checks = FleetChecks(self)
        self.proxies: list[FleetProxy] = []
        for number in range(scenario.fleet):
            name = f"proxy-{number - (two_have_one_name and number == scenario.fleet - 1)}"
            files = directory / f"proxy-{number}"
            text = _SERVICE.format(
                zone=zone, directory=files, name=name, first=PORTS[0], second=PORTS[1], link=LINKS[self.has_compromised]
            )
            self.proxies.append(FleetProxy(number, load_config(_written(files, text)), files / "state", self.clock))
        self._random = stream(scenario.seed, "identifiers")
        self._present = self.proxies[0]
        self.losses: list[float] = []
        """When databases were lost, in the last month at least."""
        self._troubles = 0
        self._well_at = self._busy_at = self._started = self.clock.now
        self._is_asleep = self._is_checked = False
        self._digest = hashlib.sha256()
        self.counts = {"ticks": 0, "observations": 0, "connections": 0, "faults": 0, "rests": 0}
        self.until = self.clock.now + (scenario.seconds if scenario.ends is None else scenario.ends)
        self.faults = planned(scenario.seed, scenario.seconds, scenario.every)
        for fault in self.faults:
            if scenario.faults is None or fault.number in scenario.faults:
                self.timeline.after(fault.at, Trouble(self, fault).begin)
        for client in scenario.clients:
            self._plan_session(client, stream(scenario.seed, "client of a fleet", client))
        self.timeline.after(_HOUR, self._pass_hour)
        for proxy in self.proxies:
            proxy.clock.ahead = random.uniform(-2.0, 2.0)
            proxy.settled, proxy.losing = self.checks.note_counted, self.checks.note_gone

    # Clients

    def _plan_session(self, client: int, random: Random) -> None:
        pause = random.expovariate(self._busy / _SESSION_SECONDS)
        self.timeline.after(pause, lambda: self._begin_session(client, random))

    def _begin_session(self, client: int, random: Random) -> None:
        for proxy in random.sample(self.proxies, random.choice((1, 2, 2, 3, len(self.proxies)))):
            socket = proxy.open(f"10.1.0.{client + 1}", random.choice(_RATES))
            self.counts["connections"] += 1
            seconds = random.choice(_LENGTHS) * random.uniform(0.5, 2.0)
            self.timeline.after(seconds, lambda proxy=proxy, socket=socket: proxy.end(socket))  # type: ignore[misc]
        self._plan_session(client, random)

    # Faults

    def trouble_began(self) -> None:
        """A fault has begun."""
        self._troubles += 1
        self.counts["faults"] += 1

    def trouble_ended(self) -> None:
        """It is over; those who wait for an answer do so for some seconds more."""
        self._troubles -= 1
        self._well_at = self.clock.now + SlowAnswer.seconds

    @property
    def well(self) -> float:
        """For how many seconds all has been well."""
        if self._troubles or self.server.happens is not None or any(proxy.way.is_armed for proxy in self.proxies):
            self._well_at = self.clock.now + SlowAnswer.seconds
        return self.clock.now - self._well_at

    # Time

    def run(self) -> None:
        """Until the end, or until something does not hold."""
        with pytest.MonkeyPatch.context() as patch:
            self._patch(patch)
            for proxy in self.proxies:
                self._let(proxy, proxy.start)
            while True:
                at, what = self._next()
                if at > self.until:
                    break
                self.clock.now = max(self.clock.now, at)
                what()

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        clocks = SimpleNamespace(time=lambda: self._present.clock.time(), monotonic=lambda: self.clock.now)
        patch.setattr(mptcp_throttled.fleet.totals_thread, "time", clocks)
        patch.setattr(mptcp_throttle.valkey.connect, "Connection", SimpleNamespace(open=self._connect))
        identifiers = SimpleNamespace(token_hex=lambda size: f"{self._random.getrandbits(8 * size):0{2 * size}x}")
        patch.setattr(mptcp_throttled.accounting.history, "secrets", identifiers)

    def _connect(self, server: Server, *_: Any) -> Any:  # noqa: ANN401
        return self.server.open(server, self._present.way)

    def _next(self) -> tuple[float, Callable[[], None]]:
        at, what = self.timeline.next_at, self._happen
        if self._is_asleep:
            return at, what
        for proxy in self.proxies:
            if not proxy.is_up:
                continue
            if proxy.observe_due < at:
                at, what = proxy.observe_due, lambda proxy=proxy: self._observe(proxy)  # type: ignore[misc]
            if proxy.tick_due < at:
                at, what = proxy.tick_due, lambda proxy=proxy: self._tick(proxy)  # type: ignore[misc]
        return at, what

    def _happen(self) -> None:
        self._is_asleep = self._is_checked = False
        self.timeline.take()()
        # A session may end before the next check.
        if self._is_carrying:
            self._busy_at = self.clock.now

    def _let(self, proxy: FleetProxy, act: Callable[[], None]) -> None:
        self._present = proxy
        try:
            act()
        except Killed:
            proxy.kill()

    def _observe(self, proxy: FleetProxy) -> None:
        self._let(proxy, proxy.observe)
        self.counts["observations"] += 1
        self._note(f"{self.clock.now:.6f} {proxy.number} {proxy.number_of_bytes}")

    def _tick(self, proxy: FleetProxy) -> None:
        self._let(proxy, proxy.tick)
        self.counts["ticks"] += 1
        proxy.ticks += 1
        if not proxy.is_up or proxy.ticks % (_CHECKED_TICKS if self._is_carrying else _REST_TICKS):
            return
        well = self.well
        if well < _RECOVERY_SECONDS or self._is_carrying:
            self._busy_at = self.clock.now
        self.checks.check(proxy, well)
        if self.clock.now - self._busy_at > REST_SECONDS and not self._troubles:
            self._rest()

    @property
    def _is_carrying(self) -> bool:
        return any(proxy.sockets for proxy in self.proxies)

    def _rest(self) -> None:
        """Nothing happens until something is planned: time is skipped."""
        self._is_asleep = True
        self.counts["rests"] += 1
        self.checks.check_rest()
        self.checks.check_bounds()

    def _pass_hour(self) -> None:
        self.timeline.after(_HOUR, self._pass_hour)
        self.server.expire()
        self.checks.forget(self.clock.true_time - _KEPT_PERIODS_SECONDS)

    def _note(self, text: str) -> None:
        self._digest.update(text.encode())

    @property
    def digest(self) -> str:
        """Of all that has happened."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """End all instances."""
        for proxy in self.proxies:
            proxy.kill()


def _written(files: Path, service: str) -> Path:
    for name, text in (("networks.d/lte.yaml", _NETWORK), ("clients.d/phone-0.yaml", _DEVICE)):
        path = files / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    path = files / "mptcp-throttle.yaml"
    path.write_text(service, encoding="utf-8")
    return path
