"""When the kernel is asked, and asked again."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import pytest
from polling import eventually

from mptcp_sniffer import kernel_reader
from mptcp_sniffer.kernel_events import KernelEvent
from mptcp_sniffer.kernel_list import KernelList
from mptcp_sniffer.kernel_reader import KernelReader
from mptcp_sniffer.stop import Stop
from mptcp_throttle.config.schema import SnifferSection
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.ports import Ports


class Subscription(AbstractContextManager[Any]):
    """A subscription that can be read at once, and that fails then."""

    made = 0

    def __init__(self, ports: Ports) -> None:  # noqa: ARG002
        Subscription.made += 1
        self._reader, self._writer = os.pipe()
        os.write(self._writer, b"readable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        return self._reader

    def receive(self) -> Iterator[KernelEvent]:
        raise KernelError("receive events", errno.ENOMEM)


class SilentSubscription(Subscription):
    """A subscription without an event."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        os.read(self._reader, 100)


def test_signal_to_stop_ends_the_wait_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscription, "made", 0)
    monkeypatch.setattr(kernel_reader, "KernelEvents", SilentSubscription)
    monkeypatch.setattr(kernel_reader, "_HOUSEKEEPING_SECONDS", 30.0)
    monkeypatch.setattr(kernel_reader, "list_subflows", lambda _: KernelList(0.0, {}))
    reader = KernelReader(
        Ports.of([8080]), SnifferSection(), lambda _: None, lambda _: None, lambda: False, lambda: False, Stop()
    )
    with reader.running():
        eventually(lambda: Subscription.made == 1, "subscribed")
        began = time.monotonic()
    assert time.monotonic() - began < 15


def test_kernel_events_are_subscribed_to_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Subscription, "made", 0)
    monkeypatch.setattr(kernel_reader, "KernelEvents", Subscription)
    monkeypatch.setattr(kernel_reader, "_RESUBSCRIBE_SECONDS", 0.0)
    monkeypatch.setattr(kernel_reader, "list_subflows", lambda _: KernelList(0.0, {}))
    reader = KernelReader(
        Ports.of([8080]), SnifferSection(), lambda _: None, lambda _: None, lambda: False, lambda: False, Stop()
    )
    with reader.running():
        eventually(lambda: Subscription.made > 2, "subscribed again and again")
    assert [message for message in caplog.messages if "kernel events" in message] == [
        "kernel events are not available: receive events: ENOMEM"
    ]


class Readings:
    """Counts the readings of the kernel list. While `may_end` is not set, a reading goes on."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def read(self, _: Sequence[int]) -> KernelList:
        self.begun += 1
        assert self.may_end.wait(10)
        return KernelList(0.0, {})


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    """Those of a reader that reads once for a request, 0.1 s later."""
    readings = Readings()
    monkeypatch.setattr(kernel_reader, "list_subflows", readings.read)
    monkeypatch.setattr(kernel_reader, "_GATHER_SECONDS", 0.1)
    monkeypatch.setattr(kernel_reader, "_REPEAT_SECONDS", ())
    return readings


def running(*, is_patient: bool = False) -> tuple[KernelReader, AbstractContextManager[None]]:
    settings = SnifferSection.model_validate({"kernel_events": False, "kernel_list_interval": "60s"})
    reader = KernelReader(
        Ports.of([8080]), settings, lambda _: None, lambda _: None, lambda: False, lambda: is_patient, Stop()
    )
    return reader, reader.running()


def test_requests_soon_after_each_other_lead_to_one_reading(readings: Readings) -> None:
    reader, is_running = running()
    with is_running:
        for _ in range(20):
            reader.request()
        eventually(lambda: readings.begun == 2, "the reading after that at the start")
        time.sleep(0.2)
        assert readings.begun == 2


def test_requests_that_are_not_urgent_lead_to_few_readings(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_reader, "_GATHER_SECONDS", 0.0)
    monkeypatch.setattr(kernel_reader, "_PATIENT_SECONDS", 0.4)
    reader, is_running = running(is_patient=True)
    with is_running:
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < 1.0:
            reader.request()
            time.sleep(0.001)
        assert 2 <= readings.begun <= 2 + elapsed / 0.4


def test_request_during_a_reading_leads_to_another(readings: Readings) -> None:
    reader, is_running = running()
    with is_running:
        readings.may_end.clear()
        reader.request()
        eventually(lambda: readings.begun == 2, "a reading")
        reader.request()
        readings.may_end.set()
        eventually(lambda: readings.begun == 3, "another reading")


def test_list_is_not_read_at_the_end(readings: Readings) -> None:
    reader, is_running = running()
    with is_running:
        reader.request()
    assert readings.begun == 1
