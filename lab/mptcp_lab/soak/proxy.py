"""The proxy of `benchmarks/soak`: its services, and what happens to them."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from mptcp_lab.adversary.attack import PORTS
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import wait_until
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.soak.bpf_objects import contents, ids_of
from mptcp_lab.soak.schedule import Event
from mptcp_lab.throttled import paced
from mptcp_lab.wall_clock import ServicesWithClock
from mptcp_throttle.model import AccessNetwork, Budget, ClassifierKind, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.rpc import RpcError
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mptcp_lab.process import Process
    from mptcp_lab.topology import Lab

_CAPS: Final = (Rate(1_000_000), Rate(2_000_000))
_SPENT: Final = Stage(1.0, {RateKind.CAP: Rate(500_000)})
_BUDGET: Final = Budget(50_000_000, Per.CLIENT, Counting.BOTH, Every.DAY, 0, 0.8, (_SPENT,))
_CLASSIFIERS: Final = (ClassifierKind.SOCKET, ClassifierKind.NFT, ClassifierKind.RULES)
_DAY_SECONDS: Final = 86_400.0
_BACK_SECONDS: Final = 600.0
_DOWN_SECONDS: Final = 0.5
# Those that ip(8) has added: the kernel's own come back with the addresses.
_ADDED_ROUTES: Final = ("route", "show", "table", "all", "proto", "boot")
_WITHOUT_CARRIER_SECONDS: Final = 1.5
_QUIET_SECONDS: Final = 30.0
_DAEMON: Final = {"wait_for_clock": False, "reconcile_interval": "1s"}
# Small tables are full within the warm-up: what still grows then has no bound.
_SNIFFER: Final = {"history": 500, "max_half_open": 500}
_CACHED_PAGES: Final = 50  # of 4 KiB, where SQLite has 2 MiB


def _networks(cap: Rate) -> tuple[AccessNetwork, ...]:
    wifi, ethernet = WIFI_FIRST
    return wifi, replace(ethernet.with_rates({RateKind.CAP: cap, RateKind.UPLINK_CAP: cap}), budgets=(_BUDGET,))


def limit_page_cache(state: Path) -> None:
    """Make the database of the daemon's history, which tells SQLite how many pages to keep in memory."""
    state.mkdir()
    with closing(sqlite3.connect(state / "history.sqlite")) as database:
        database.execute(f"PRAGMA default_cache_size = {_CACHED_PAGES}")


