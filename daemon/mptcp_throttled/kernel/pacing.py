"""The pace of held subflows: SO_MAX_PACING_RATE of the proxy's own sockets, set by a sock_ops program.

MPTCP's scheduler (net/mptcp/protocol.c, mptcp_subflow_get_send) gives the next data to the subflow that would be done
with it first: what is queued divided by the socket's pacing rate. It cannot see a qdisc. A subflow that HTB holds to
1 Mb/s still promises hundreds, is given hundreds of kilobytes, and everybody waits for them. With its pace set to its
share of the cap, it promises what it can keep.

The sockets are somebody else's, so a program on their cgroup sets it: when a connection to a proxy port is established
it asks to be called at every RTT sample, and then sets what the map has for the remote end. A socket that has a pace
and is not in the map loses it: so the next instance frees what one that was killed has left. A cgroup may hold the
sockets of several network namespaces, each with a daemon of its own: the program leaves those of others alone.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address
from pathlib import Path
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from mptcp_throttle.linux import ebpf
from mptcp_throttle.linux.ebpf import R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10
from mptcp_throttle.linux.fault_point import os_errors
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.kernel.sockets import count_paced, listener_cgroups
from mptcp_throttled.reconcile.kernel_state import PacingState

if TYPE_CHECKING:
    from mptcp_throttle.model import FourTuple

# include/uapi/linux/bpf.h
_PROG_TYPE_SOCK_OPS: Final = 13
_ATTACH_SOCK_OPS: Final = 3
_PASSIVE_ESTABLISHED: Final = 5
_RTT: Final = 12
_RTT_FLAG: Final = 1 << 3
_MAP_LOOKUP_ELEM: Final = 1
_SETSOCKOPT: Final = 49
_GETSOCKOPT: Final = 57
_SOCK_OPS_CB_FLAGS_SET: Final = 59
_KTIME_GET_NS: Final = 5
_GET_NETNS_COOKIE: Final = 122
# Offsets in struct bpf_sock_ops.
_OP, _FAMILY, _REMOTE_IP4, _REMOTE_IP6, _REMOTE_PORT, _LOCAL_PORT = 0, 20, 24, 32, 64, 68
_MSS, _RATE_DELIVERED, _RATE_INTERVAL_US = 112, 120, 124

_AF_INET: Final = 2
# include/uapi/asm-generic/socket.h, of x86 and arm64; include/uapi/linux/tcp.h
_SOL_SOCKET: Final = 1
_SO_MAX_PACING_RATE: Final = 47
_SO_NETNS_COOKIE: Final = 71
_SOL_TCP: Final = 6
_TCP_NOTSENT_LOWAT: Final = 25

_UNLIMITED: Final = 0xFFFF_FFFF  # net/core/sock.c: ~0 of 32 bits is no limit
# What waits in a socket: 16 ms of its pace, and a segment.
_NOTSENT_BITS: Final = 6
_NOTSENT_BYTES: Final = 1448
# The descent takes 2^9 ticks of 2^20 ns: 0.54 s.
_TICK_BITS: Final = 20
_DESCENT_BITS: Final = 9
# Finding the proxy's cgroup takes a listing of sockets and of directories: not at every subflow.
_LOOK_SECONDS: Final = 1.0
_RELEASE_SECONDS: Final = 1.0
_RELEASE_POLL_SECONDS: Final = 0.02
_MAX_SUBFLOWS: Final = 65536

# What the map holds of a subflow: the pace, and, noted by the program, from which rate and when it began to come down.
_VALUE: Final = Struct("=IIQ")
_TARGET, _INITIAL, _BEGAN = 0, 4, 8
_COOKIE: Final = Struct("=Q")
# The stack: the key (remote address, remote port, local port), and a word for the options.
_ADDRESS, _PORTS, _WORD = -32, -16, -8
_KEY_BYTES: Final = 24
_IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"


def program(ports: Sequence[int], network_namespace: int, map_descriptor: int) -> bytes:
    """The sock_ops program for these local ports, in the network namespace that has this cookie.

    A pace comes down in half a second from the rate at which the subflow has been delivering, so that what is queued in
    the socket when the pace begins still leaves: some 200 kB, of which the reader would otherwise wait for the last.
    The program is called once in a round-trip time.
    """
    return ebpf.assemble(
        (
            ebpf.move(R6, R1),
            ebpf.load(R3, R6, _LOCAL_PORT),
            *(ebpf.jump_if_equal(R3, port, "ours") for port in ports),
            ebpf.jump("done"),
            "ours",
            ebpf.move(R1, R6),
            ebpf.call(_GET_NETNS_COOKIE),
            *ebpf.constant64(R1, network_namespace),
            ebpf.jump_unless_same(R0, R1, "done"),
            ebpf.load(R2, R6, _OP),
            ebpf.jump_if_equal(R2, _RTT, "look up"),
            ebpf.jump_if_equal(R2, _PASSIVE_ESTABLISHED, "established"),
            ebpf.jump("done"),
            "established",
            ebpf.move(R1, R6),
            ebpf.constant(R2, _RTT_FLAG),
            ebpf.call(_SOCK_OPS_CB_FLAGS_SET),
            ebpf.jump("done"),
            "look up",
            *_key_on_stack(),
            *ebpf.load_map(R1, map_descriptor),
            ebpf.move(R2, R10),
            ebpf.add(R2, _ADDRESS),
            ebpf.call(_MAP_LOOKUP_ELEM),
            # r7 = the pace to have, r9 = what the map holds
            ebpf.constant32(R7, _UNLIMITED),
            ebpf.jump_if_equal(R0, 0, "compare"),
            ebpf.move(R9, R0),
            ebpf.load(R7, R9, _TARGET),
            *_descent(),
            "compare",
            ebpf.constant32(R8, _UNLIMITED),
            ebpf.store(R10, _WORD, R8),
            *_option(_GETSOCKOPT, _SOL_SOCKET, _SO_MAX_PACING_RATE),
            ebpf.load(R8, R10, _WORD),
            ebpf.jump_if_same(R7, R8, "done"),
            ebpf.store(R10, _WORD, R7),
            *_option(_SETSOCKOPT, _SOL_SOCKET, _SO_MAX_PACING_RATE),
            # 0 is the default of the network namespace.
            ebpf.store_constant(R10, _WORD, 0),
            ebpf.constant32(R3, _UNLIMITED),
            ebpf.jump_if_same(R7, R3, "lowat"),
            ebpf.shift_right(R7, _NOTSENT_BITS),
            ebpf.add(R7, _NOTSENT_BYTES),
            ebpf.store(R10, _WORD, R7),
            "lowat",
            *_option(_SETSOCKOPT, _SOL_TCP, _TCP_NOTSENT_LOWAT),
            "done",
            ebpf.constant(R0, 1),
            ebpf.leave(),
        )
    )


def _key_on_stack() -> Sequence[ebpf.Instruction | str]:
    words = range(0, 16, 4)
    prefix = [int.from_bytes(_IPV4_MAPPED[at : at + 4], sys.byteorder, signed=True) for at in words[:3]]
    return (
        ebpf.load(R3, R6, _REMOTE_PORT),
        ebpf.store(R10, _PORTS, R3),
        ebpf.load(R3, R6, _LOCAL_PORT),
        ebpf.store(R10, _PORTS + 4, R3),
        ebpf.load(R3, R6, _FAMILY),
        ebpf.jump_if_equal(R3, _AF_INET, "ipv4"),
        *(i for at in words for i in (ebpf.load(R3, R6, _REMOTE_IP6 + at), ebpf.store(R10, _ADDRESS + at, R3))),
        ebpf.jump("key"),
        "ipv4",
        *(ebpf.store_constant(R10, _ADDRESS + at, word) for at, word in zip(words[:3], prefix, strict=True)),
        ebpf.load(R3, R6, _REMOTE_IP4),
        ebpf.store(R10, _ADDRESS + 12, R3),
        "key",
    )


def _descent() -> Sequence[ebpf.Instruction | str]:
    """r7 = max(r7, initial * (1 - elapsed / duration)); the first call notes the time and the initial rate."""
    return (
        ebpf.load64(R3, R9, _BEGAN),
        ebpf.jump_unless_equal(R3, 0, "descend"),
        ebpf.call(_KTIME_GET_NS),
        ebpf.store64(R9, _BEGAN, R0),
        ebpf.load(R8, R6, _RATE_DELIVERED),
        ebpf.load(R3, R6, _MSS),
        ebpf.multiply(R8, R3),
        ebpf.multiply_constant(R8, 1_000_000),
        ebpf.load(R3, R6, _RATE_INTERVAL_US),
        ebpf.divide(R8, R3),
        # ACKs that arrive together make more than 32 bits of it.
        ebpf.constant32(R3, _UNLIMITED),
        ebpf.jump_if_at_least(R3, R8, "initial"),
        ebpf.move(R8, R3),
        "initial",
        ebpf.store(R9, _INITIAL, R8),
        "descend",
        ebpf.call(_KTIME_GET_NS),
        ebpf.load64(R3, R9, _BEGAN),
        ebpf.subtract(R0, R3),
        ebpf.shift_right(R0, _TICK_BITS),
        ebpf.jump_from(R0, 1 << _DESCENT_BITS, "compare"),
        ebpf.load(R8, R9, _INITIAL),
        ebpf.multiply(R0, R8),
        ebpf.shift_right(R0, _DESCENT_BITS),
        ebpf.subtract(R8, R0),
        ebpf.jump_if_at_least(R7, R8, "compare"),
        ebpf.move(R7, R8),
    )


def _option(helper: int, level: int, name: int) -> Sequence[ebpf.Instruction]:
    return (
        ebpf.move(R1, R6),
        ebpf.constant(R2, level),
        ebpf.constant(R3, name),
        ebpf.move(R4, R10),
        ebpf.add(R4, _WORD),
        ebpf.constant(R5, 4),
        ebpf.call(helper),
    )


class PacedSockets:
    """The program on the cgroup in which the proxy listens, and its map, until `close` or the end of this process.

    `cgroup` is the one to use; None finds it. All methods raise KernelError, but not for want of the feature.
    """

    def __init__(self, ports: Sequence[int], cgroup: Path | None = None) -> None:
        self._ports = ports
        self._configured = cgroup
        self._attached: _Attached | None = None
        self._paces: dict[FourTuple, int] = {}
        self._look_at = -math.inf
        self._problem = ""
        self._found: tuple[frozenset[int], Path] | None = None

    def read(self) -> PacingState:
        """The paces in force; the program is attached first if it is not, or if the proxy has moved."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._look()
        # While the proxy restarts, or cannot be asked for, those that have a pace can still lose it.
        return (
            PacingState(None, self._problem) if self._attached is None else PacingState(MappingProxyType(self._paces))
        )

    def _look(self) -> None:
        try:
            cgroup = self._configured or self._listening_cgroup()
            if self._attached is None or self._attached.identity != _identity(cgroup):
                self.close()
                self._attached = _Attached(cgroup, self._ports)
        except KernelError as error:
            self._problem = str(error)

    def _listening_cgroup(self) -> Path:
        """The cgroup of whoever listens on the ports, which is looked for where they have moved to another."""
        listeners = listener_cgroups(self._ports)
        if self._found is None or self._found[0] != listeners:
            self._found = listeners, _find_cgroup(listeners, self._ports)
        return self._found[1]

    def change(self, add: Mapping[FourTuple, int], remove: Collection[FourTuple]) -> None:
        """Take paces out and put others in, in bytes/s; a socket notices at its next ACK."""
        if self._attached is None:
            raise KernelError("pace", errno.ENODEV)
        for ends in remove:
            try:
                ebpf.delete_from_map(self._attached.map, _key(ends))
            except KernelError as error:
                # The same client end may have been at another address of the proxy, which the key does not tell.
                if error.number != errno.ENOENT:
                    raise
            del self._paces[ends]
        if add:
            self._add(self._attached.map, add)

    def _add(self, to: int, paces: Mapping[FourTuple, int]) -> None:
        elements = {_key(ends): _VALUE.pack(min(rate, _UNLIMITED - 1), 0, 0) for ends, rate in paces.items()}
        try:
            ebpf.update_map(to, elements)
        except KernelError:
            for ends in paces:
                self._paces.pop(ends, None)
                with suppress(KernelError):
                    ebpf.delete_from_map(to, _key(ends))
            raise
        self._paces.update(paces)

    def release(self) -> int:
        """Wait a moment for the sockets to lose their paces, each at its next ACK; how many still have one then."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        while self._attached is not None and (paced := count_paced(self._ports)):
            if time.monotonic() > deadline:
                return paced
            time.sleep(_RELEASE_POLL_SECONDS)
        return 0

    def close(self) -> None:
        """Detach the program."""
        if self._attached is not None:
            self._attached.close()
        self._attached = None
        self._paces = {}


class _Attached:
    def __init__(self, cgroup: Path, ports: Sequence[int]) -> None:
        self.identity = _identity(cgroup)
        with ExitStack() as stack:
            with os_errors(f"cgroup {cgroup}"):
                target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, target)
            self.map = ebpf.create_hash_map(_KEY_BYTES, _VALUE.size, _MAX_SUBFLOWS)
            undo = stack.enter_context(ExitStack())
            undo.callback(os.close, self.map)
            loaded = ebpf.load_program(_PROG_TYPE_SOCK_OPS, program(ports, _network_namespace(), self.map))
            stack.callback(os.close, loaded)
            self._link = ebpf.link(loaded, target, _ATTACH_SOCK_OPS)
            undo.pop_all()

    def close(self) -> None:
        os.close(self._link)
        os.close(self.map)


def _find_cgroup(wanted: Collection[int], ports: Sequence[int]) -> Path:
    """The cgroup with this id; of several, the first that holds all."""
    if not wanted:
        raise KernelError(f"nobody listens on port {', '.join(map(str, ports))}", errno.ENOENT)
    # os.walk passes over directories that go away meanwhile, as cgroups do.
    with os_errors("look for the proxy's cgroup"):
        directories = (directory for directory, _, _ in os.walk(_cgroup2_mount()))
        found = [directory for directory in directories if _inode(directory) in wanted]
    if not found:
        raise KernelError("the proxy's cgroup is not below ours", errno.ENOENT)
    return Path(os.path.commonpath(found))


def _inode(directory: str) -> int | None:
    try:
        return os.stat(directory).st_ino
    except FileNotFoundError:
        return None


def _cgroup2_mount() -> Path:
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, file_system = line.partition(" - ")
        if file_system.split()[0] == "cgroup2":
            return Path(fields.split()[4])
    raise KernelError("no cgroup2 file system is mounted", errno.ENOENT)


def _network_namespace() -> int:
    """The cookie of ours (Linux 5.14)."""
    with os_errors("getsockopt SO_NETNS_COOKIE"), socket.socket(socket.AF_UNIX) as any_socket:
        (cookie,) = _COOKIE.unpack(any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))
    return int(cookie)


def _identity(cgroup: Path) -> tuple[int, int]:
    with os_errors(f"cgroup {cgroup}"):
        found = cgroup.stat()
        return found.st_dev, found.st_ino


def _key(ends: FourTuple) -> bytes:
    address = ends.client.address
    packed = _IPV4_MAPPED + address.packed if isinstance(address, IPv4Address) else address.packed
    # bpf_sock_ops has the remote port as a 32-bit number in network byte order, the local one in that of the host.
    return packed + ends.client.port.to_bytes(4, "big") + ends.proxy.port.to_bytes(4, sys.byteorder)
