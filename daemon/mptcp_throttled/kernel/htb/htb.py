"""Our HTB as netlink attributes: handle, class parameters, leaf qdisc, and the filter from mark to class."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from struct import Struct
from typing import Annotated, Final, NamedTuple

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.linux import cbpf
from mptcp_throttle.linux.c_layout import MAX_U32, S16, U8, U16, U32, pack, size_of, unpack
from mptcp_throttle.linux.cbpf import Instruction, Line, assemble, encode, jump_by_port
from mptcp_throttle.linux.netlink_codec import attribute, attributes
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.tc import Filter, Qdisc
from mptcp_throttled.vocabulary.class_ids import HANDLE, MarkedTraffic, classid, mark_shift, minor_of

LEAF_PACKETS: Final = 1000
"""The kernel's default (DEFAULT_TX_QUEUE_LEN). Congestion window and TCP small queues bound what a sender queues. A
shorter leaf only drops, and a packet dropped on its own host is often noticed by a timer instead of an ACK."""

_LEAF_KIND: Final = "pfifo"
_LEAF_OPTIONS: Final = LEAF_PACKETS.to_bytes(4, "little")
_BURST_SECONDS: Final = 0.01
_MIN_BURST_BYTES: Final = 3028  # two full Ethernet frames
_MIN_QUANTUM_BYTES: Final = 1514  # below 1000, or above 200 000, sch_htb.c warns in the kernel log
_MAX_QUANTUM_BYTES: Final = 60000

_FILTER_PRIORITY: Final = 1
_ETH_P_ALL_NETWORK_ORDER: Final = 0x0300

# Attributes of struct nlattr kind: include/uapi/linux/pkt_cls.h and pkt_sched.h.
_TCA_BPF_OPS_LEN: Final = 4
_TCA_BPF_OPS: Final = 5
_TCA_HTB_INIT: Final = 2
_HTB_VERSION: Final = 3
_HTB_RATE2QUANTUM: Final = 10
_OPS_LEN: Final = Struct("H")
_TCA_HTB_PARMS: Final = 1
_TCA_HTB_RATE64: Final = 6
_TCA_HTB_CEIL64: Final = 7
_WIDE: Final = _TCA_HTB_RATE64, _TCA_HTB_CEIL64
_RATE64: Final = Struct("Q")
_LINKLAYER_ETHERNET: Final = 1  # without a link layer, the kernel demands a rate table
_TICK_NANOSECONDS: Final = 64  # include/net/pkt_sched.h, PSCHED_SHIFT

_IPPROTO_TCP: Final = 6
_IPV6_HEADER_BYTES: Final = 40


class _HtbGlob(NamedTuple):
    """struct tc_htb_glob (include/uapi/linux/pkt_sched.h)."""

    version: U32
    rate2quantum: U32
    defcls: U32
    debug: U32
    direct_pkts: U32


class _RateSpec(NamedTuple):
    """struct tc_ratespec (include/uapi/linux/pkt_sched.h)."""

    cell_log: U8
    linklayer: U8
    overhead: U16
    cell_align: S16
    mpu: U16
    rate: U32


_PackedRateSpec = Annotated[bytes, f"{size_of(_RateSpec)}s"]


class _HtbOpt(NamedTuple):
    """struct tc_htb_opt (include/uapi/linux/pkt_sched.h)."""

    rate: _PackedRateSpec
    ceil: _PackedRateSpec
    buffer: U32
    cbuffer: U32
    quantum: U32
    level: U32
    prio: U32


def root_qdisc(default_minor: int) -> Qdisc:
    """Our HTB; unmarked packets go to class `default_minor`, or are sent unshaped if it is 0."""
    glob = _HtbGlob(_HTB_VERSION, _HTB_RATE2QUANTUM, default_minor, debug=0, direct_pkts=0)
    return Qdisc("htb", HANDLE, TC_H_ROOT, attribute(_TCA_HTB_INIT, pack(glob)))


def default_minor_of(qdisc: Qdisc) -> int:
    """The default class of an HTB read from the kernel; 0 if its options do not say."""
    glob = attributes(qdisc.options or b"").get(_TCA_HTB_INIT, b"")[: size_of(_HtbGlob)]
    return unpack(_HtbGlob, glob).defcls if len(glob) == size_of(_HtbGlob) else 0


def class_options(rate: Rate) -> bytes:
    """TCA_OPTIONS of a class whose ceil is its rate: it never borrows."""
    rate_bytes = rate.bytes_per_second
    spec = pack(_RateSpec(0, _LINKLAYER_ETHERNET, overhead=0, cell_align=0, mpu=0, rate=min(rate_bytes, MAX_U32)))
    ticks = _ticks(rate)
    options = attribute(_TCA_HTB_PARMS, pack(_HtbOpt(spec, spec, ticks, ticks, quantum_bytes(rate), level=0, prio=0)))
    if rate_bytes <= MAX_U32:
        return options
    wide = _RATE64.pack(rate_bytes)
    return options + attribute(_TCA_HTB_RATE64, wide) + attribute(_TCA_HTB_CEIL64, wide)


# Most of thousands of classes have the same options.
@lru_cache
def rate_of(options: bytes) -> Rate | None:
    """The rate of a class read from the kernel with these TCA_OPTIONS, with its burst; None if it is none of ours."""
    read = attributes(options)
    parameters, wide_rates = read.get(_TCA_HTB_PARMS, b""), [read[wide] for wide in _WIDE if wide in read]
    if len(parameters) != size_of(_HtbOpt) or any(len(rate) != _RATE64.size for rate in wide_rates):
        return None
    opt = unpack(_HtbOpt, parameters)
    rate, ceil = (
        _RATE64.unpack(read[wide])[0] if wide in read else unpack(_RateSpec, spec).rate
        for wide, spec in ((_TCA_HTB_RATE64, opt.rate), (_TCA_HTB_CEIL64, opt.ceil))
    )
    try:
        without_burst = Rate(rate * 8)
        if rate != ceil:
            return None
        if opt.buffer == _ticks(without_burst):
            return without_burst
        # A tick of the fastest rates is many bytes; bursts are whole kB.
        kilobytes = round(opt.buffer * _TICK_NANOSECONDS * rate / 10**12)
        return replace(without_burst, burst=1000 * kilobytes)
    except ValueError:
        return None


def _ticks(rate: Rate) -> int:
    return burst_bytes(rate) * 10**9 // rate.bytes_per_second // _TICK_NANOSECONDS


def leaf_qdisc(minor: int) -> Qdisc:
    """The leaf qdisc of a class; the kernel chooses its handle."""
    return Qdisc(_LEAF_KIND, 0, classid(minor), _LEAF_OPTIONS)


def is_leaf(qdisc: Qdisc) -> bool:
    """Whether a qdisc read from the kernel is the leaf of one of our classes, unchanged."""
    return qdisc.kind == _LEAF_KIND and minor_of(qdisc.parent) is not None and qdisc.options == _LEAF_OPTIONS


def mark_filter(marking: MarkedTraffic) -> Filter:
    """One classic BPF program maps every mark to its class: class id = our handle | (mark & mask) >> shift.

    Unlike `fw` filters it needs no cls_fw, respects the mask, and is one filter for all classes. It matches only
    packets from the proxy's TCP ports, so that marks which other programs set under our mask have no effect.
    A result of 0 means "no match" (net/sched/cls_bpf.c): all other packets go to the default class.
    """
    program = _filter_program(marking)
    count = _OPS_LEN.pack(len(program))
    options = attribute(_TCA_BPF_OPS_LEN, count) + attribute(_TCA_BPF_OPS, encode(program))
    return Filter("bpf", 1, _FILTER_PRIORITY << 16 | _ETH_P_ALL_NETWORK_ORDER, options)


def filter_bytecode(marking: MarkedTraffic) -> str:
    """The filter's program in the syntax of `tc filter ... bpf bytecode`."""
    program = _filter_program(marking)
    return ",".join([str(len(program)), *(" ".join(map(str, instruction)) for instruction in program)])


