"""The steering programs (`bpf/steering.bpf.c`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from itertools import cycle, islice
from typing import Final

from mptcp_throttle.linux.c_layout import pack, unpack
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfMap, BpfObject
from mptcp_throttle.model import AccessNetwork, Address, FourTuple
from mptcp_throttle.proxies import MAX_INTERFACES, Proxies
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.interfaces import Interface
from mptcp_throttled.kernel.networks_map import NetworksMap
from mptcp_throttled.kernel.program_layout import (
    OBJECTS,
    Bucket,
    Client,
    Steered,
    mapped,
    ns_per_kib,
    pack_ends,
    pack_settings,
    pack_u32,
    read_counters,
    unpack_ends,
)
from mptcp_throttled.vocabulary.control_group import ControlGroup
from mptcp_throttled.vocabulary.counters import SteeringCounters
from mptcp_throttled.vocabulary.traffic import SteeredTotals

_NS_PER_SECOND: Final = 10**9
_SLOTS: Final = 65536
_SHARED: Final = ("steered_subflows", "sick_subflows", "watched_subflows", "subflows_without_data_acks")
_VISITS: Final = 1024
# Ethernet, IPv4 (version and header length, total length, protocol) and TCP: `tell` makes ACKs of it.
_TCP_SEGMENT: Final = bytes(12) + b"\x50\x10" + bytes(70)
_IPV4_HEADER: Final = b"\x45\x00" + (20 + len(_TCP_SEGMENT)).to_bytes(2) + bytes(5) + b"\x06" + bytes(10)
_PACKET: Final = bytes(12) + b"\x08\x00" + _IPV4_HEADER + _TCP_SEGMENT


class Told(IntEnum):
    """What MPTCP at the proxy was told of a subflow last."""

    NOTHING_HOLDS = 0
    IS_BACKUP = 1
    IS_REGULAR = 2


class SteeringProgram:
    """The programs with their networks and shares. All methods raise KernelError.

    `allowances` are the maps of budgets that throttle.bpf.c has, too, by name.
    """

    def __init__(
        self, proxies: Proxies, control_group: ControlGroup, allowances: Mapping[str, BpfMap] | None = None
    ) -> None:
        settings = pack_settings(0, proxies, 0, control_group)
        self.object = BpfObject(OBJECTS / "steering.bpf.o", settings, shared=allowances)
        try:
            self._networks = NetworksMap(self.object.map("networks"), proxies)
            self._buckets, self._bucket_numbers = self.object.map("buckets"), self.object.map("bucket_numbers")
            self._bucket_numbers_of_clients = self.object.map("bucket_numbers_of_clients")
            self._subflows = self.object.map("steered_subflows")
            self._interfaces = self.object.map("interfaces")
            self.shared_maps = {name: self.object.map(name) for name in _SHARED}
            self._counters = self.object.map("counters")
            self._remind = self.object.prepared("remind", _PACKET)
        except KernelError:
            self.object.close()
            raise
        self._reminding = threading.Lock()
        self._reading = threading.Lock()
        self._is_closed = False

    @property
    def egress(self) -> int:
        """The file descriptor of the program that is to see what leaves the proxy."""
        return self.object.program("steer_downlinks")

    @property
    def ingress(self) -> int:
        """The file descriptor of the program that is to see what arrives."""
        return self.object.program("deliver_acks")

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        """Hold back the capped subflows on these networks; those on others become free."""
        self._networks.set(networks, steered=True)

    def set_interfaces(self, interfaces: Collection[Interface]) -> None:
        """Name those with both programs, at least one: MPTCP is told through no other.

        A subflow that is on another one is not held back.
        """
        indices = enumerate(islice(cycle(sorted(interface.index for interface in interfaces)), MAX_INTERFACES))
        self._interfaces.update({pack_u32(number): pack_u32(index) for number, index in indices})

    def adopt(self) -> None:
        """Know the subflows that are older than the programs, and what an earlier instance has told of them."""
        self.object.iterate("adopt")

    def set_shares(self, rates: Mapping[int, Rate]) -> None:
        """Make shares, or change their rates.

        A rate with a burst keeps its debt, and what is left of the burst; without one, a debt is forgotten.
        """
        now = time.monotonic_ns()
        buckets = {number: self._bucket(pack_u32(number), rate, now) for number, rate in rates.items()}
        self._buckets.update({pack_u32(number): pack(bucket) for number, bucket in buckets.items()})

    def _bucket(self, number: bytes, rate: Rate, now: int) -> Bucket:
        before = self._buckets.find(number) if rate.burst else None
        return bucket_for(rate, None if before is None else unpack(Bucket, before), now)

    def remove_shares(self, shares: Collection[int]) -> None:
        """Their subflows are held back while they are capped."""
        self._buckets.delete_all([pack_u32(share) for share in shares])

    def clear_shares(self) -> None:
        """Take all shares away."""
        self._bucket_numbers.clear()
        self._bucket_numbers_of_clients.clear()
        self._buckets.clear()

    def assign(self, shares: Mapping[FourTuple, int]) -> None:
        """Let capped subflows send to the rates of these shares. Raises KernelError, and has done any part of it."""
        self._bucket_numbers.update({pack_ends(ends): pack_u32(share) for ends, share in shares.items()})

    def assign_clients(self, shares: Mapping[tuple[int, Address], int]) -> None:
        """Let capped subflows of clients, until they have a share, send to the rates of these.

        A client is the number of a proxy and an address. Those that were used least recently are forgotten when there
        are too many.
        """
        clients = {pack(Client(proxy, mapped(address))): share for (proxy, address), share in shares.items()}
        self._bucket_numbers_of_clients.update({client: pack_u32(share) for client, share in clients.items()})

    def unassign(self, subflows: Collection[FourTuple]) -> None:
        """Take their shares away."""
        self._bucket_numbers.delete_all([pack_ends(ends) for ends in subflows])

    def remind(self) -> bool:
        """Look at up to 1024 subflows, whether they send or not; whether any of them is capped or not free yet."""
        with self._reminding:
            return bool(self._remind())

    def are_all_free(self) -> bool:
        """Whether nothing holds any more of what MPTCP was told."""
        records = self._subflows.all_elements().values()
        return all(unpack(Steered, record).told == Told.NOTHING_HOLDS for record in records)

    def totals(self) -> dict[FourTuple, SteeredTotals]:
        """What has been counted, by subflow; for any thread."""
        with self._reading:
            records = {} if self._is_closed else self._subflows.all_elements()
        known = {ends: unpack(Steered, record) for ends, record in records.items()}
        return {unpack_ends(ends): SteeredTotals.of(steered.acks, steered.held_ns) for ends, steered in known.items()}

    def wants_backup(self, ends: FourTuple) -> bool | None:
        """Whether the client wants the subflow as a backup; None if the programs do not know it."""
        steered = self._find(ends)
        return None if steered is None else bool(steered.client_wants_backup)

    def capped_since(self, ends: FourTuple) -> float | None:
        """When the subflow's present cap began, in monotonic seconds; None if it has none."""
        steered = self._find(ends)
        return steered.capped_at / _NS_PER_SECOND if steered is not None and steered.is_capped else None

    def _find(self, ends: FourTuple) -> Steered | None:
        record = self._subflows.find(pack_ends(ends))
        return None if record is None else unpack(Steered, record)

    def counters(self) -> SteeringCounters:
        """What the programs have counted."""
        return read_counters(self._counters, SteeringCounters)

    def close(self) -> None:
        """Drop the programs and their maps; filters that are attached keep them."""
        with self._reading:
            self._is_closed = True
            self.object.close()


def bucket_for(rate: Rate, before: Bucket | None, now: int) -> Bucket:
    """The bucket of a share that has a rate from `now` (monotonic nanoseconds) on, and had `before`: the same bytes are
    left of its burst, or missing from it. A new share has its whole burst."""
    takes_ns = ns_per_kib(rate)
    if not rate.burst:
        return Bucket(takes_ns)
    bucket = Bucket(takes_ns, credit_ns=rate.burst * takes_ns >> 10)
    if before is None:
        return bucket
    credit_ns = min(now - before.paid_at, before.credit_ns) * takes_ns // before.ns_per_kib
    return bucket._replace(paid_at=now - credit_ns, is_bursting=before.is_bursting)
