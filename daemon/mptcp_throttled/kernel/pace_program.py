"""The sock_ops program that sets SO_MAX_PACING_RATE of the proxy's sockets, and the layout of the map that it reads.

At PASSIVE_ESTABLISHED on a proxy port the program asks to be called for every RTT sample; at an RTT sample it sets the
pace that the map has for the remote end, with a TCP_NOTSENT_LOWAT in proportion. A socket that has a pace but no map
entry loses its pace: this is how the next daemon releases the sockets that a killed one has left. A cgroup may contain
sockets of several network namespaces, each with its own daemon: the program ignores those of other namespaces.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from ipaddress import IPv4Address
from struct import Struct
from typing import Final

from mptcp_throttle.linux import ebpf
from mptcp_throttle.linux.ebpf import R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10
from mptcp_throttle.model import FourTuple

# include/uapi/linux/bpf.h
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
# include/uapi/asm-generic/socket.h (x86 and arm64); include/uapi/linux/tcp.h
_SOL_SOCKET: Final = 1
_SO_MAX_PACING_RATE: Final = 47
_SOL_TCP: Final = 6
_TCP_NOTSENT_LOWAT: Final = 25

_UNLIMITED: Final = 0xFFFF_FFFF  # net/core/sock.c: SO_MAX_PACING_RATE of ~0 in 32 bits means no limit
# TCP_NOTSENT_LOWAT of a paced socket: 1/2^6 s (16 ms) of its pace, and one segment.
_NOTSENT_BITS: Final = 6
_NOTSENT_BYTES: Final = 1448
# The ramp to a new pace takes 2^9 ticks of 2^20 ns: 0.54 s.
_TICK_BITS: Final = 20
_RAMP_BITS: Final = 9

# A map value: the pace; and, written by the program, the rate (bytes/s) and time (ns) at which the ramp began.
_VALUE: Final = Struct("=IIQ")
_TARGET, _INITIAL, _BEGAN = 0, 4, 8
# The stack: the map key (remote address, remote port, local port), and one word for a socket option.
_ADDRESS, _PORTS, _WORD = -32, -16, -8
_IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"

KEY_BYTES: Final = 24
VALUE_BYTES: Final = _VALUE.size


def map_key(ends: FourTuple) -> bytes:
    """The map key of a subflow. It has no proxy address: a client end that uses two of them has one pace for both."""
    address = ends.client.address
    packed = _IPV4_MAPPED + address.packed if isinstance(address, IPv4Address) else address.packed
    # struct bpf_sock_ops has the remote port as 32 bits in network byte order, the local port in host byte order.
    return packed + ends.client.port.to_bytes(4, "big") + ends.proxy.port.to_bytes(4, sys.byteorder)


def map_value(pace: int) -> bytes:
    """The map value that starts the ramp to `pace` bytes/s."""
    return _VALUE.pack(min(pace, _UNLIMITED - 1), 0, 0)


def pace_program(ports: Sequence[int], netns_cookie: int, map_descriptor: int) -> bytes:
    """The program for these local ports, in the network namespace with this cookie (SO_NETNS_COOKIE).

    A new pace is reached over half a second, down from the delivery rate of the subflow, so that what is queued in the
    socket can still leave: about 200 kB, whose last byte the receiver would otherwise wait for at the new pace. The
    kernel calls the program once per round-trip time.
    """
    return ebpf.assemble(
        (
            ebpf.move(R6, R1),
            ebpf.load(R3, R6, _LOCAL_PORT),
            *(ebpf.jump_if_equal(R3, port, "proxy port") for port in ports),
            ebpf.jump("done"),
            "proxy port",
            ebpf.move(R1, R6),
            ebpf.call(_GET_NETNS_COOKIE),
            *ebpf.constant64(R1, netns_cookie),
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
            # r7 = the wanted pace, r9 = the map value
            ebpf.constant32(R7, _UNLIMITED),
            ebpf.jump_if_equal(R0, 0, "compare"),
            ebpf.move(R9, R0),
            ebpf.load(R7, R9, _TARGET),
            *_ramp(),
            "compare",
            ebpf.constant32(R8, _UNLIMITED),
            ebpf.store(R10, _WORD, R8),
            *_option(_GETSOCKOPT, _SOL_SOCKET, _SO_MAX_PACING_RATE),
            ebpf.load(R8, R10, _WORD),
            ebpf.jump_if_same(R7, R8, "done"),
            ebpf.store(R10, _WORD, R7),
            *_option(_SETSOCKOPT, _SOL_SOCKET, _SO_MAX_PACING_RATE),
            # 0 means the default of the network namespace (net.ipv4.tcp_notsent_lowat).
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


def _ramp() -> Sequence[ebpf.Instruction | str]:
    """r7 = max(r7, initial * (1 - elapsed / duration)); the first call stores the time and the initial rate."""
    return (
        ebpf.load64(R3, R9, _BEGAN),
        ebpf.jump_unless_equal(R3, 0, "ramp"),
        ebpf.call(_KTIME_GET_NS),
        ebpf.store64(R9, _BEGAN, R0),
        ebpf.load(R8, R6, _RATE_DELIVERED),
        ebpf.load(R3, R6, _MSS),
        ebpf.multiply(R8, R3),
        ebpf.multiply_constant(R8, 1_000_000),
        ebpf.load(R3, R6, _RATE_INTERVAL_US),
        ebpf.divide(R8, R3),
        # ACKs that arrive in a burst can give a rate of more than 32 bits.
        ebpf.constant32(R3, _UNLIMITED),
        ebpf.jump_if_at_least(R3, R8, "initial"),
        ebpf.move(R8, R3),
        "initial",
        ebpf.store(R9, _INITIAL, R8),
        "ramp",
        ebpf.call(_KTIME_GET_NS),
        ebpf.load64(R3, R9, _BEGAN),
        ebpf.subtract(R0, R3),
        ebpf.shift_right(R0, _TICK_BITS),
        ebpf.jump_from(R0, 1 << _RAMP_BITS, "compare"),
        ebpf.load(R8, R9, _INITIAL),
        ebpf.multiply(R0, R8),
        ebpf.shift_right(R0, _RAMP_BITS),
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