def _filter_program(marking: MarkedTraffic) -> tuple[Instruction, ...]:
    return assemble(
        (
            Line(cbpf.LD, cbpf.SKF_AD_MARK),
            Line(cbpf.AND, marking.mask),
            Line(cbpf.JEQ, 0, then="no match"),
            Line(cbpf.LDB_ABS, cbpf.SKF_NET_OFF),
            Line(cbpf.RSH, 4),
            Line(cbpf.JEQ, 6, then="ipv6"),
            Line(cbpf.LDX_MSH, cbpf.SKF_NET_OFF),
            Line(cbpf.LDB_ABS, cbpf.SKF_NET_OFF + 9),
            Line(cbpf.JA, then="protocol"),
            "ipv6",
            Line(cbpf.LDX_IMM, _IPV6_HEADER_BYTES),
            Line(cbpf.LDB_ABS, cbpf.SKF_NET_OFF + 6),
            "protocol",
            Line(cbpf.JEQ, _IPPROTO_TCP, otherwise="no match"),
            Line(cbpf.LDH, cbpf.SKF_NET_OFF),
            *jump_by_port(marking.ports, "proxy", "no match"),
            "no match",
            Line(cbpf.RET, 0),
            "proxy",
            Line(cbpf.LD, cbpf.SKF_AD_MARK),
            Line(cbpf.AND, marking.mask),
            Line(cbpf.RSH, mark_shift(marking.mask)),
            Line(cbpf.OR, HANDLE),
            Line(cbpf.RET_A),
        )
    )


def is_mark_filter(filter_: Filter, marking: MarkedTraffic) -> bool:
    """Whether a filter read from the kernel is ours; the kernel adds attributes to those that we set."""
    ours = mark_filter(marking)
    program = attributes(ours.options or b"")[_TCA_BPF_OPS]
    return filter_[:3] == ours[:3] and attributes(filter_.options or b"").get(_TCA_BPF_OPS) == program


def burst_bytes(rate: Rate) -> int:
    """HTB's burst of a class: that of its rate, or 10 ms of the rate, at least two Ethernet frames."""
    return rate.burst or max(int(rate.bytes_per_second * _BURST_SECONDS), _MIN_BURST_BYTES)


def quantum_bytes(rate: Rate) -> int:
    """What a class may send before the next one of its level: a tenth of a second's bytes, within HTB's bounds."""
    return min(max(rate.bytes_per_second // _HTB_RATE2QUANTUM, _MIN_QUANTUM_BYTES), _MAX_QUANTUM_BYTES)
