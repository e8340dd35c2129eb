"""The captures of several interfaces: they come and go separately, and their frames are put in order."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from mptcp_sniffer.capture import CapturedFrame, CaptureLost, Captures, InterfaceAbsent, InterfaceLost
from mptcp_sniffer.stop import Stop
from mptcp_throttle.errors import UserError

EVERYWHERE = ("eth0", "wg0")


@dataclass
class ModelCapture:
    """Has the frames that a test gives it; its socket is always readable, unless it `is_silent`."""

    waiting: list[CapturedFrame] = field(default_factory=list)
    is_lost: bool = False
    is_fast: bool = False
    is_closed: bool = False
    is_renamed: bool = False
    is_silent: bool = False
    ends: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def __post_init__(self) -> None:
        if not self.is_silent:
            self.ends[0].send(b"readable")

    def fileno(self) -> int:
        return self.ends[1].fileno()

    def frames(self) -> list[CapturedFrame]:
        if self.is_lost:
            raise CaptureLost("network is down")
        frames, self.waiting = self.waiting, []
        return frames

    def has_its_name(self) -> bool:
        return not self.is_renamed

    def dropped(self) -> int:
        return 3

    def close(self) -> None:
        self.is_closed = True
        for end in self.ends:
            end.close()


class Interfaces(dict[str, ModelCapture]):
    """Those that exist."""

    def __init__(self, **captures: ModelCapture) -> None:
        super().__init__(captures)
        self.stop = Stop()

    def start(self, name: str) -> ModelCapture:
        if name not in self:
            raise InterfaceAbsent(f"{name}: no such device")
        return self[name]

    def captures(self) -> Captures:
        return Captures(EVERYWHERE, self.start, self.stop)  # type: ignore[arg-type]

    @contextmanager
    def captured(self) -> Iterator[Captures]:
        """All captures are open."""
        with self.captures() as captures:
            captures.open_missing()
            yield captures


def frame(at: float) -> CapturedFrame:
    return CapturedFrame(b"", at, outgoing=False)


def test_interface_that_is_absent_is_captured_once_it_has_come() -> None:
    interfaces = Interfaces(eth0=ModelCapture())
    with interfaces.captures() as captures:
        opened, refusals = captures.open_missing()
        assert (opened, {name: str(error) for name, error in refusals.items()}) == (
            ["eth0"],
            {"wg0": "wg0: no such device"},
        )
        assert (captures.captured, captures.missing) == (("eth0",), ("wg0",))
        interfaces["wg0"] = ModelCapture()
        assert captures.open_missing() == (["wg0"], {})
        assert (captures.captured, captures.missing) == (EVERYWHERE, ())
    assert all(capture.is_closed for capture in interfaces.values())


def test_frames_of_all_interfaces_come_in_the_order_of_time() -> None:
    interfaces = Interfaces(eth0=ModelCapture([frame(1.0), frame(4.0)]), wg0=ModelCapture([frame(2.0), frame(3.0)]))
    with interfaces.captured() as captures:
        assert [seen.at for _, seen in captures.frames(0).frames] == [1.0, 2.0, 3.0, 4.0]


def test_frames_gather_unless_they_arrive_fast() -> None:
    for is_fast, at_least in ((False, 0.2), (True, 0.0)):
        eth0 = ModelCapture([frame(1.0)], is_fast=is_fast)
        with Interfaces(eth0=eth0).captured() as captures:
            began = time.monotonic()
            assert len(captures.frames(0, 0.2).frames) == 1
            assert at_least <= time.monotonic() - began
            assert is_fast == (time.monotonic() - began < 0.2)


@pytest.mark.parametrize(("seconds", "gather"), [(30.0, 0.0), (0.0, 30.0)])
def test_signal_ends_a_wait_for_frames(seconds: float, gather: float) -> None:
    interfaces = Interfaces(eth0=ModelCapture(is_silent=True))
    began = time.monotonic()
    before = signal.signal(signal.SIGUSR1, lambda *_: interfaces.stop.set())
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        with interfaces.captured() as captures:
            timer.start()
            assert captures.frames(seconds, gather).frames == []
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert interfaces.stop.is_set()
    assert time.monotonic() - began < 15


def test_lost_interface_leaves_the_rest_captured() -> None:
    interfaces = Interfaces(eth0=ModelCapture([frame(1.0)]), wg0=ModelCapture(is_lost=True))
    with interfaces.captured() as captures:
        assert captures.dropped() == 6
        seen = captures.frames(0)
        assert (len(seen.frames), seen.lost) == (1, [InterfaceLost("wg0", "network is down")])
        assert (captures.captured, interfaces["wg0"].is_closed) == (("eth0",), True)
        assert captures.dropped() == 6, "the frames that a closed capture dropped still count"
        interfaces["eth0"].waiting = [frame(1.0)]
        assert len(captures.frames(0).frames) == 1


def test_interface_that_cannot_be_captured_hides_no_other() -> None:
    class Refusing(Interfaces):
        def start(self, name: str) -> ModelCapture:
            if name == "eth0":
                raise UserError("eth0: link type 778 is not supported")
            return super().start(name)

    interfaces = Refusing(wg0=ModelCapture())
    with interfaces.captures() as captures:
        opened, refusals = captures.open_missing()
        assert (opened, list(refusals), captures.captured) == (["wg0"], ["eth0"], ("wg0",))


def test_renamed_interface_is_lost_and_the_one_with_its_name_is_captured() -> None:
    interfaces = Interfaces(eth0=ModelCapture(), wg0=ModelCapture([frame(1.0)], is_renamed=True))
    with interfaces.captured() as captures:
        seen = captures.frames(0)
        assert (len(seen.frames), seen.lost) == (1, [InterfaceLost("wg0", "renamed or removed")])
        interfaces["wg0"] = ModelCapture()
        assert captures.open_missing() == (["wg0"], {})
