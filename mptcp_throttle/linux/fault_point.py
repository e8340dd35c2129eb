"""Calls into the kernel: an OSError becomes KernelError, and the lab can inject faults.

Production never injects faults.
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
    """Call `inject` before each call into the kernel, with its name; None stops that.

    An OSError that `inject` raises is handled as if the kernel had answered it.
    """
    global _inject
    _inject = inject


def fault_point(what: str) -> None:
    """To be called before each call into the kernel; `what` names it as an operator would type it."""
    if _inject is not None:
        _inject(what)


def injects() -> bool:
    """Whether fault injection is on."""
    return _inject is not None


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn an OSError into KernelError, which names `what` was tried."""
    try:
        yield
    except OSError as error:
        raise KernelError(what, error.errno or errno.EIO) from error
