"""Netlink requests without pyroute2, sent many at a time, acknowledged one by one.

With thousands of classes the time that it takes for a message counts, and at every JOIN.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
from collections.abc import Sequence
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

from mptcp_throttle.linux.fault_point import fault_point, injects, os_errors
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink import HEADER, attributes, messages, pack

# include/uapi/linux/netlink.h; pyroute2 has no names for these.
_NLMSGERR_ATTR_MSG: Final = 1
_NETLINK_CAP_ACK: Final = 10

_ERROR: Final = Struct("=i")

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
    body: bytes


class NetlinkRequests:
    """A socket for them, of a netlink protocol (socket.NETLINK_...). Raises OSError if the kernel has no such."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        bind(self._socket)
        for option in (_NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._sequence = itertools.count(1)

    @property
    def port(self) -> int:
        """The netlink port (nlmsg_pid) of our requests."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

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
                packed = (pack(r.type, r.flags | flags, n, r.body) for r, n in zip(requests, numbers, strict=True))
                self._socket.send(b"".join(packed))
                answers: dict[int, tuple[int, str]] = {}
                while numbers[-1] not in answers:
                    for kind, flags, number, payload in messages(self._socket.recv(_RECEIVE_BYTES)):
                        if kind == NLMSG_ERROR:
                            answers[number] = _answer(payload, flags)
        except KernelError as error:
            return [error] * len(requests)
        return [
            KernelError(request.what, *answers[number]) if answers[number][0] else None
            for request, number in zip(requests, numbers, strict=True)
        ]

    def dump(self, request: Request) -> list[bytes]:
        """What the kernel answers with, without the headers. Raises KernelError."""
        for _ in range(_DUMP_ATTEMPTS):
            with os_errors(request.what):
                fault_point(request.what)
                found = self._dump(request)
            if found is not None:
                return found
        raise KernelError(request.what, errno.EINTR, "others keep changing what is read")

    def _dump(self, request: Request) -> list[bytes] | None:
        number = next(self._sequence)
        self._socket.send(pack(request.type, NLM_F_REQUEST | NLM_F_DUMP, number, request.body))
        found: list[bytes] = []
        interrupted = False
        while True:
            for kind, flags, answered, payload in messages(self._socket.recv(_RECEIVE_BYTES)):
                if answered != number:
                    continue  # the rest of an answer that was given up
                interrupted |= bool(flags & NLM_F_DUMP_INTR)
                # A dump that ends early says why at its end (netlink_dump, net/netlink/af_netlink.c).
                if kind in {NLMSG_DONE, NLMSG_ERROR} and (error := _answer(payload, flags)[0]):
                    raise OSError(error, os.strerror(error))
                if kind == NLMSG_DONE:
                    return None if interrupted else found
                found.append(payload)


def bind(netlink_socket: socket.socket, groups: int = 0) -> None:
    """Give a socket a port that pyroute2 does not count on, and let it join groups. Raises KernelError."""
    for number in _OWN_PORTS:
        with contextlib.suppress(OSError):
            return netlink_socket.bind((os.getpid() | number << _PID_BITS, groups))
    raise KernelError("bind a netlink socket", errno.EADDRINUSE)


def _answer(payload: bytes, flags: int) -> tuple[int, str]:
    """The errno number, 0 for none, and what the kernel has to say about it."""
    number = -_ERROR.unpack_from(payload)[0]
    text = b""
    if flags & NLM_F_ACK_TLVS:
        # After the number comes the header of the request.
        text = attributes(payload[_ERROR.size + HEADER.size :]).get(_NLMSGERR_ATTR_MSG, b"")
    return number, text.rstrip(b"\0").decode(errors="replace")
