"""A proxy at work: clients, a server, origin server and our two services, on which a test can act."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foreign_program import sockets_of
from polling import eventually

from mptcp_lab import oracle, throttled
from mptcp_lab.class_assignments import CHAIN, SHOW_ASSIGNMENTS, TABLE, ClassAssignment, parse_assignments
from mptcp_lab.curve import MEGA, Curve
from mptcp_lab.download import Download, reset_subflows
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.origin import PORT as ORIGIN_PORT
from mptcp_lab.origin import Origin, endless, start_origin
from mptcp_lab.proxy_server import Access
from mptcp_lab.sampler import PathMeter
from mptcp_lab.scenario.interception import intercept
from mptcp_lab.services import WIFI_FIRST, Services, SubflowStatus
from mptcp_lab.squid import PORT, SQUID
from mptcp_lab.topology import Client, Family, Lab, Topology, build
from mptcp_lab.upload import Upload
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from socket import socket

    from mptcp_lab.fault_plan import Faults
    from mptcp_lab.host import Host
    from mptcp_lab.process import Process
    from mptcp_lab.proxy_server import ProxyServer
    from mptcp_lab.throttled import Client as Peer
    from mptcp_throttle.model import AccessNetwork

MEGABYTE: Final = 10**6
LONG: Final = 200 * MEGABYTE
"""An upload of more than both links carry in half a minute."""

PACKET_CLASSIFIERS: Final = ("nft", "rules")
"""The classifiers that look at packets."""
ALL_CLASSIFIERS: Final = ("socket", *PACKET_CLASSIFIERS)
EXECUTABLES: Final = Path(sys.executable).parent

_serial: Final = itertools.count(1)
_CLASS: Final = re.compile(
    r"class htb (\S+) (?:root|parent \S+) (?:leaf (\S+) )?prio \d+ rate (\S+) .*\n"
    r" Sent (\d+) bytes \d+ pkt \(dropped (\d+),"
)


def ethernet_with(rates: Mapping[RateKind, Rate | None]) -> tuple[AccessNetwork, ...]:
    """Wi-Fi, and Ethernet with its cap and these rates."""
    wifi, ethernet = WIFI_FIRST
    return wifi, ethernet.with_rates(rates)


FREE: Final = 3e6
"""Bits per second: three times the cap of `WIFI_FIRST`; on a busy machine, too, Ethernet carries that without a cap."""
WITHOUT_CAP: Final = ethernet_with({RateKind.CAP: None})


def unique(name: str) -> str:
    """The name with a number, for services of which a host has several one after the other."""
    return f"{name}-{next(_serial)}"


@dataclass(frozen=True)
class Hosts:
    """The hosts, with a server on the proxy and the origin server, without our services."""

    lab: Lab
    origin: Origin
    server: ProxyServer = SQUID


@dataclass(frozen=True)
class ClassCounters:
    """An HTB class: `rate` in bits per second, `leaf` the handle that the kernel chose for its qdisc, or empty."""

    rate: int
    leaf: str
    bytes: int
    drops: int


@dataclass(frozen=True)
class ProxyWorld:
    """Hosts and our services on the proxy."""

    lab: Lab
    origin: Origin
    services: Services
    server: ProxyServer = SQUID
    original: Mapping[str, str] = field(default_factory=dict)
    """The state of the proxy's kernel before the services were started."""
    _downloads: dict[Download, Client] = field(default_factory=dict, init=False)
    _uploads: list[Upload] = field(default_factory=list, init=False)

    @property
    def proxy(self) -> Host:
        """Where the services run."""
        return self.lab.proxy

    @property
    def daemon(self) -> Process:
        """The latest `mptcp-throttled`."""
        assert self.services.daemon is not None
        return self.services.daemon

    @property
    def sniffer(self) -> Process:
        """The latest `mptcp-sniffer`."""
        assert self.services.sniffer is not None
        return self.services.sniffer

    def download(
        self,
        size: int | None = None,
        client: Client | None = None,
        *,
        mptcp: bool = True,
        family: Family = 4,
        rate_limit: Rate | None = None,
    ) -> Download:
        """A download of `size` random bytes; without a size, of zeros that do not end before the test does.

        With `rate_limit` the client reads no faster than that.
        """
        document = endless(self.origin) if size is None else self.origin.add(size)
        client = client or self.lab.client
        download = Download(
            self.lab, client, document, mptcp=mptcp, family=family, rate_limit=rate_limit, server=self.server
        )
        self._downloads[download] = client
        return download

    def begin_capped(self, client: Client | None = None) -> list[SubflowStatus]:
        """Begin a download that does not end; the capped subflows, once there is one."""
        self.download(client=client)
        return self.wait_capped()

    def begin_settled(self, client: Client | None = None, *, family: Family = 4) -> list[SubflowStatus]:
        """As `begin_capped`; then the subflow is in its class (see `wait_settled`)."""
        self.download(client=client, family=family)
        return self.wait_settled()

    def begin_paced(self, client: Client | None = None) -> None:
        """Begin a download that does not end, and wait until one socket is paced."""
        self.download(client=client)
        self.wait_paced()

    def upload(self, size: int, client: Client | None = None, *, family: Family = 4) -> Upload:
        """An upload of `size` random bytes."""
        upload = Upload(self.lab, client or self.lab.client, self.origin, size, family=family, server=self.server)
        self._uploads.append(upload)
        return upload

    def abort(self, *downloads: Download) -> None:
        """End these downloads, or everything if none is named, by resetting all subflows of their clients."""
        ended = downloads or tuple(self._downloads)
        clients = {self._downloads[download] for download in downloads} or set(self.lab.clients.values())
        for client in clients:
            reset_subflows(client)
        for download in ended:
            download.stop()
            del self._downloads[download]
        if not downloads:
            while self._uploads:
                self._uploads.pop().stop()

    def end_unreachable(self) -> None:
        """End all subflows at the proxy: MPTCP can be told nothing of those whose interface or address has gone."""
        self.proxy.run("ss", "-K", "-t", "sport", "=", f":{PORT}")

    def capped(self) -> list[SubflowStatus]:
        """The capped subflows."""
        return [subflow for subflow in self.services.subflows() if subflow.kind == "cap"]

    def wait_capped(self, count: int = 1) -> list[SubflowStatus]:
        """The capped subflows, once there are `count`."""
        eventually(lambda: len(self.capped()) == count, f"{count} subflows capped", seen=self.services.subflows)
        return self.capped()

    def wait_settled(self, count: int = 1) -> list[SubflowStatus]:
        """As `wait_capped`; then they are in their classes, and what was queued before has left the router."""
        capped = self.wait_capped(count)
        eventually(lambda: len(self.assignments()) >= count, f"{count} subflows in a class")
        for client in self.lab.clients:
            show = ("tc", "-s", "qdisc", "show", "dev", f"{client}-eth0")
            eventually(lambda: " backlog 0b " in self.lab.router.run(*show).stdout, "the router's queue drained")  # noqa: B023
        return capped

    def wait_restored(self) -> None:
        """Wait until the interface has its own qdisc again."""
        eventually(lambda: self.services.status()["daemon"]["qdisc"] == "original", "the saved qdisc restored")

    def start_daemon(self) -> None:
        """Start the daemon (again); returns once it has the sniffer's table."""
        self.services.start_daemon()
        self.services.wait_ready()

    def hang_up(self) -> None:
        """Send SIGHUP to the daemon."""
        os.kill(self.daemon.pid, signal.SIGHUP)

    def errors(self) -> list[str]:
        """The errors in the daemon's status."""
        lines: list[str] = self.services.status()["daemon"]["errors"]
        return lines

    def classes(self) -> str:
        """The classes of the proxy's interface."""
        return self.lab.proxy.run("tc", "class", "show", "dev", "eth0").stdout

    def class_counters(self, interface: str = "eth0") -> dict[str, ClassCounters]:
        """The HTB classes of an interface, by name."""
        shown = self.proxy.run("tc", "-s", "class", "show", "dev", interface).stdout  # iproute2 6.1 knows no JSON here
        return {
            name: ClassCounters(Rate.parse(rate.lower()).bits_per_second, leaf, int(size), int(drops))
            for name, leaf, rate, size, drops in _CLASS.findall(shown)
        }

    def qdisc(self) -> str:
        """The qdiscs of the proxy's interface, without HTB's packet counter."""
        return re.sub(r"direct_packets_stat \d+ ", "", self.lab.proxy.run("tc", "qdisc", "show", "dev", "eth0").stdout)

    def qdisc_kinds(self) -> list[str]:
        """Qdiscs, classes and filters of the proxy's interface, without numbers that the kernel chooses or counts."""
        dump = "".join(
            self.lab.proxy.run("tc", item, "show", "dev", "eth0").stdout for item in ("qdisc", "class", "filter")
        )
        return re.sub(r"direct_packets_stat \d+ | \b[89a-f][0-9a-f]{3}:", "", dump).splitlines()

    def wait_paced(self, count: int = 1) -> None:
        """Wait until that many sockets are paced."""
        eventually(lambda: self.paced() == count, f"{count} sockets paced")

    def paced(self) -> int:
        """The proxy's established sockets with a maximum pacing rate."""
        return len(re.findall(r"pacing_rate \S+/", self.lab.proxy.run("ss", "-tinH").stdout))

    def held_back(self) -> set[Peer]:
        """The subflows that MPTCP at the proxy takes for backups although their clients have not asked for it.

        A pulse lets such a subflow send for some milliseconds (docs/explanation/steering.md).
        """
        return throttled.held(self.proxy, self.lab.clients.values())

    def restrained(self) -> set[Peer]:
        """The subflows that are paced or held back."""
        return throttled.paced(self.proxy) | self.held_back()

    def wait_restrained(self, count: int = 1) -> None:
        """Wait until that many subflows are paced or held back."""
        eventually(lambda: len(self.restrained()) == count, f"{count} subflows paced or held back")

    def server_pids(self) -> list[int]:
        """The processes that listen on the proxy's port."""
        shown = self.lab.proxy.run("ss", "-tnlpH", "sport", "=", f":{PORT}").stdout
        return sorted({int(pid) for pid in re.findall(r"pid=(\d+)", shown)})

    def server_sockets(self) -> Iterator[socket]:
        """Copies of the sockets of those processes on the proxy's port."""
        for pid in self.server_pids():
            yield from sockets_of(pid, PORT)

    def bytes_acked(self, client_port: int) -> int:
        """What the client has acknowledged on the subflow from that port, as ss(8) shows it."""
        shown = self.lab.proxy.run("ss", "-tinH", "dport", f"= :{client_port}").stdout
        found = re.search(r"bytes_acked:(\d+)", shown)
        assert found is not None, shown
        return int(found[1])

    def acked_rate(self, client_port: int, seconds: float) -> float:
        """What the client acknowledges on that subflow in the next `seconds`, in bits per second."""
        before, began = self.bytes_acked(client_port), time.monotonic()
        eventually(lambda: time.monotonic() > began + seconds, f"{seconds} seconds")
        return 8 * (self.bytes_acked(client_port) - before) / (time.monotonic() - began)

    def assignments(self) -> list[ClassAssignment]:
        """What leads subflows to their classes in the kernel: rules, a map, or the priority of their sockets."""
        return parse_assignments(self._shown_assignments())

    def chain(self) -> str:
        """Our iptables chain, the jumps to it and our tables, line by line; made again they show the same."""
        shown = self._shown_assignments()
        lines = [line for line in shown.splitlines() if CHAIN in line]
        lines += [line for table in TABLE.findall(shown) for line in table.splitlines()]
        return "\n".join(sorted(lines))

    def _shown_assignments(self) -> str:
        return self.lab.proxy.run("sh", "-c", SHOW_ASSIGNMENTS).stdout


