"""Our two services and the CLI on the proxy host, started as an operator would: separate programs, files of YAML."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import yaml

from mptcp_lab import preloaded
from mptcp_lab.lab_errors import LabError
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, WIFI
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.model import AccessNetwork, Budget, Device, Direction, Every, LogLevel, Per, RateKind, Window
from mptcp_throttle.rpc import RpcClient, RpcError
from mptcp_throttle.units import Rate, format_share
from mptcp_throttle.when import WEEK, WEEKDAYS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from mptcp_lab.fault_plan import Faults
    from mptcp_lab.host import Host
    from mptcp_lab.process import Process

# 9.3 times the weight of 0 (sched_prio_to_weight in kernel/sched/core.c): CPUWeight=1000 of the units.
_NICE: Final = -10

WIFI_FIRST: Final = (
    AccessNetwork("wifi", (WIFI.v4, WIFI.v6), 1, {}, Per.CLIENT),
    AccessNetwork("ethernet", (ETHERNET.v4, ETHERNET.v6), 2, {RateKind.CAP: Rate(1_000_000)}, Per.CLIENT),
)
"""The policy of the headline result: Wi-Fi carries the load, Ethernet 1 Mb/s."""


@dataclass(frozen=True, slots=True)
class SubflowStatus:
    """A live subflow as the daemon reports it; `rate` (bits per second) is None while it is neither capped nor limited.

    `kind` is `cap` or `limit`, or None as well. `uplink_kind` and `uplink_rate` are the same for what its client sends;
    `uplink_policed`: the excess is dropped.
    `join_to_cap`: seconds from the SYN that led to the rate until its downlink was throttled.
    """

    token: str
    client: str
    client_port: int
    network: str
    backup: bool
    kind: str | None
    rate: int | None
    reason: str
    uplink_kind: str | None
    uplink_rate: int | None
    uplink_policed: bool
    join_to_cap: float | None


def _rates(rates: Mapping[RateKind, Rate] | Mapping[RateKind, Rate | None]) -> dict[str, object]:
    """Rates as in a network file."""
    of_direction = {
        direction: {kind.word: str(rate or "unlimited") for kind, rate in rates.items() if kind.direction is direction}
        for direction in Direction
    }
    return {**of_direction[Direction.DOWNLINK], "uplink": of_direction[Direction.UPLINK]}


def _window(window: Window) -> dict[str, object]:
    """A window of a schedule as in a network file."""
    return {"when": str(window.when), "counts": window.counts, **_rates(window.rates)}


def _budget(budget: Budget) -> dict[str, object]:
    """A budget as in a network file."""
    starts = {Every.DAY: None, Every.WEEK: WEEKDAYS[budget.starts % WEEK], Every.MONTH: budget.starts}
    return {
        "amount": f"{budget.amount // 1000}kB",
        "per": str(budget.per),
        "direction": str(budget.counting),
        "every": str(budget.every),
        "starts": None if budget.rolling else starts[budget.every],
        "rollover": budget.rollover,
        "rolling": budget.rolling,
        "warn_at": None if budget.warn_at is None else format_share(budget.warn_at),
        "then": [{"at": format_share(stage.at), **_rates(stage.rates)} for stage in budget.stages],
    }


def _device(device: Device) -> dict[str, object]:
    """A device as in its file."""
    networks = {
        name: {"addresses": list(map(str, addresses)), **_rates(device.rates.get(name, {}))}
        for name, addresses in device.addresses.items()
    }
    return {"name": device.name, "networks": networks}


class Services:
    """`mptcp-sniffer`, `mptcp-throttled` and `mptcp-throttle` on the host `proxy`, with a configuration of their own.

    As a context manager: both services run and are connected inside the block, and have ended after it.
    `ports` are those of the proxy, or of several by their names.
    """

    preloaded: ClassVar[preloaded.Preloaded | None] = None
    """What starts the programs. None: each is started as an operator would, and takes up to a second to load."""

    def __init__(
        self,
        proxy: Host,
        networks: Sequence[AccessNetwork] = WIFI_FIRST,
        *,
        interfaces: Sequence[str] = ("eth0",),
        linger: str = "2s",
        ports: Sequence[int | str] | Mapping[str, Sequence[int | str]] = (PORT,),
        sniffer: Mapping[str, object] | None = None,
        daemon: Mapping[str, object] | None = None,
        devices: Iterable[Device] = (),
        time_zone: str | None = None,
        log_level: LogLevel = LogLevel.INFO,
        name: str = "throttle",
    ) -> None:
        self.proxy = proxy
        self.directory = proxy.directory / name
        self.config = self.directory / "mptcp-throttle.yaml"
        self.sniffer: Process | None = None
        self.daemon: Process | None = None
        self.web: Process | None = None
        self._executables = Path(sys.executable).parent
        for directory in ("networks.d", "clients.d"):
            (self.directory / directory).mkdir(parents=True)
        self._write(
            self.config,
            {
                **_proxies(interfaces, ports),
                "sniffer": dict(sniffer or {}),
                "daemon": {"linger": linger, **(daemon or {})},
                "log_level": str(log_level),
                "time_zone": time_zone,
                "run_directory": str(self.directory / "run"),
                "state_directory": str(self.directory / "state"),
                "socket_group": "root",
                "networks_directory": "networks.d",
            },
        )
        self.configure(networks)
        for device in devices:
            self._write(self.directory / "clients.d" / f"{device.name}.yaml", _device(device))

    def configure(self, networks: Sequence[AccessNetwork]) -> None:
        """Replace the network files; the daemon reads them when it is told to reload."""
        directory = self.directory / "networks.d"
        for file in directory.iterdir():
            file.unlink()
        for network in networks:
            self._write(
                directory / f"{network.name}.yaml",
                {
                    "name": network.name,
                    "subnets": [str(subnet) for subnet in network.subnets],
                    "preference": network.preference,
                    **_rates(network.rates),
                    **({"schedule": list(map(_window, network.schedule))} if network.schedule else {}),
                    "budgets": list(map(_budget, network.budgets)),
                    "overflow": None if network.overflow is None else str(network.overflow),
                    "burst": f"{network.burst / 1000:g}kB" if network.burst else None,
                    "shared": network.shared,
                    "per": str(network.per),
                    "provisional": f"{network.provisional}s" if network.provisional else None,
                    "client_prefix": asdict(network.client_prefix),
                    "healthy": {str(key): text for key, text in network.healthy.texts.items()},
                    "proxy": network.proxy,
                },
            )

    def configure_ports(self, ports: Mapping[str, Sequence[int | str]], interfaces: Sequence[str] = ("eth0",)) -> None:
        """Change the ports of several proxies; the services read them at a restart."""
        config = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        self._write(self.config, {**config, **_proxies(interfaces, ports)})

    def configure_daemon(self, **settings: object) -> None:
        """Change settings of the section `daemon`; the daemon reads them at a reload or a restart."""
        self.configure_section("daemon", **settings)

    def configure_section(self, name: str, /, **settings: object) -> None:
        """Change settings of a section; the services read them at a reload or a restart."""
        config = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        config.setdefault(name, {}).update(settings)
        self._write(self.config, config)

    def configure_log(self, level: LogLevel) -> None:
        """Change the log level; both services read it at a reload or a restart."""
        config = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        config["log_level"] = str(level)
        self._write(self.config, config)

    @property
    def sockets(self) -> Sockets:
        """The sockets of the services."""
        return Sockets.below(self.directory / "run")

    def __enter__(self) -> Self:
        self.start_sniffer()
        self.start_daemon()
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all."""
        self.stop_daemon()
        if self.sniffer is not None:
            self.sniffer.stop()

    def stop_daemon(self) -> None:
        """End all but the sniffer, without which the daemon would free every subflow."""
        for process in (self.web, self.daemon):
            if process is not None:
                process.stop()

    def start_sniffer(self) -> Process:
        """Start `mptcp-sniffer`."""
        self.sniffer = self._start("mptcp-sniffer")
        return self.sniffer

    def start_web(self) -> Process:
        """Start `mptcp-throttle-web`; returns once the page is served."""
        web = self.web = self._start("mptcp-throttle-web")
        web.wait_until(lambda: "the page is on" in web.log_text(), "serving the page")
        return web

    def start_timed(self) -> tuple[Path, Path]:
        """Start both so that they record when messages pass them; the files of the records, written at the end."""
        files = [self.directory / f"{name}.notes" for name in ("mptcp-sniffer", "mptcp-throttled")]
        self.sniffer, self.daemon = (
            self._run(file.stem, sys.executable, "-m", "mptcp_lab.timed_service", file, file.stem) for file in files
        )
        return files[0], files[1]

    def start_daemon(self, faults: Faults | None = None) -> Process:
        """Start `mptcp-throttled`, with `faults` injected into its calls of the kernel."""
        if faults is not None:
            self.daemon = self._run_module("mptcp-throttled", "mptcp_lab.faulty_daemon", faults.directory)
        else:
            self.daemon = self._start("mptcp-throttled")
        return self.daemon

    def clean_up(self) -> None:
        """Run `mptcp-throttled --cleanup`. Raises LabError if it fails."""
        command = (self._executables / "mptcp-throttled", "--config", self.config, "--cleanup")
        self.proxy.run(*command, machine_files=True)

    def log(self) -> str:
        """All that the daemon logged, over all its starts."""
        return "" if self.daemon is None else self.daemon.log_text()

    @property
    def records(self) -> list[str]:
        """The names of the daemon's files that say what it has changed at interfaces."""
        directory, patterns = self.sockets.daemon.parent, ("original-qdisc-*", "clsact-*", "tcx-*")
        return sorted(path.name for pattern in patterns for path in directory.glob(pattern))

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait up to `timeout` seconds until the daemon answers and has the sniffer's table."""
        if self.daemon is None or self.sniffer is None:
            raise LabError("mptcp-sniffer and mptcp-throttled: not started")
        self.sniffer.wait_until(lambda: self.answers(self.sockets.sniffer), "answering", timeout)
        self.daemon.wait_until(self._connected, "connected to the sniffer", timeout)

    def check_kernel_program(self) -> None:
        """Raise LabError if it is configured and not attached, as without what `lab/bootstrap` compiles."""
        settings = yaml.safe_load(self.config.read_text(encoding="utf-8"))["daemon"]
        problem = self.status()["daemon"]["features"]["pacing"]["problem"]
        if settings.get("pacing", True) and problem is not None:
            raise LabError(f"mptcp-throttled: the kernel program is not attached: {problem}")

    @property
    def exit_statuses(self) -> tuple[int | None, int | None]:
        """The exit statuses of sniffer and daemon; None for one that runs, or was not started."""
        return (
            None if self.sniffer is None else self.sniffer.exit_status,
            None if self.daemon is None else self.daemon.exit_status,
        )

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `mptcp-throttle` with the configuration. Raises LabError if it fails and `check` holds."""
        given: tuple[str | Path, ...] = ("--config", self.config, *arguments)
        if self.preloaded is None:
            return self.proxy.run(self._executables / "mptcp-throttle", *given, check=check)
        return self.proxy.run_cli(self.preloaded, *given, check=check)

    def cli_json(self, *arguments: str) -> Any:  # noqa: ANN401
        """What `mptcp-throttle ... --json` printed."""
        return json.loads(self.cli(*arguments, "--json").stdout)

    def status(self) -> Any:  # noqa: ANN401
        """The daemon's status, over its socket: faster than starting the CLI."""
        return self.ask("status")

    def subflows(self) -> tuple[SubflowStatus, ...]:
        """Every live subflow the daemon knows, over its socket."""
        connections = self.ask("connections")["connections"]
        return tuple(
            SubflowStatus(
                token=connection["token"],
                client=subflow["client"],
                client_port=subflow["client_port"],
                network=subflow["network"],
                backup=subflow["backup"],
                kind=subflow["downlink"]["kind"],
                rate=subflow["downlink"]["rate_bps"],
                reason=subflow["downlink"]["reason"],
                uplink_kind=subflow["uplink"]["kind"],
                uplink_rate=subflow["uplink"]["rate_bps"],
                uplink_policed=subflow["uplink"]["policed"],
                join_to_cap=None if subflow["join_to_cap_ms"] is None else subflow["join_to_cap_ms"] / 1000,
            )
            for connection in connections
            for subflow in connection["subflows"]
        )

    def ask(self, method: str, *params: object) -> Any:  # noqa: ANN401
        """The daemon's answer, over its socket."""
        return self._call(self.sockets.daemon, method, *params)

    def ask_sniffer(self, method: str, *params: object) -> Any:  # noqa: ANN401
        """The sniffer's answer, over its socket."""
        return self._call(self.sockets.sniffer, method, *params)

    def answers(self, socket: Path) -> bool:
        """Whether the service at this socket answers."""
        with contextlib.suppress(RpcError):
            return bool(self._call(socket, "status"))
        return False

    def captures(self) -> bool:
        """Whether the sniffer answers and captures."""
        with contextlib.suppress(RpcError):
            return bool(self.ask_sniffer("status")["captured"])
        return False

    def _connected(self) -> bool:
        with contextlib.suppress(RpcError):
            return bool(self.status()["sniffer"]["connected"])
        return False

    @staticmethod
    def _call(socket: Path, method: str, *params: object) -> Any:  # noqa: ANN401
        # A Unix socket is a file: the namespace of the network does not matter.
        return RpcClient(socket).call(method, *params)

    def _start(self, name: str) -> Process:
        if self.preloaded is None:
            return self._run(name, self._executables / name)
        return self._run_module(name, preloaded.SERVICES[name])

    def _run_module(self, name: str, module: str, *arguments: Path) -> Process:
        if self.preloaded is None:
            return self._run(name, sys.executable, "-m", module, *arguments)
        process = self.proxy.start_preloaded(self.preloaded, name, module, *arguments, "--config", self.config)
        process.prefer(_NICE)
        return process

    def _run(self, name: str, *program: str | Path) -> Process:
        process = self.proxy.start(name, *program, "--config", self.config, machine_files=True)
        process.prefer(_NICE)
        return process

    @staticmethod
    def _write(path: Path, data: dict[str, Any]) -> None:
        path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def _proxies(
    interfaces: Sequence[str], ports: Sequence[int | str] | Mapping[str, Sequence[int | str]]
) -> dict[str, object]:
    if not isinstance(ports, Mapping):
        return {"proxy": {"interfaces": list(interfaces), "ports": list(ports)}}
    named = {name: {"interfaces": list(interfaces), "ports": list(each)} for name, each in ports.items()}
    return {"proxies": named}
