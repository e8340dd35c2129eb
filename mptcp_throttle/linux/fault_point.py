"""The edge of the kernel: what the system refuses becomes KernelError, and the lab makes it refuse.

In production no faults are ever set.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mptcp_throttle.linux.kernel_error import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_inject: Callable[[str], None] | None = None


def set_faults(inject: Callable[[str], None] | None) -> None:
    """Call `inject` with the name of every call into the kernel before it is made.

    An OSError that it raises is taken for the kernel's answer.
    """
    global _inject
    _inject = inject


def fault_point(what: str) -> None:
    """A call into the kernel, named as an operator would type it, is about to be made."""
    if _inject is not None:
        _inject(what)


def injects() -> bool:
    """Whether calls are made to go wrong."""
    return _inject is not None


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn an OSError into KernelError, which says `what` was tried."""
    try:
        yield
    except OSError as error:
        raise KernelError(what, error.errno or errno.EIO) from error
