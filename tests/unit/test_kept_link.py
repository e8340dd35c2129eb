"""The link that systemd keeps: an earlier one is detached once, whatever follows."""

from __future__ import annotations

import errno
import os

import pytest

from mptcp_throttle import systemd
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.lifecycle import kept_link
from mptcp_throttled.lifecycle.kept_link import KeptLink

LINK = 77


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What systemd is told to keep."""
    found: list[int | None] = []
    monkeypatch.setattr(systemd, "keep", lambda _, descriptor: found.append(descriptor))
    return found


@pytest.fixture
def detached(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The links that are detached; the kernel refuses it."""
    found: list[int] = []

    def detach(link: int) -> None:
        found.append(link)
        raise KernelError("bpf link detach", errno.EPERM)

    monkeypatch.setattr(kept_link, "detach_link", detach)
    return found


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> int:
    """The descriptor that an earlier instance has left."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    monkeypatch.setattr(systemd, "take_kept", lambda _: (descriptor,))
    return descriptor


def test_new_link_takes_the_place_of_the_earlier(earlier: int, sent: list[int | None], detached: list[int]) -> None:
    kept = KeptLink()
    kept.replace(LINK)
    kept.forget_earlier()
    assert (sent, detached) == ([LINK], [earlier])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(earlier)


def test_earlier_link_is_forgotten_if_none_takes_its_place(
    earlier: int, sent: list[int | None], detached: list[int]
) -> None:
    kept = KeptLink()
    kept.forget_earlier()
    kept.forget_earlier()
    assert (sent, detached) == ([None], [earlier])


def test_nothing_is_forgotten_where_nothing_was_left(sent: list[int | None], detached: list[int]) -> None:
    KeptLink().forget_earlier()
    assert (sent, detached) == ([], [])
