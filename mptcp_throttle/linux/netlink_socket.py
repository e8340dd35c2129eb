"""The netlink socket of daemon, sniffer and lab: dumps, batches of changes, notifications.

It sends many changes in one datagram; pyroute2 waits for the answer to one request before it sends the next.
docs/explanation/own-code.md has the figures.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Self, TypeVar

from pyroute2 import netlink

from mptcp_throttle.linux.cbpf import Instruction, attach_filter
from mptcp_throttle.linux.kernel_error import KernelError, decoding_errors, fault_point, injected_errors, os_errors
from mptcp_throttle.linux.netlink_codec import Message, messages, pack, status

T = TypeVar("T")

ANSWER_SECONDS: Final = 5.0
"""The kernel answers before the call that sends the request returns. What has not come by then was dropped."""

_NETLINK_ADD_MEMBERSHIP, _NETLINK_CAP_ACK = 1, 10  # include/uapi/linux/netlink.h; pyroute2 has no names for them
# An answer takes some 800 bytes of the receive buffer, of which there are 212 992 (net.core.rmem_default).
_BATCH: Final = 64
_PID_BITS: Final = 22  # include/linux/threads.h, PID_MAX_LIMIT
# pyroute2 numbers its sockets in the bits above the process id: 0, and 20 to 199, without asking the kernel.
_PORT_NUMBERS: Final = range(200, 1024)
_RECEIVE_BYTES: Final = 2**18  # no datagram is longer: netlink_recvmsg and netlink_dump, net/netlink/af_netlink.c
_SEND_BYTES: Final = 100_000  # what fits into the send buffer (net.core.wmem_default) with the kernel's overhead
_SO_SNDBUFFORCE: Final = 32  # include/uapi/asm-generic/socket.h
_DUMP_ATTEMPTS: Final = 5
_DONE: Final = (0, "")  # no error number, no explanation
# The port of a socket that is opened again is free for a moment: no other thread may take it.
_one_takes_a_port: Final = threading.Lock()


class DumpInterrupted(KernelError):
    """What was dumped has changed during the dump (NLM_F_DUMP_INTR): entries may be missing, or be there twice."""

    def __init__(self, what: str) -> None:
        super().__init__(what, errno.EINTR, "it keeps changing while it is read")


class Request(NamedTuple):
    """A netlink request; `what` names it as an operator would type it.

    `flags` are NLM_F_..., without those that all dumps or all changes have.
    """

    what: str
    type: int
    flags: int
    payload: bytes


class NetlinkSocket:
    """A socket of a netlink protocol (socket.NETLINK_...). All methods raise KernelError.

    With `groups`, a bit mask, it receives the notifications of these multicast groups that pass the `program`.
    After a dump that was not read to its end, the next one opens the socket again: with the same port, in the network
    namespace of that time, and without the groups of `join`.
    """

    def __init__(self, protocol: int, groups: int = 0, program: Sequence[Instruction] = ()) -> None:
        self._protocol, self._groups, self._program = protocol, groups, program
        self._sequence = itertools.count(1)
        self._number = _PORT_NUMBERS[0]
        self._is_dumping = False
        with os_errors("open a netlink socket"):
            self._socket = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The netlink port (nlmsg_pid) of our requests."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def fileno(self) -> int:
        """For select()."""
        return self._socket.fileno()

    def join(self, group: int) -> None:
        """Receive the notifications of a further group, by its number, as generic netlink gives them."""
        with os_errors(f"join netlink group {group}"):
            self._socket.setsockopt(netlink.SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)

    def notifications(self) -> Iterator[Message]:
        """Wait for notifications. Raises KernelError: with ENOBUFS if the kernel had to drop some."""
        what = "receive netlink notifications"
        with os_errors(what), decoding_errors(what):
            yield from self._receive()

    def carry_out(self, requests: Sequence[Request]) -> list[KernelError | None]:
        """Make the changes in order, also if some are refused; for each, the kernel's refusal.

        Once the kernel has not answered, the others are not sent: the waits would add up.
        """
        refusals: list[KernelError | None] = []
        while len(refusals) < len(requests):
            refusals += self._carry_out(requests[len(refusals) : len(refusals) + _BATCH])
            last = refusals[-1]
            if last is not None and last.number == errno.ETIMEDOUT:
                refusals += [last] * (len(requests) - len(refusals))
        return refusals

    def carry_out_together(self, what: str, requests: Sequence[Request]) -> None:
        """Make all changes, or none if one is refused: for nfnetlink, of a batch with its begin and end.

        The kernel answers only what it refuses, before the call that sends the batch returns.
        """
        fault_point(what)
        with os_errors(what), decoding_errors(what):
            sequences = [next(self._sequence) for _ in requests]
            packed = b"".join(
                pack(r.type, r.flags | netlink.NLM_F_REQUEST, sequence, r.payload)
                for sequence, r in zip(sequences, requests, strict=True)
            )
            if len(packed) > _SEND_BYTES:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, len(packed))
            self._socket.send(packed)
            for message in self._received():
                number, explanation = status(message) if message.type == netlink.NLMSG_ERROR else (0, "")
                if number and message.sequence in sequences:
                    raise KernelError(what, number, explanation)

    def get(self, request: Request) -> list[bytes]:
        """The payloads that the kernel answers a request with that is no dump."""
        return list(self._answers(request, netlink.NLM_F_ACK))

    def dump(self, request: Request) -> list[bytes]:
        """The payloads that the kernel answers with, as they were at one time."""
        return read_consistently(lambda: list(self.stream(request)))

    def stream(self, request: Request) -> Iterator[bytes]:
        """The payloads that the kernel answers with, as they arrive.

        Raises DumpInterrupted at the end if all that was yielded is void: read it in `read_consistently`.
        """
        if self._is_dumping:
            # The kernel would refuse this one (EBUSY) until the earlier one has been read.
            with os_errors(request.what):
                self._socket = self._open(instead_of=self._socket)
        self._is_dumping = True
        yield from self._answers(request, netlink.NLM_F_DUMP)

    def _answers(self, request: Request, flags: int) -> Iterator[bytes]:
        fault_point(request.what)
        with os_errors(request.what), decoding_errors(request.what):
            sequence = next(self._sequence)
            flags |= netlink.NLM_F_REQUEST | request.flags
            self._socket.send(pack(request.type, flags, sequence, request.payload))
            interrupted = False
            while True:
                for message in self._answer(request.what):
                    if message.sequence != sequence:
                        continue  # the rest of an earlier answer
                    interrupted |= bool(message.flags & netlink.NLM_F_DUMP_INTR)
                    if message.type == netlink.NLMSG_DONE:
                        self._is_dumping = False
                    if message.type in {netlink.NLMSG_DONE, netlink.NLMSG_ERROR}:
                        # NLMSG_DONE too carries an error, if the dump ended early (netlink_dump_done, af_netlink.c).
                        number, explanation = status(message)
                        if number:
                            raise KernelError(request.what, number, explanation)
                        if interrupted:
                            raise DumpInterrupted(request.what)
                        return
                    yield message.payload

    def _carry_out(self, requests: Sequence[Request]) -> list[KernelError | None]:
        refusals = injected_errors([request.what for request in requests])
        sent = {next(self._sequence): n for n, refusal in enumerate(refusals) if refusal is None}
        if not sent:
            return refusals
        try:
            with os_errors(requests[0].what), decoding_errors(requests[0].what):
                answers = self._exchange({sequence: requests[n] for sequence, n in sent.items()})
        except KernelError as error:
            # After ENOBUFS the kernel drops answers silently until all that has arrived is read (netlink_overrun).
            with contextlib.suppress(OSError, ValueError):
                self._received()
            return [refusal or error for refusal in refusals]
        for sequence, n in sent.items():
            number, explanation = answers.get(sequence, _DONE)
            if number:
                refusals[n] = KernelError(requests[n].what, number, explanation)
        return refusals

    def _exchange(self, requests: dict[int, Request]) -> dict[int, tuple[int, str]]:
        """Send these requests as one datagram; what the kernel answers to them, by sequence number.

        It carries them out in order, answers those that it refuses, and acknowledges only the last.
        """
        *_, last = requests
        packed = [
            pack(
                r.type,
                r.flags | netlink.NLM_F_REQUEST | (netlink.NLM_F_ACK if sequence == last else 0),
                sequence,
                r.payload,
            )
            for sequence, r in requests.items()
        ]
        self._socket.send(b"".join(packed))
        answers: dict[int, tuple[int, str]] = {}
        while last not in answers:
            for message in self._answer(requests[last].what):
                if message.type == netlink.NLMSG_ERROR and message.sequence in requests:
                    answers[message.sequence] = status(message)
        return answers

    def _answer(self, what: str) -> Iterator[Message]:
        """The next datagram of the kernel's answer."""
        with contextlib.suppress(BlockingIOError):
            return self._receive(socket.MSG_DONTWAIT)
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if not waiting.poll(1000 * ANSWER_SECONDS):
            raise KernelError(what, errno.ETIMEDOUT, f"the kernel has not answered for {ANSWER_SECONDS:g} s")
        return self._receive()

    def _receive(self, flags: int = 0) -> Iterator[Message]:
        return messages(self._socket.recv(_RECEIVE_BYTES, flags))

    def _received(self) -> list[Message]:
        """What has arrived, without waiting."""
        received: list[Message] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                received += self._receive(socket.MSG_DONTWAIT)
        return received

    def _open(self, instead_of: socket.socket | None = None) -> socket.socket:
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, self._protocol))
            for option in (_NETLINK_CAP_ACK, netlink.NETLINK_EXT_ACK):
                opened.setsockopt(netlink.SOL_NETLINK, option, 1)
            if self._program:
                attach_filter(opened, self._program)
            with _one_takes_a_port:
                if instead_of is not None:
                    instead_of.close()
                self._bind(opened)
            stack.pop_all()
            return opened

    def _bind(self, opened: socket.socket) -> None:
        """Take the port of before, or one that pyroute2 does not count on."""
        for number in (self._number, *_PORT_NUMBERS):
            with contextlib.suppress(OSError):
                opened.bind((os.getpid() | number << _PID_BITS, self._groups))
                self._number = number
                return
        raise OSError(errno.EADDRINUSE, "no free netlink port")


def read_consistently(read: Callable[[], T]) -> T:
    """What `read` returns once no dump in it was interrupted; a few attempts. Raises DumpInterrupted after the last."""
    for _ in range(_DUMP_ATTEMPTS - 1):
        with contextlib.suppress(DumpInterrupted):
            return read()
    return read()
