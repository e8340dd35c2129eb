"""When the kernel is asked, and asked again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import pytest
from polling import eventually

from mptcp_sniffer import kernel_reader
from mptcp_sniffer.kernel_events import KernelEvent
from mptcp_sniffer.kernel_list import KernelList
from mptcp_sniffer.kernel_reader import KernelReader
from mptcp_throttle.config.schema import SnifferSection
from mptcp_throttle.linux.kernel_error import KernelError


class Subscription(AbstractContextManager[Any]):
    """A subscription that can be read at once, and that fails then."""

    made = 0

    def __init__(self, ports: Sequence[int]) -> None:  # noqa: ARG002
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


def test_kernel_events_are_subscribed_to_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Subscription, "made", 0)
    monkeypatch.setattr(kernel_reader, "KernelEvents", Subscription)
    monkeypatch.setattr(kernel_reader, "_RESUBSCRIBE_SECONDS", 0.0)
    monkeypatch.setattr(kernel_reader, "list_subflows", lambda _: KernelList(0.0, {}))
    reader = KernelReader([8080], SnifferSection(), lambda _: None, lambda _: None, lambda: False)
    with reader.running():
        eventually(lambda: Subscription.made > 2, "subscribed again and again")
    assert [message for message in caplog.messages if "kernel events" in message] == [
        "kernel events are not available: receive events: ENOMEM"
    ]