@contextmanager
def hosts(topology: Topology | None = None, server: ProxyServer = SQUID) -> Iterator[Hosts]:
    """Build the hosts and start the origin server, the server on the proxy, and what clients need for it."""
    with build(topology or Topology()) as lab:
        origin = start_origin(lab.origin)
        server.start(lab.proxy, f"{lab.origin_address(4)}:{ORIGIN_PORT}")
        if server.access is Access.TRANSPARENT:
            built = {"router": lab.router, "proxy": lab.proxy}
            intercept(built, lab.description, "proxy", "origin", server.port)
        if server.client is not None:
            for client in lab.clients.values():
                server.client.start(client, f"{lab.proxy_address(4)}:{PORT}")
        yield Hosts(lab, origin, server)


@contextmanager
def attended(on: Hosts, services: Services) -> Iterator[ProxyWorld]:
    """A world with these services, which the test starts, or not. For others on these hosts it is left clean.

    In the end the services are stopped, what a killed daemon left is cleaned up, and all downloads are aborted. Fails
    if anything of ours is left in the kernel or at a live subflow, or if a service logged a traceback.
    """
    proxy = on.lab.proxy
    eventually(lambda: not oracle.listed(proxy, PORT), "all earlier subflows ended", within=90)
    for log in proxy.directory.glob("mptcp-*.log"):
        log.unlink()
    world = ProxyWorld(on.lab, on.origin, services, on.server, kernel_state(proxy))
    try:
        yield world
    finally:
        try:
            services.stop_daemon()
            if services.sniffer is not None:
                services.sniffer.terminate()  # which takes up to a second
            if services.daemon is not None and services.daemon.exit_status != 0:
                services.clean_up()
            restrained = world.restrained()
        finally:
            world.abort()
            services.stop()
    assert restrained == set()
    assert CHAIN not in world.chain()
    assert "table " not in world.chain()
    assert "htb 4d50:" not in proxy.run("tc", "qdisc", "show").stdout
    for log in proxy.directory.glob("mptcp-*.log"):
        text = log.read_text(encoding="utf-8")
        assert "Traceback" not in text, f"{log}: {text[text.index('Traceback') :]}"


