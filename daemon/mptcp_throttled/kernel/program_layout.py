"""What kernel programs share with the daemon: their directory, and the structures of `bpf/*.h` by their names in C.

The headers say what the fields mean. A structure inside another is packed.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeVar

from mptcp_throttle.linux.c_layout import U16, U32, U64, pack, size_of, struct_of, unpack
from mptcp_throttle.linux.inet_diag import IPV4_MAPPED, unmapped
from mptcp_throttle.linux.libbpf import BpfMap
from mptcp_throttle.model import Address, FourTuple
from mptcp_throttle.proxies import Proxies
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.control_group import KEY_BYTES, NO_CONTROL_GROUP, ControlGroup
from mptcp_throttled.vocabulary.counters import DiscardCounters, ProgramCounters, SteeringCounters, UplinkCounters

OBJECTS: Final = Path(__file__).with_name("bpf")

CREDIT_NS: Final = 40_000_000
"""The unused rate that a share may keep without a burst, in nanoseconds of its rate."""

_PORTS: Final = 65536
_BITS_PER_KIB: Final = 8 * 1024
_NS_PER_SECOND: Final = 10**9

_Counters = TypeVar("_Counters", UplinkCounters, ProgramCounters, DiscardCounters, SteeringCounters)


class Settings(NamedTuple):
    """Constants of a program."""

    netns_cookie: U64
    proxies: Annotated[bytes, f"{_PORTS}s"]
    htb_handle: U32
    control_bound: U32
    control_key: Annotated[bytes, f"{KEY_BYTES}s"]


class Ends(NamedTuple):
    """A subflow."""

    client: Annotated[bytes, "16s"]
    proxy: Annotated[bytes, "16s"]
    client_port: Annotated[bytes, "4s"]
    proxy_port: U32


_pack_ends: Final = struct_of(Ends).pack  # 65 000 times for a full table
PackedEnds = Annotated[bytes, f"{size_of(Ends)}s"]
PackedLastAck = Annotated[bytes, "132s"]


class Prefix(NamedTuple):
    """The key of an access network."""

    bits: U32
    proxy: U32
    address: Annotated[bytes, "16s"]


class Client(NamedTuple):
    """A client of a proxy."""

    proxy: U32
    address: Annotated[bytes, "16s"]


class Network(NamedTuple):
    """An access network."""

    preference: U32
    pace: U32
    provisional_ns: U64
    limited: U32
    steered: U32
    max_rtt_us: U32 = 0
    max_loss: U32 = 0
    min_rate: U32 = 0
    slow_rate: U32 = 0
    proxy: U32 = 0
    has_budgets: U32 = 0
    may_be_narrowed: U32 = 0


class Sick(NamedTuple):
    """A subflow that does not keep the bounds of its network."""

    seen_at: U64
    ailment: U32
    padding: U32


class Closed(NamedTuple):
    """A subflow that has closed."""

    ends: PackedEnds
    cookie: U64
    bytes_sent: U64
    bytes_retransmitted: U64
    bytes_received: U64
    held_ns: U64
    segments_out: U32
    segments_in: U32
    data_segments_out: U32
    data_segments_in: U32
    token: U32
    own_acks: U32


class Ended(NamedTuple):
    """A connection whose last subflow has closed."""

    lasted_ns: U64
    bytes: U64
    capped_bytes: U64
    token: U32
    in_control_group: U32


class Share(NamedTuple):
    """The rate that uplinks share."""

    ns_per_kib: U64
    paid_at: U64


class Assignment(NamedTuple):
    """An uplink, and the share that it pays from."""

    ends: PackedEnds
    share: U32
    window_scale: U32
    round_trip_us: U32


class Uplink(NamedTuple):
    """A throttled uplink."""

    counts_from: U64
    bounded_from: U64
    share: U32
    told: U32
    told_at: U64
    bytes: U64
    bytes_when_told: U64
    sequence: U32
    acknowledged: U32
    timestamp: U32
    timestamp_echo: U32
    counts_since: U32
    appended: U32
    repeats: U32
    is_policed: U32
    has_policer: U32
    has_sequence: U32
    slot: U32
    window: U32
    window_scale: U32
    round_trip_us: U32
    ack: PackedLastAck
    padding: U32


class Bucket(NamedTuple):
    """The rate that capped subflows share."""

    ns_per_kib: U64
    paid_at: U64 = 0
    open_until: U64 = 0
    last_pulse: U64 = 0
    asked_at: U64 = 0
    credit_ns: U64 = CREDIT_NS
    is_bursting: U32 = 0
    padding: U32 = 0


PackedBucket = Annotated[bytes, f"{size_of(Bucket)}s"]


class Allowance(NamedTuple):
    """What is left of a budget until its next stage, and the rates of that."""

    end: U64
    ns_per_kib: U64
    arming: U32
    counting: U32
    cap: U32
    limit: U32


class Counted(NamedTuple):
    """What programs have counted for an allowance."""

    bucket: PackedBucket
    bytes: U64
    told: U64


class Numbers(NamedTuple):
    """The allowances of an address."""

    of_client: U32
    of_network: U32


class Steered(NamedTuple):
    """A subflow on a network with a cap."""

    told_at: U64
    looked_at: U64
    capped_at: U64
    open_until: U64
    counted: U64
    held_until: U64
    held_ns: U64
    told: U16
    window: U16
    is_capped: U32
    client_wants_backup: U32
    is_uncounted: U32
    slot: U32
    interface: U32
    sequence: U32
    acknowledgment: U32
    acks: U32
    free_bytes: U32


class Ack(NamedTuple):
    """What an ACK on a subflow contains."""

    ends: PackedEnds
    sequence: U32
    acknowledged: U32
    timestamp: U32
    timestamp_echo: U32
    window: U32
    has_timestamps: U32


def pack_settings(
    netns_cookie: int, proxies: Proxies, htb_handle: int, control_group: ControlGroup = NO_CONTROL_GROUP
) -> bytes:
    """The content of `.rodata`."""
    numbers = bytearray(_PORTS)
    for number, (_, proxy) in proxies.numbered():
        for each in proxy.ports.ranges:
            numbers[each.start : each.stop] = bytes([number]) * len(each)
    return pack(Settings(netns_cookie, bytes(numbers), htb_handle, control_group.bound, control_group.key))


def pack_ends(ends: FourTuple) -> bytes:
    """A subflow."""
    # struct bpf_sock_ops has the remote port as 32 bits in network byte order, the local port in host byte order.
    client, proxy = mapped(ends.client.address), mapped(ends.proxy.address)
    return _pack_ends(client, proxy, ends.client.port.to_bytes(4, "big"), ends.proxy.port)


def unpack_ends(packed: bytes) -> FourTuple:
    """The subflow of a struct ends."""
    ends = unpack(Ends, packed)
    client_port = int.from_bytes(ends.client_port, "big")
    return FourTuple.of(unmapped(ends.client), client_port, unmapped(ends.proxy), ends.proxy_port)


def ns_per_kib(rate: Rate) -> int:
    """How many nanoseconds 1024 bytes take at this rate."""
    return _BITS_PER_KIB * _NS_PER_SECOND // rate.bits_per_second


def pack_u32(number: int) -> bytes:
    """A key or a value that is a single __u32."""
    return number.to_bytes(4, sys.byteorder)


def read_counters(counters: BpfMap, kind: type[_Counters]) -> _Counters:
    """The map of `bpf/counters.h`, as the dataclass whose fields have the order of the indices. Raises KernelError."""
    indices = range(len(fields(kind)))
    return kind(*(int.from_bytes(counters.get(pack_u32(index)), sys.byteorder) for index in indices))


def mapped(address: Address) -> bytes:
    """An address in 16 bytes, IPv4 as IPv4-mapped."""
    return IPV4_MAPPED + address.packed if isinstance(address, IPv4Address) else address.packed
