"""pyroute2's netlink sockets, whose waits for an answer end after `ANSWER_SECONDS`.

pyroute2 0.9 has no timeout: it waits in an event loop, where SO_RCVTIMEO of the socket has no effect.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from mptcp_throttle.linux.netlink_socket import ANSWER_SECONDS

T = TypeVar("T")


class _TimedLoop(asyncio.SelectorEventLoop):
    """pyroute2 gives each wait for a message to this method."""

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        try:
            return super().run_until_complete(asyncio.wait_for(future, ANSWER_SECONDS))
        except TimeoutError as error:
            raise OSError(errno.ETIMEDOUT, f"no answer for {ANSWER_SECONDS:g} s") from error


@contextmanager
def timed(kind: Callable[..., AbstractContextManager[T]]) -> Iterator[T]:
    """Open a socket of a `kind` of pyroute2, such as IPRoute. Raises what pyroute2 raises.

    Its methods raise OSError with ETIMEDOUT, too: the kernel has not answered for 5 s.
    """
    loop = _TimedLoop()
    try:
        with kind(use_event_loop=loop) as opened:
            yield opened
    finally:
        if not loop.is_closed():  # IPRoute leaves it open
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