@contextmanager
def configured(
    on: Hosts,
    networks: Sequence[AccessNetwork] = WIFI_FIRST,
    daemon: Mapping[str, object] | None = None,
    ports: Sequence[int | str] | Mapping[str, Sequence[int | str]] = (PORT,),
    interfaces: Sequence[str] = ("eth0",),
) -> Iterator[ProxyWorld]:
    """A world whose services have not been started; `daemon` is that section of their configuration."""
    services = Services(
        on.lab.proxy, networks, name=unique("throttle"), daemon=daemon, ports=ports, interfaces=interfaces
    )
    with attended(on, services) as world:
        yield world


@contextmanager
def serving(
    on: Hosts,
    networks: Sequence[AccessNetwork] = WIFI_FIRST,
    daemon: Mapping[str, object] | None = None,
    ports: Sequence[int | str] | Mapping[str, Sequence[int | str]] = (PORT,),
    interfaces: Sequence[str] = ("eth0",),
    faults: Faults | None = None,
) -> Iterator[ProxyWorld]:
    """As `configured`, with both services running and connected; `faults` are the daemon's."""
    with configured(on, networks, daemon, ports, interfaces) as world:
        world.services.start_sniffer()
        world.services.start_daemon(faults)
        world.services.wait_ready()
        yield world


