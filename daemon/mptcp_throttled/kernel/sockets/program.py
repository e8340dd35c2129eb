"""The programs on the proxy's cgroup (`bpf/`), and what they share with the daemon (`bpf/settings.h`).

`throttle` decides itself which subflows are capped, by the kernel's account of their connection, and puts subflows into
their classes; `pace` only sets the paces that it is given. Both are attached beside the programs of others, until
`close` or the end of this process.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from struct import Struct
from typing import Final

from mptcp_throttle.linux.c_layout import pack, unpack
from mptcp_throttle.linux.kernel_error import KernelError, os_errors
from mptcp_throttle.linux.libbpf import BpfMap, BpfObject, RingBuffer, is_attached
from mptcp_throttle.model import AccessNetwork, FourTuple, Token
from mptcp_throttled.kernel.networks_map import NetworksMap
from mptcp_throttled.kernel.program_layout import (
    OBJECTS,
    Closed,
    Pace,
    pack_ends,
    pack_settings,
    pack_u32,
    read_counters,
    unpack_ends,
)
from mptcp_throttled.vocabulary.class_ids import HANDLE, classid
from mptcp_throttled.vocabulary.counters import ProgramCounters
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals

# include/uapi/asm-generic/socket.h (x86 and arm64)
_SO_NETNS_COOKIE: Final = 71
_COOKIE: Final = Struct("=Q")
_UNLIMITED: Final = 0xFFFF_FFFF

_RAMP_TO_BEGIN: Final = 0
_LONG_AGO: Final = 1


class ProgramKind(StrEnum):
    """A program, by the name of its object file."""

    THROTTLE = "throttle"
    PACE = "pace"


_FUNCTIONS: Final = {ProgramKind.THROTTLE: "throttle", ProgramKind.PACE: "apply_paces"}


class SocketProgram:
    """One of the programs; before `attach`, it can only free sockets. Raises KernelError.

    `link` is the file descriptor that keeps it attached; None before.
    There is room for 65 536 paces, and as many classes (`bpf/socket.h`).
    """

    def __init__(self, kind: ProgramKind, ports: Sequence[int]) -> None:
        self.kind = kind
        self.link: int | None = None
        self._networks: NetworksMap | None = None
        self._classes: BpfMap | None = None
        self._counters: BpfMap | None = None
        self._totals: RingBuffer | None = None
        self._object = BpfObject(OBJECTS / f"{kind}.bpf.o", pack_settings(_netns_cookie(), ports, HANDLE))
        try:
            self._paces = self._object.map("paces")
            if kind is ProgramKind.THROTTLE:
                self._networks, self._classes = NetworksMap(self._object.map("networks")), self._object.map("classes")
                self._counters = self._object.map("counters")
                self._totals = RingBuffer(self._object.map("totals"))
        except KernelError:
            self.detach()
            raise

    def attach(self, cgroup: Path) -> None:
        """Let it act on the sockets in this cgroup, by the networks, paces and classes that it has.

        Raises KernelError.
        """
        self.link = self._object.attach_cgroup(_FUNCTIONS[self.kind], cgroup)
        self.decide_now()

    @property
    def is_attached(self) -> bool:
        """Whether it is attached, and nobody has detached it. Raises KernelError."""
        return self.link is not None and is_attached(self.link)

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        """Decide by these networks at each socket's next ACK; by none, nobody is capped. Raises KernelError."""
        if self._networks is None:
            return
        self._networks.set(networks)

    def decide_now(self) -> None:
        """Decide for all sockets, idle or not; those that are not idle are decided at their next ACK anyway.

        Raises KernelError.
        """
        if self._networks is not None:
            self._object.iterate("adopt")

    def set_paces(self, paces: Mapping[FourTuple, int], *, present: bool = False) -> None:
        """Give subflows their paces, in bytes/s; `present`: they have them already, so that `pace` begins no ramp.

        Raises KernelError, and has changed all, some or none of them.
        """
        began = _LONG_AGO if present else _RAMP_TO_BEGIN
        self._paces.update({pack_ends(ends): _pace(pace, began) for ends, pace in paces.items()})

    def remove_paces(self, subflows: Collection[FourTuple]) -> None:
        """Take their paces back. Raises KernelError."""
        self._paces.delete_all([pack_ends(ends) for ends in subflows])

    def set_classes(self, minors: Mapping[FourTuple, int]) -> None:
        """Put subflows into classes of our HTB. Raises KernelError, and has changed all, some or none of them."""
        if self._classes is None:
            raise KernelError("set the class of sockets", errno.EOPNOTSUPP, "only the program `throttle` can")
        self._classes.update({pack_ends(ends): pack_u32(classid(minor)) for ends, minor in minors.items()})

    def remove_classes(self, subflows: Collection[FourTuple]) -> None:
        """Take them out of their classes. Raises KernelError."""
        if self._classes is not None:
            self._classes.delete_all([pack_ends(ends) for ends in subflows])

    def release(self) -> None:
        """Free all sockets now, idle or not, where the program can do that. Raises KernelError."""
        self._paces.clear()
        if self._classes is not None:
            self._classes.clear()
            self.set_networks(())
            self.decide_now()

    def closed_subflows(self) -> Iterator[ClosedSubflow]:
        """The subflows that have closed since the last call. Raises KernelError."""
        return map(closed_subflow, () if self._totals is None else self._totals.take())

    def counters(self) -> ProgramCounters:
        """What the program has counted since it was attached. Raises KernelError."""
        if self._counters is None:
            return ProgramCounters()
        return read_counters(self._counters, ProgramCounters)

    def close(self) -> None:
        """Free the sockets where the program can, detach it, and drop its maps."""
        with suppress(KernelError):
            self.release()
        self.detach()

    def detach(self) -> None:
        """Detach it and drop its maps; sockets keep what they have."""
        if self._totals is not None:
            self._totals.close()
        self._object.close()


def _pace(bytes_per_second: int, began: int) -> bytes:
    return pack(Pace(min(bytes_per_second, _UNLIMITED - 1), ramp_from=0, ramp_began=began))


def closed_subflow(record: bytes) -> ClosedSubflow:
    """The subflow of a struct closed."""
    closed = unpack(Closed, record)
    totals = SocketTotals(
        sent=closed.bytes_sent,
        retransmitted=closed.bytes_retransmitted,
        received=closed.bytes_received,
        segments_out=closed.segments_out,
        segments_in=closed.segments_in,
        data_out=closed.data_segments_out,
        data_in=closed.data_segments_in,
    )
    return ClosedSubflow(Token(closed.token), unpack_ends(closed.ends), closed.cookie, totals)


def _netns_cookie() -> int:
    """The cookie of this network namespace (Linux 5.14)."""
    with os_errors("getsockopt SO_NETNS_COOKIE"), socket.socket(socket.AF_UNIX) as any_socket:
        (cookie,) = _COOKIE.unpack(any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))
    return int(cookie)
