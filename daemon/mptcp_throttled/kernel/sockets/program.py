"""The program on the proxy's cgroup (`bpf/throttle.bpf.c`), and what it shares with the daemon (`bpf/settings.h`).

It decides which subflows are capped, by the kernel's account of their connection, paces them, and puts subflows into
their classes. It is attached beside other programs, until `close` or the end of this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mptcp_throttle.linux.c_layout import unpack
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfMap, BpfObject, RingBuffer, is_attached
from mptcp_throttle.model import AccessNetwork, Ailment, FourTuple, Health, Token
from mptcp_throttle.proxies import Proxies
from mptcp_throttle.service import missing_capabilities
from mptcp_throttled.kernel.net_namespace import netns_cookie
from mptcp_throttled.kernel.networks_map import NetworksMap
from mptcp_throttled.kernel.program_layout import (
    OBJECTS,
    Closed,
    Ended,
    Sick,
    pack_ends,
    pack_settings,
    pack_u32,
    read_counters,
    unpack_ends,
)
from mptcp_throttled.vocabulary.class_ids import HANDLE, classid
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP, ControlGroup, EndedConnection
from mptcp_throttled.vocabulary.counters import ProgramCounters
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals, SteeredTotals

_UNLIMITED: Final = 0xFFFF_FFFF
# bpf/health.h
_SICK_HOLDS_NS: Final = 10 * 10**9
_AILMENTS: Final = {1: Ailment.RTT, 2: Ailment.LOSS, 3: Ailment.RATE}

# include/uapi/linux/capability.h
_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_PERFMON": 38, "CAP_BPF": 39}
_TYPE_INFORMATION: Final = Path("/sys/kernel/btf/vmlinux")


class SocketProgram:
    """The program; before `attach`, it can only free sockets. All methods raise KernelError.

    `link` is the file descriptor that keeps it attached; None before.
    There is room for 65 536 paces, and as many classes. `shared` are the maps of the steering programs by name,
    which hold back what then needs no pace; None without these programs. No connection in the control group has a cap.
    `allowances` are the maps of budgets, by name.
    """

    def __init__(
        self,
        proxies: Proxies,
        shared: Mapping[str, BpfMap] | None = None,
        control_group: ControlGroup = NO_CONTROL_GROUP,
        allowances: Mapping[str, BpfMap] | None = None,
    ) -> None:
        self.link: int | None = None
        self._taking = threading.Lock()
        self._is_detached = False
        self._is_steered = shared is not None
        self._has_bounds = False
        self._object = _load(proxies, {**(shared or {}), **(allowances or {})}, control_group)
        try:
            self._paces, self._classes = self._object.map("paces"), self._object.map("classes")
            self._networks = NetworksMap(self._object.map("networks"), proxies)
            self._counters = self._object.map("counters")
            self._sick = self._object.map("sick_subflows")
            self._without_data_acks = self._object.map("subflows_without_data_acks")
            self._totals = RingBuffer(self._object.map("totals"))
            self._ended = RingBuffer(self._object.map("ended_connections"))
        except KernelError:
            self._object.close()
            raise

    def attach(self, cgroup: Path) -> None:
        """Let it act on the sockets in this cgroup, by the networks, paces and classes that it has."""
        self.link = self._object.attach_cgroup("throttle", cgroup)
        self.decide_now()

    @property
    def is_attached(self) -> bool:
        """Whether it is attached, and not detached since."""
        return self.link is not None and is_attached(self.link)

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        """Decide by these networks at each socket's next ACK; by none, no subflow is capped."""
        self._networks.set(networks, steered=self._is_steered)
        self._has_bounds = any(network.healthy != Health() for network in networks)

    def decide_now(self) -> None:
        """Decide for all sockets, idle or not; those that are not idle are decided at their next ACK anyway."""
        self._object.iterate("adopt")

    def decide_unless_detached(self) -> None:
        """As `decide_now`; for any thread, also when the program is detached."""
        with self._taking:
            if not self._is_detached:
                self.decide_now()

    def set_paces(self, paces: Mapping[FourTuple, int]) -> None:
        """Give subflows their paces, in bytes/s. Raises KernelError, and has changed all, some or none of them."""
        self._paces.update({pack_ends(ends): pack_u32(min(pace, _UNLIMITED - 1)) for ends, pace in paces.items()})

    def remove_paces(self, subflows: Collection[FourTuple]) -> None:
        """Take their paces back."""
        self._paces.delete_all([pack_ends(ends) for ends in subflows])

    def set_classes(self, minors: Mapping[FourTuple, int]) -> None:
        """Put subflows into classes of our HTB. Raises KernelError, and has changed all, some or none of them."""
        self._classes.update({pack_ends(ends): pack_u32(classid(minor)) for ends, minor in minors.items()})

    def remove_classes(self, subflows: Collection[FourTuple]) -> None:
        """Take them out of their classes."""
        self._classes.delete_all([pack_ends(ends) for ends in subflows])

    def release(self) -> None:
        """Free all sockets now, idle or not."""
        self._paces.clear()
        self._classes.clear()
        self.set_networks(())
        self.decide_now()

    def closed_subflows(self) -> Iterator[ClosedSubflow]:
        """The subflows that have closed since the last call; for any thread, also when the program is detached."""
        with self._taking:
            records = [] if self._is_detached else self._totals.take()
        return map(closed_subflow, records)

    def ended_connections(self) -> Iterator[EndedConnection]:
        """The connections that have ended since the last call; none without a control group."""
        return map(ended_connection, self._ended.take())

    def ailments(self) -> dict[FourTuple, Ailment]:
        """The sick subflows."""
        earliest = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - _SICK_HOLDS_NS
        judged = self._sick.all_elements() if self._has_bounds else {}
        known = {ends: unpack(Sick, value) for ends, value in judged.items()}
        beyond = {unpack_ends(ends): _AILMENTS[sick.ailment] for ends, sick in known.items() if sick.seen_at > earliest}
        return {**beyond, **{unpack_ends(ends): Ailment.DATA_ACKS for ends in self._without_data_acks.all_keys()}}

    def counters(self) -> ProgramCounters:
        """What the program has counted since it was attached."""
        return read_counters(self._counters, ProgramCounters)

    def close(self) -> None:
        """Free the sockets, detach it, and drop its maps."""
        with suppress(KernelError):
            self.release()
        self.detach()

    def detach(self) -> None:
        """Detach it and drop its maps; sockets keep what they have."""
        with self._taking:
            self._is_detached = True
            self._totals.close()
        self._ended.close()
        self._object.close()