@contextmanager
def proxy_world(
    topology: Topology | None = None,
    networks: Sequence[AccessNetwork] = WIFI_FIRST,
    daemon: Mapping[str, object] | None = None,
    ports: Sequence[int | str] | Mapping[str, Sequence[int | str]] = (PORT,),
) -> Iterator[ProxyWorld]:
    """Hosts of its own and our services, running and connected."""
    with hosts(topology) as built, serving(built, networks, daemon, ports) as world:
        yield world


def receive_rates(client: Client, seconds: float) -> dict[str, float]:
    """What each interface of a client receives in the next `seconds`, in bits per second."""
    return _rates(client, seconds, PathMeter.received)


def send_rates(client: Client, seconds: float) -> dict[str, float]:
    """What each interface of a client sends in the next `seconds`, in bits per second."""
    return _rates(client, seconds, PathMeter.sent)


def _rates(client: Client, seconds: float, direction: Callable[[PathMeter, str], Curve]) -> dict[str, float]:
    with PathMeter(client, client.interfaces) as meter:
        began = time.monotonic()
        eventually(lambda: meter.interfaces[-1].at >= began + seconds, "sampled", within=seconds + 30)
    return {
        interface: direction(meter, interface).mbps(began, began + seconds) * MEGA for interface in client.interfaces
    }
