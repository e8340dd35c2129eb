"""The pace of throttled subflows: SO_MAX_PACING_RATE of the proxy's own sockets, set by a sock_ops program.

MPTCP's scheduler (net/mptcp/protocol.c, mptcp_subflow_get_send) gives the next data to the subflow that would finish
it first: bytes queued divided by the socket's pacing rate. It does not see qdiscs. A subflow that HTB limits to 1 Mb/s
still appears to offer hundreds, is given hundreds of kilobytes, and the whole connection waits for them. With a pace
equal to its part of the cap, the scheduler gives it only what it can deliver.

The sockets belong to the proxy, so a program on the proxy's cgroup sets their pace (`pace_program`).
"""

from __future__ import annotations

import errno
import math
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from struct import Struct
from types import MappingProxyType
from typing import Final

from mptcp_throttle.linux import ebpf
from mptcp_throttle.linux.kernel_error import KernelError, os_errors
from mptcp_throttle.model import FourTuple
from mptcp_throttled.kernel.pace_program import KEY_BYTES, VALUE_BYTES, map_key, map_value, pace_program
from mptcp_throttled.kernel.proxy_sockets import ProxyCgroup, count_paced
from mptcp_throttled.reconcile.kernel_state import PacingState

# include/uapi/linux/bpf.h
_PROG_TYPE_SOCK_OPS: Final = 13
_ATTACH_SOCK_OPS: Final = 3
# include/uapi/asm-generic/socket.h (x86 and arm64)
_SO_NETNS_COOKIE: Final = 71
_COOKIE: Final = Struct("=Q")

_MAX_SUBFLOWS: Final = 65536
"""Map entries. A batch of paces that would exceed them is refused as a whole; HTB still holds those rates."""

# Finding the proxy's cgroup lists sockets and may list directories: too slow to do for every subflow.
_FIND_SECONDS: Final = 1.0
_RELEASE_SECONDS: Final = 1.0
_RELEASE_POLL_SECONDS: Final = 0.02


class PacedSockets:
    """The program on the proxy's cgroup, and its map, until `close` or the end of this process.

    `cgroup` is the directory to attach to; None finds it from the listeners on `ports`.
    """

    def __init__(self, ports: Sequence[int], cgroup: Path | None = None) -> None:
        self._ports = ports
        self._configured = cgroup
        self._proxy = ProxyCgroup(ports)
        self._attached: _Attached | None = None
        self._paces: dict[FourTuple, int] = {}
        self._snapshot: PacingState | None = None
        self._find_at = -math.inf
        self._problem = ""

    def read(self) -> PacingState:
        """The paces that are set; first attaches the program if it is not attached or if the proxy's cgroup is another.

        While the proxy restarts, or its cgroup cannot be found, the program stays where it is, so that paces can
        still be removed.
        """
        now = time.monotonic()
        if now >= self._find_at:
            self._find_at = now + _FIND_SECONDS
            self._follow_proxy()
        if self._attached is None:
            return PacingState(None, self._problem)
        if self._snapshot is None:
            self._snapshot = PacingState(MappingProxyType(dict(self._paces)))
        return self._snapshot

    def _follow_proxy(self) -> None:
        try:
            cgroup = self._configured or self._proxy.find()
            if self._attached is None or self._attached.identity != _identity(cgroup):
                self.close()
                self._attached = _Attached(cgroup, self._ports)
        except KernelError as error:
            self._problem = str(error)

    def change(self, add: Mapping[FourTuple, int], remove: Collection[FourTuple]) -> None:
        """Remove and add paces, in bytes/s; a socket follows at its next RTT sample. Raises KernelError."""
        if self._attached is None:
            raise KernelError("set the pace of sockets", errno.ENODEV, "the program is not attached")
        self._snapshot = None
        for ends in remove:
            try:
                ebpf.delete_from_map(self._attached.map, map_key(ends))
            except KernelError as error:
                # The key may be gone with that of the same client end at another proxy address (`map_key`).
                if error.number != errno.ENOENT:
                    raise
            self._paces.pop(ends, None)
        if add:
            self._add(self._attached.map, add)

    def _add(self, to: int, paces: Mapping[FourTuple, int]) -> None:
        try:
            ebpf.update_map(to, {map_key(ends): map_value(pace) for ends, pace in paces.items()})
        except KernelError:
            for ends in paces:
                self._paces.pop(ends, None)
                with suppress(KernelError):
                    ebpf.delete_from_map(to, map_key(ends))
            raise
        self._paces.update(paces)

    def release(self) -> int:
        """Wait up to a second for sockets to lose their paces; the number that still have one. Raises KernelError."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        while self._attached is not None and (paced := count_paced(self._ports)):
            if time.monotonic() > deadline:
                return paced
            time.sleep(_RELEASE_POLL_SECONDS)
        return 0

    def close(self) -> None:
        """Detach the program and drop its map."""
        if self._attached is not None:
            self._attached.close()
        self._attached = None
        self._paces = {}
        self._snapshot = None


class _Attached:
    """The program and its map, attached to one cgroup; `identity` tells whether a path still leads to that cgroup."""

    def __init__(self, cgroup: Path, ports: Sequence[int]) -> None:
        self.identity = _identity(cgroup)
        with ExitStack() as stack:
            with os_errors(f"cgroup {cgroup}"):
                target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, target)
            self.map = ebpf.create_hash_map(KEY_BYTES, VALUE_BYTES, _MAX_SUBFLOWS)
            undo = stack.enter_context(ExitStack())
            undo.callback(os.close, self.map)
            program = ebpf.load_program(_PROG_TYPE_SOCK_OPS, pace_program(ports, _netns_cookie(), self.map))
            stack.callback(os.close, program)
            self._link = ebpf.link(program, target, _ATTACH_SOCK_OPS)
            undo.pop_all()

    def close(self) -> None:
        os.close(self._link)
        os.close(self.map)


def _netns_cookie() -> int:
    """The cookie of this network namespace (Linux 5.14)."""
    with os_errors("getsockopt SO_NETNS_COOKIE"), socket.socket(socket.AF_UNIX) as any_socket:
        (cookie,) = _COOKIE.unpack(any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))
    return int(cookie)


def _identity(cgroup: Path) -> tuple[int, int]:
    """Device and inode number."""
    with os_errors(f"cgroup {cgroup}"):
        found = cgroup.stat()
        return found.st_dev, found.st_ino
