"""Calls into the kernel that are refused in this process."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mptcp_throttle.linux.kernel_error import set_faults


@contextmanager
def refused(*calls: str, number: int = errno.ENOENT, times: int | None = None) -> Iterator[None]:
    """Inside the block, calls are refused whose name starts with one of `calls`: all, or the first `times` of them."""
    count = 0

    def refuse(requests: Sequence[str]) -> list[OSError | None]:
        return [fault(what) for what in requests]

    def fault(what: str) -> OSError | None:
        nonlocal count
        if not what.startswith(calls) or count == times:
            return None
        count += 1
        return OSError(number, what)

    set_faults(refuse)
    try:
        yield
    finally:
        set_faults(None)
    assert times is None or count == times