class Proxy:
    """Services on the proxy of `lab`. Methods raise LabError or RpcError if something is not as it should be."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.services = ServicesWithClock(
            lab.proxy, _networks(_CAPS[0]), ports=PORTS, linger="200ms", sniffer=_SNIFFER, daemon=_DAEMON
        )
        limit_page_cache(self.services.directory / "state")
        self.lives = {"sniffer": 0, "daemon": 0}
        """How often each has been started."""

        self._chance = random.Random(seed)  # noqa: S311
        self._ahead = 0.0
        self._reloads = 0
        # The kernel deletes IPv6 addresses of an interface that is set down, unless this holds.
        lab.proxy.sysctl({"net/ipv6/conf/eth0/keep_addr_on_down": "1"})

    def start(self) -> None:
        """Start what does not run, and wait until both are connected."""
        sniffer, daemon = (status is not None for status in self.services.exit_statuses)
        if self.services.sniffer is None or sniffer:
            self.lives["sniffer"] += 1
            self.services.start_sniffer()
        if self.services.daemon is None or daemon:
            self.lives["daemon"] += 1
            self.services.start_daemon()
        self.services.wait_ready()

    def check_running(self) -> None:
        """Raise LabError if a service has ended, and start it again."""
        ended = [status for status in self.services.exit_statuses if status is not None]
        if ended:
            self.start()
            raise LabError(f"a service has ended with status {ended[0]}")

    def happen(self, event: Event) -> None:
        """Let it happen; returns when the services are ready again."""
        self.actions[event](self)

    @property
    def running(self) -> tuple[Process, Process]:
        """Sniffer and daemon."""
        sniffer, daemon = self.services.sniffer, self.services.daemon
        if sniffer is None or daemon is None:
            raise LabError("the services: not started")
        return sniffer, daemon

    def end_connections(self) -> None:
        """Reset all that is left of them."""
        ports = " or ".join(f"sport = :{port}" for port in PORTS)
        self.lab.proxy.run("ss", "-K", "-t", *f"( {ports} )".split())

    def become_quiet(self) -> None:
        """End all connections, and wait until the services have nothing left of them."""
        self.end_connections()
        with suppress(LabError):
            wait_until(lambda: self._unrest() is None, "quiet", _QUIET_SECONDS)
            return
        raise LabError(f"{_QUIET_SECONDS:g} s after the last connection: {self._unrest()}")

    def _unrest(self) -> str | None:
        """What is left of connections; None: nothing."""
        try:
            status = self.services.status()
        except RpcError as error:
            return str(error)
        daemon = status["daemon"]
        left = {name: daemon[name] for name in ("classes", "held_subflows", "paced_subflows", "capped_uplinks")}
        left |= {"connections": status["sniffer"]["connections"], "errors": len(daemon["errors"])}
        left |= {"sockets paced": len(paced(self.lab.proxy))}
        if not any(left.values()):
            left = {"steering slots": contents(ids_of([self.running[1].pid]).maps).slots}
        return ", ".join(f"{name}: {number}" for name, number in left.items() if number) or None

    def _reload(self) -> None:
        self._reloads += 1
        self.services.configure(_networks(_CAPS[self._reloads % len(_CAPS)]))
        answer = self.services.ask("reload")
        if answer["problems"] or not answer["changes"]:
            raise LabError(f"reload: changes {answer['changes']}, problems {answer['problems']}")

    def _refused_reload(self) -> None:
        damaged = self.services.directory / "networks.d" / "damaged.yaml"
        damaged.write_text("name: damaged\nsubnets: [10.9.0.0/33]\n", encoding="ascii")
        try:
            answer = self.services.ask("reload")
        finally:
            damaged.unlink()
        if answer["valid"] or not answer["problems"]:
            raise LabError("reload: a damaged configuration was taken")

    def _lose_wifi(self) -> None:
        port = "victim-wlan0"
        self.lab.router.ip([f"link set {port} down"])
        time.sleep(_WITHOUT_CARRIER_SECONDS)
        self.lab.router.ip([f"link set {port} up"])

    def _set_interface_down(self) -> None:
        """Set the interface down and up, as an administrator does, who then also restores the routes."""
        proxy = self.lab.proxy
        routes = [
            ["ip", f"-{family}", "route", "replace", *line.split()]
            for family in (4, 6)
            for line in proxy.run("ip", f"-{family}", *_ADDED_ROUTES).stdout.splitlines()
        ]
        proxy.ip(["link set eth0 down"])
        time.sleep(_DOWN_SECONDS)
        proxy.ip(["link set eth0 up"])
        for command in routes:
            wait_until(partial(self._succeeds, command), " ".join(command))

    def _succeeds(self, command: Sequence[str]) -> bool:
        return self.lab.proxy.run(*command, check=False).returncode == 0

    def _next_day(self) -> None:
        self._set_clock(self._ahead + _DAY_SECONDS)

    def _set_clock_back(self) -> None:
        self._set_clock(self._ahead - _BACK_SECONDS)

    def _set_clock(self, ahead: float) -> None:
        self._ahead = ahead
        self.services.set_ahead(ahead, ["mptcp-throttled"])

    def _choose_classifier(self) -> None:
        self.services.configure_daemon(classifier=str(self._chance.choice(_CLASSIFIERS)))

    def _restart_daemon(self) -> None:
        self._choose_classifier()
        status = self.running[1].stop()
        if status != 0:
            raise LabError(f"mptcp-throttled: stopped with status {status}")
        self.start()

    def _restart_sniffer(self) -> None:
        status = self.running[0].stop()
        if status != 0:
            raise LabError(f"mptcp-sniffer: stopped with status {status}")
        self.start()

    def _kill_daemon(self) -> None:
        self._choose_classifier()
        self.running[1].kill()
        self.start()

    def _kill_and_clean_up(self) -> None:
        self.running[1].kill()
        self.services.clean_up()
        self.start()

    def _kill_sniffer(self) -> None:
        self.running[0].kill()
        self.start()

    def _kill_both(self) -> None:
        for process in self.running:
            process.kill()
        self.start()

    actions: Final[dict[Event, Callable[[Proxy], None]]] = {
        Event.RELOAD: _reload,
        Event.REFUSED_RELOAD: _refused_reload,
        Event.WIFI_LOST: _lose_wifi,
        Event.INTERFACE_DOWN: _set_interface_down,
        Event.NEXT_DAY: _next_day,
        Event.CLOCK_BACK: _set_clock_back,
        Event.DAEMON_RESTARTED: _restart_daemon,
        Event.SNIFFER_RESTARTED: _restart_sniffer,
        Event.DAEMON_KILLED: _kill_daemon,
        Event.DAEMON_CLEANED_UP: _kill_and_clean_up,
        Event.SNIFFER_KILLED: _kill_sniffer,
        Event.BOTH_KILLED: _kill_both,
    }
