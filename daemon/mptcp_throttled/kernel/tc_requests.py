"""tc messages in numbers: packed by hand, sent many at a time, acknowledged one by one.

pyroute2 takes half a millisecond to encode or decode one, which counts with thousands of classes.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from pyroute2.netlink import (
    NETLINK_EXT_ACK,
    NLM_F_ACK,
    NLM_F_ACK_TLVS,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
)

from mptcp_throttled.kernel.fault_point import fault_point, injects, os_errors
from mptcp_throttled.kernel_state import KernelError

# include/uapi/linux/netlink.h; pyroute2 has no names for these.
_NLMSGERR_ATTR_MSG: Final = 1
_NETLINK_CAP_ACK: Final = 10

_HEADER: Final = Struct("=IHHII")
_TCMSG: Final = Struct("=BxxxiIII")
_ERROR: Final = Struct("=i")
_ATTRIBUTE: Final = Struct("=HH")
_KIND_MASK: Final = 0x3FFF  # without the flags of nested attributes and of byte order

# An acknowledgement takes some 800 bytes of the receive buffer, of which there are 212 992 (net.core.rmem_default).
_BATCH: Final = 64
_PID_BITS: Final = 22  # include/linux/threads.h, PID_MAX_LIMIT
# What netlink ports have above them: pyroute2 takes 0 and 20 to 199 for its sockets, without asking.
_OWN_PORTS: Final = range(200, 1024)
_RECEIVE_BYTES: Final = 2**18
_DUMP_ATTEMPTS: Final = 5


class Request(NamedTuple):
    """A change, and its name as an operator would type it. `flags` are NLM_F_..., besides those all requests have."""

    what: str
    type: int
    flags: int
    interface: int
    handle: int
    parent: int
    attributes: bytes = b""


class TcMessage(NamedTuple):
    """A qdisc or class of a dump."""

    interface: int
    handle: int
    parent: int
    attributes: dict[int, bytes]


class TcRequests:
    """A socket for them."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._bind()
        for option in (_NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._sequence = itertools.count(1)

    def _bind(self) -> None:
        for number in _OWN_PORTS:
            with contextlib.suppress(OSError):
                return self._socket.bind((os.getpid() | number << _PID_BITS, 0))
        raise KernelError("bind a netlink socket", errno.EADDRINUSE)

    @property
    def port(self) -> int:
        """The netlink port (nlmsg_pid) of our requests."""
        return int(self._socket.getsockname()[0])

    def carry_out(self, requests: Sequence[Request]) -> list[KernelError | None]:
        """Make the changes in order, whatever comes of others; for each, why it was refused."""
        refusals: list[KernelError | None] = []
        # A fault strikes between two requests, so there must be two.
        size = 1 if injects() else _BATCH
        for start in range(0, len(requests), size):
            refusals += self._carry_out(requests[start : start + size])
        return refusals

    def _carry_out(self, requests: Sequence[Request]) -> list[KernelError | None]:
        try:
            with os_errors(requests[0].what):
                for request in requests:
                    fault_point(request.what)
                first = next(self._sequence)
                numbers = [first, *itertools.islice(self._sequence, len(requests) - 1)]
                flags = NLM_F_REQUEST | NLM_F_ACK
                packed = (_pack(r, r.flags | flags, n) for r, n in zip(requests, numbers, strict=True))
                self._socket.send(b"".join(packed))
                answers: dict[int, tuple[int, str]] = {}
                while numbers[-1] not in answers:
                    for kind, flags, number, payload in _messages(self._socket.recv(_RECEIVE_BYTES)):
                        if kind == NLMSG_ERROR:
                            answers[number] = _answer(payload, flags)
        except KernelError as error:
            return [error] * len(requests)
        return [
            KernelError(request.what, *answers[number]) if answers[number][0] else None
            for request, number in zip(requests, numbers, strict=True)
        ]

    def dump(self, what: str, type_: int, index: int = 0) -> list[TcMessage]:
        """All qdiscs or classes, of the interface `index` or of all. Raises KernelError."""
        for _ in range(_DUMP_ATTEMPTS):
            with os_errors(what):
                fault_point(what)
                found = self._dump(Request(what, type_, 0, index, 0, 0))
            if found is not None:
                return found
        raise KernelError(what, errno.EINTR, "others keep changing what is read")

    def _dump(self, request: Request) -> list[TcMessage] | None:
        number = next(self._sequence)
        self._socket.send(_pack(request, NLM_F_REQUEST | NLM_F_DUMP, number))
        found: list[TcMessage] = []
        interrupted = False
        while True:
            for kind, flags, answered, payload in _messages(self._socket.recv(_RECEIVE_BYTES)):
                if answered != number:
                    continue  # the rest of an answer that was given up
                interrupted |= bool(flags & NLM_F_DUMP_INTR)
                if kind == NLMSG_DONE:
                    return None if interrupted else found
                if kind == NLMSG_ERROR:
                    error = _answer(payload, flags)[0]
                    raise OSError(error, os.strerror(error))
                _, index, handle, parent, _ = _TCMSG.unpack_from(payload)
                found.append(TcMessage(index, handle, parent, attributes(payload[_TCMSG.size :])))


def attributes(data: bytes) -> dict[int, bytes]:
    """Netlink attributes by type, without their flags."""
    found, offset = {}, 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _KIND_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


def attribute(kind: int, payload: bytes) -> bytes:
    """One netlink attribute."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def _pack(request: Request, flags: int, number: int) -> bytes:
    body = _TCMSG.pack(0, request.interface, request.handle, request.parent, 0) + request.attributes
    return _HEADER.pack(_HEADER.size + len(body), request.type, flags, number, 0) + body


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, number, _ = _HEADER.unpack_from(data, offset)
        yield kind, flags, number, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def _answer(payload: bytes, flags: int) -> tuple[int, str]:
    """The errno number, 0 for none, and what the kernel has to say about it."""
    number = -_ERROR.unpack_from(payload)[0]
    text = b""
    if flags & NLM_F_ACK_TLVS:
        # After the number comes the header of the request.
        text = attributes(payload[_ERROR.size + _HEADER.size :]).get(_NLMSGERR_ATTR_MSG, b"")
    return number, text.rstrip(b"\0").decode(errors="replace")
