"""Samples every interface and every TCP socket of the hosts, in a thread of its own."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from mptcp_lab.background import Background
from mptcp_lab.curve import Curve
from mptcp_lab.lab_errors import LabError
from mptcp_lab.namespaces import enter
from mptcp_lab.port import Port
from mptcp_throttle.linux.inet_diag import ESTABLISHED, INET_DIAG_INFO, InetDiag, TcpSocket
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_socket import read_consistently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from mptcp_lab.host import Host

# struct tcp_info (include/uapi/linux/tcp.h): offsets of the fields; older kernels return a shorter one.
_U32: Final = {
    "rtt": 68,
    "cwnd": 80,
    "retransmits": 100,
    "packets_received": 152,
    "packets_sent": 156,
    "out_of_order": 224,
}
_U64: Final = {"pacing": 104, "acked": 120, "received": 128}
_UNLIMITED: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SocketInfo:
    """The state of a TCP socket, perhaps an MPTCP subflow.

    `acked` and `received` are bytes of payload, `rtt` is in seconds, `pacing` in bits per second (0: not paced),
    `cwnd`, `retransmits` and `out_of_order` in segments. `packets_received` and `packets_sent` are segments with data.
    What the kernel does not report is 0.
    """

    cookie: int
    local: str
    local_port: int
    remote: str
    remote_port: int
    acked: int
    received: int
    cwnd: int
    rtt: float
    pacing: int
    retransmits: int
    out_of_order: int
    packets_received: int = 0
    packets_sent: int = 0


class InterfaceSample(NamedTuple):
    """The byte counters of an interface at a time."""

    at: float
    port: Port
    received: int
    sent: int


class SubflowSample(NamedTuple):
    """A TCP socket or MPTCP subflow of a host at a time."""

    at: float
    host: str
    socket: SocketInfo


class _Probe(NamedTuple):
    """What a host is looked at through; opened inside its network namespace, read from outside."""

    host: str
    interfaces: Sequence[str]
    devices: TextIO
    counters: Sequence[TextIO]
    sockets: InetDiag | None


class Sampler(Background):
    """Samples `hosts` (their namespaces) every `interval` seconds while its `with` block runs; time 0 is `began`.

    The block begins after the first sample. Raises LabError if samples cannot be taken.
    """

    def __init__(
        self, hosts: Mapping[str, str], ports: Sequence[Port], interval: float, began: float, *, sockets: bool = True
    ) -> None:
        self.interfaces: list[InterfaceSample] = []
        self.subflows: list[SubflowSample] = []
        self.counters: dict[str, dict[str, int]] = {}
        self._hosts = hosts
        self._ports = ports
        self._interval = interval
        self._began = began
        self._sockets = sockets
        self._sampled = threading.Event()
        self._error: OSError | KernelError | None = None
        super().__init__("sampler")

    def __enter__(self) -> Self:
        super().__enter__()
        self._sampled.wait()
        self._raise_error()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        if error is None:
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise LabError(f"samples cannot be taken: {self._error}") from self._error

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                probes = [self._open(stack, host, namespace) for host, namespace in self._hosts.items()]
                before = {probe.host: _counters(probe) for probe in probes}
                self._sample_all(probes)
                for probe in probes:
                    after = _counters(probe)
                    self.counters[probe.host] = {
                        name: value - before[probe.host].get(name, 0) for name, value in after.items()
                    }
        except (OSError, KernelError) as error:
            self._error = error
        finally:
            self._sampled.set()

    def _open(self, stack: ExitStack, host: str, namespace: str) -> _Probe:
        # Only this thread enters namespaces; /proc/thread-self follows it there, /proc/net would not. What it has
        # opened stays where it was opened.
        enter(namespace)
        directory = Path("/proc/thread-self/net")
        files = [stack.enter_context((directory / name).open(encoding="ascii")) for name in ("dev", "snmp", "netstat")]
        interfaces = [port.interface for port in self._ports if port.host == host]
        sockets = stack.enter_context(InetDiag()) if self._sockets else None
        return _Probe(host, interfaces, files[0], files[1:], sockets)

    def _sample_all(self, probes: Sequence[_Probe]) -> None:
        due = time.monotonic()
        last = False
        while True:
            for probe in probes:
                self._sample(probe)
            self._sampled.set()
            if last:
                return
            due = max(due + self._interval, time.monotonic())
            # One sample more at the end: what arrived since the last one counts.
            last = self._stop.wait(due - time.monotonic())

    def _sample(self, probe: _Probe) -> None:
        at = time.monotonic() - self._began
        # Two lines of headings, then `name: received bytes, 7 other fields, sent bytes ...`.
        for line in _read(probe.devices).splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() in probe.interfaces:
                fields = numbers.split()
                self.interfaces.append(
                    InterfaceSample(at, Port(probe.host, name.strip()), int(fields[0]), int(fields[8]))
                )
        if probe.sockets is not None:
            at = time.monotonic() - self._began
            self.subflows += [SubflowSample(at, probe.host, socket) for socket in _established(probe.sockets)]


class PathMeter(Sampler):
    """Samples what a host receives and sends over these interfaces; times are those of the monotonic clock."""

    def __init__(self, host: Host, interfaces: Sequence[str]) -> None:
        self._host = host.name
        ports = [Port(host.name, interface) for interface in interfaces]
        super().__init__({host.name: host.namespace}, ports, 0.1, 0.0, sockets=False)

    def received(self, interface: str) -> Curve:
        """The bytes received until now."""
        return self._curves(interface)[0]

    def sent(self, interface: str) -> Curve:
        """The bytes sent until now."""
        return self._curves(interface)[1]

    def _curves(self, interface: str) -> tuple[Curve, Curve]:
        return interface_curves(self.interfaces.copy())[Port(self._host, interface)]


def interface_curves(samples: Iterable[InterfaceSample]) -> dict[Port, tuple[Curve, Curve]]:
    """Bytes received and bytes sent, per interface."""
    received, sent = defaultdict(list), defaultdict(list)
    for sample in samples:
        received[sample.port].append((sample.at, sample.received))
        sent[sample.port].append((sample.at, sample.sent))
    return {port: (Curve(received[port]), Curve(sent[port])) for port in received}


def received_curve(
    samples: Iterable[SubflowSample], count: Callable[[SocketInfo], int] = lambda socket: socket.received
) -> Curve:
    """What these sockets have received together, payload bytes or another `count`.

    What a socket had when it was last seen stays.
    """
    last: dict[int, int] = {}
    points: dict[float, float] = {}
    for sample in sorted(samples, key=lambda sample: sample.at):
        last[sample.socket.cookie] = count(sample.socket)
        points[sample.at] = sum(last.values())
    return Curve(points.items())


def last_seen(samples: Iterable[SubflowSample]) -> list[SubflowSample]:
    """The last sample of each socket that has carried data, in the order of their first ones."""
    last: dict[tuple[str, int], SubflowSample] = {}
    for sample in sorted(samples, key=lambda sample: sample.at):
        last[sample.host, sample.socket.cookie] = sample
    return [sample for sample in last.values() if sample.socket.received or sample.socket.acked]


def _established(diag: InetDiag) -> list[SocketInfo]:
    return read_consistently(lambda: [_socket_info(socket) for socket in diag.sockets(ESTABLISHED, {INET_DIAG_INFO})])


def _socket_info(socket: TcpSocket) -> SocketInfo:
    info = socket.attributes.get(INET_DIAG_INFO, b"")
    words = {name: _field(info, offset, 4) for name, offset in _U32.items()}
    longs = {name: _field(info, offset, 8) for name, offset in _U64.items()}
    return SocketInfo(
        cookie=int.from_bytes(socket.cookie, sys.byteorder),
        local=str(ip_address(socket.local)),
        local_port=socket.local_port,
        remote=str(ip_address(socket.remote)),
        remote_port=socket.remote_port,
        acked=longs["acked"],
        received=longs["received"],
        cwnd=words["cwnd"],
        rtt=words["rtt"] / 1e6,
        pacing=0 if longs["pacing"] == _UNLIMITED else longs["pacing"] * 8,
        retransmits=words["retransmits"],
        out_of_order=words["out_of_order"],
        packets_received=words["packets_received"],
        packets_sent=words["packets_sent"],
    )


def _field(info: bytes, offset: int, size: int) -> int:
    return int.from_bytes(info[offset : offset + size], sys.byteorder) if len(info) >= offset + size else 0


def _read(file: TextIO) -> str:
    file.seek(0)
    return file.read()


def _counters(probe: _Probe) -> dict[str, int]:
    """All counters under the names that nstat(8) gives them: a line of names and a line of values per protocol."""
    counters: dict[str, int] = {}
    for file in probe.counters:
        lines = _read(file).splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            prefix, *keys = names.replace(":", "").split()
            counters |= {f"{prefix}{key}": int(value) for key, value in zip(keys, values.split()[1:], strict=True)}
    return counters


def processor_times() -> tuple[int, int]:
    """Idle and total time of all processors since boot, in ticks (proc_stat(5))."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
