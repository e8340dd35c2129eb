"""Calls into the kernel: what it refuses becomes KernelError, and the lab injects faults. Production has none."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyroute2.netlink.exceptions import NetlinkError

_inject: Callable[[Sequence[str]], Sequence[OSError | None]] | None = None


class KernelError(Exception):
    """The kernel refused `what`; `number` is the errno it answered, `remedy` a hint for the operator."""

    def __init__(self, what: str, number: int, remedy: str = "") -> None:
        name = errno.errorcode.get(number, str(number))
        super().__init__(f"{what}: {name}{f' ({remedy})' if remedy else ''}")
        self.number = number


def set_faults(inject: Callable[[Sequence[str]], Sequence[OSError | None]] | None) -> None:
    """Call `inject` before each call into the kernel, with the names of all requests that the call carries.

    For each request it returns None, or the error to be taken for the kernel's answer: such a request is not sent.
    """
    global _inject
    _inject = inject


def injected_errors(requests: Sequence[str]) -> list[KernelError | None]:
    """A call with these requests, named as an operator would type them, is about to be made: the injected errors."""
    if _inject is None:
        return [None] * len(requests)
    return [
        None if error is None else KernelError(what, error.errno or errno.EIO)
        for what, error in zip(requests, _inject(requests), strict=True)
    ]


def fault_point(what: str) -> None:
    """A call of one request is about to be made. Raises KernelError if a fault is injected."""
    (error,) = injected_errors([what])
    if error is not None:
        raise error


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn an OSError into KernelError, which names the attempted operation `what`."""
    try:
        yield
    except OSError as error:
        raise KernelError(what, error.errno or errno.EIO) from error


@contextmanager
def decoding_errors(what: str) -> Iterator[None]:
    """Turn what decoding raises for a message that is cut or damaged into KernelError with EBADMSG."""
    try:
        yield
    except (struct.error, LookupError, ValueError) as error:
        raise KernelError(what, errno.EBADMSG, "the kernel's message is cut or damaged") from error


@contextmanager
def netlink_call(what: str) -> Iterator[None]:
    """Turn pyroute2's NetlinkError and OSError into KernelError, which names the attempted operation `what`."""
    try:
        with os_errors(what):
            fault_point(what)
            yield
    except NetlinkError as error:
        detail = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], str) else ""
        raise KernelError(what, error.code, detail) from error
