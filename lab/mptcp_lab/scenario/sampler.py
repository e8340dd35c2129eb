"""Samples every interface and every TCP socket of the hosts, in a thread of its own."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from mptcp_lab.background import Background
from mptcp_lab.errors import LabError
from mptcp_lab.meter import enter
from mptcp_lab.scenario.inet_diag import InetDiag
from mptcp_lab.scenario.recording import InterfaceSample, SubflowSample
from mptcp_lab.scenario.schema import Port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType


class _Probe(NamedTuple):
    """What a host is looked at through; opened inside its network namespace, read from outside."""

    host: str
    interfaces: Sequence[str]
    devices: TextIO
    counters: Sequence[TextIO]
    sockets: InetDiag


class Sampler(Background):
    """Samples `hosts` (their namespaces) every `interval` seconds while its `with` block runs; time 0 is `began`."""

    def __init__(self, hosts: Mapping[str, str], ports: Sequence[Port], interval: float, began: float) -> None:
        self.interfaces: list[InterfaceSample] = []
        self.subflows: list[SubflowSample] = []
        self.counters: dict[str, dict[str, int]] = {}
        self._hosts = hosts
        self._ports = ports
        self._interval = interval
        self._began = began
        self._error: OSError | None = None
        super().__init__("sampler")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        if self._error is not None and error is None:
            raise LabError(f"samples cannot be taken: {self._error.strerror}") from self._error

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
        except OSError as error:
            self._error = error

    def _open(self, stack: ExitStack, host: str, namespace: str) -> _Probe:
        # Only this thread enters namespaces; /proc/thread-self follows it there, /proc/net would not. What it has
        # opened stays where it was opened.
        enter(namespace)
        directory = Path("/proc/thread-self/net")
        files = [stack.enter_context((directory / name).open(encoding="ascii")) for name in ("dev", "snmp", "netstat")]
        interfaces = [port.interface for port in self._ports if port.host == host]
        return _Probe(host, interfaces, files[0], files[1:], stack.enter_context(InetDiag()))

    def _sample_all(self, probes: Sequence[_Probe]) -> None:
        due = time.monotonic()
        last = False
        while True:
            for probe in probes:
                self._sample(probe)
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
        at = time.monotonic() - self._began
        self.subflows += [SubflowSample(at, probe.host, found) for found in probe.sockets.established()]


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