def _load(proxies: Proxies, shared: Mapping[str, BpfMap], control_group: ControlGroup) -> BpfObject:
    settings = pack_settings(netns_cookie(), proxies, HANDLE, control_group)
    try:
        return BpfObject(OBJECTS / "throttle.bpf.o", settings, shared=shared)
    except KernelError as error:
        missing = [*missing_capabilities(**_CAPABILITIES), *_missing_type_information()]
        if missing:
            raise KernelError("load throttle.bpf.o", error.number, f"missing: {', '.join(missing)}") from error
        raise


def _missing_type_information() -> list[str]:
    return [] if _TYPE_INFORMATION.exists() else [f"{_TYPE_INFORMATION} (CONFIG_DEBUG_INFO_BTF)"]


def closed_subflow(record: bytes) -> ClosedSubflow:
    """The subflow, or the connection without MPTCP, of a struct closed."""
    closed = unpack(Closed, record)
    totals = SocketTotals(
        sent=closed.bytes_sent,
        retransmitted=closed.bytes_retransmitted,
        received=closed.bytes_received,
        segments_out=closed.segments_out,
        segments_in=closed.segments_in,
        data_out=closed.data_segments_out,
        data_in=closed.data_segments_in,
        steered=SteeredTotals.of(closed.own_acks, closed.held_ns),
    )
    token = Token(closed.token) if closed.token else None
    return ClosedSubflow(token, unpack_ends(closed.ends), closed.cookie, totals)


def ended_connection(record: bytes) -> EndedConnection:
    """The connection of a struct ended."""
    ended = unpack(Ended, record)
    return EndedConnection(
        Token(ended.token), bool(ended.in_control_group), ended.lasted_ns / 1e9, ended.bytes, ended.capped_bytes
    )
