"""The path meter samples how many bytes a client has received over each of its interfaces."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab import namespaces
from mptcp_lab.background import Background
from mptcp_lab.lab_errors import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_CLONE_NEWNET: Final = 0x40000000  # include/uapi/linux/sched.h; os.setns() is new in Python 3.12


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of received bytes, by interface, at the time `at` (seconds, monotonic clock)."""

    at: float
    received: Mapping[str, int]


class Series:
    """Samples in the order of time."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self._times = [sample.at for sample in samples]

    def received(self, interface: str, start: float, end: float) -> float:
        """Bytes received between two times of the monotonic clock; interpolated between samples."""
        return self._counter(interface, end) - self._counter(interface, start)

    def rate(self, interface: str, start: float, end: float) -> float:
        """Mean rate between two times in bits per second."""
        return self.received(interface, start, end) * 8 / (end - start)

    def _counter(self, interface: str, at: float) -> float:
        after = bisect_right(self._times, at)
        if after == 0:
            return self.samples[0].received[interface]
        before = self.samples[after - 1]
        if after == len(self.samples):
            return before.received[interface]
        share = (at - before.at) / (self.samples[after].at - before.at)
        return before.received[interface] + share * (
            self.samples[after].received[interface] - before.received[interface]
        )


class PathMeter(Background):
    """Samples the counters of `interfaces` in `namespace` every `interval` seconds while its `with` block runs."""

    def __init__(self, namespace: str, interfaces: Sequence[str], interval: float = 0.1) -> None:
        self._namespace = namespace
        self._interfaces = interfaces
        self._interval = interval
        self._samples: list[Sample] = []
        self._error: OSError | None = None
        self._first = threading.Event()
        super().__init__(f"meter-{namespace}")

    def __enter__(self) -> Self:
        super().__enter__()
        self._first.wait()
        self._raise_error()
        return self

    def series(self) -> Series:
        """The samples so far. Raises LabError if sampling failed."""
        self._raise_error()
        return Series(self._samples.copy())

    def _raise_error(self) -> None:
        if self._error is not None:
            raise LabError(f"{self._namespace}: counters cannot be read: {self._error.strerror}") from self._error

    def _run(self) -> None:
        try:
            self._sample()
        except OSError as error:
            self._error = error
            self._first.set()

    def _sample(self) -> None:
        # Only this thread enters the namespace; /proc/thread-self follows it there, /proc/net would not.
        enter(self._namespace)
        with open("/proc/thread-self/net/dev", encoding="ascii") as counters:
            due = time.monotonic()
            while True:
                counters.seek(0)
                at = time.monotonic()
                received = _parse(counters.read())
                self._samples.append(Sample(at, {name: received[name] for name in self._interfaces}))
                self._first.set()
                due += self._interval
                if self._stop.wait(max(due - time.monotonic(), 0.0)):
                    return


def enter(namespace: str) -> None:
    """Move this thread into a network namespace. Raises OSError."""
    descriptor = os.open(namespaces.path(namespace), os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _parse(text: str) -> dict[str, int]:
    """The received bytes of each interface in /proc/net/dev: two lines of headings, then `name: bytes ...`."""
    lines = (line.split(":") for line in text.splitlines()[2:])
    return {name.strip(): int(counters.split()[0]) for name, counters in lines}
