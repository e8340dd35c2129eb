"""The program that throttles uplinks (`bpf/uplink.bpf.c`)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from mptcp_throttle.linux.c_layout import pack, unpack
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfObject
from mptcp_throttle.model import FourTuple
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.program_layout import (
    OBJECTS,
    Assignment,
    Share,
    Uplink,
    pack_ends,
    pack_u32,
    read_counters,
    unpack_ends,
)
from mptcp_throttled.kernel.uplink.announced_windows import AnnouncedWindow
from mptcp_throttled.vocabulary.counters import UplinkCounters
from mptcp_throttled.vocabulary.kernel_plan import payload_pace

FORGIVEN_SECONDS: Final = 1.0
"""Seconds after an uplink is first throttled in which what the client sends costs nothing: it was queued there before.

Until then the subflow is a backup.
"""

# bpf/uplink.h
_MAX_ASSIGNMENTS: Final = 32
_FORGOTTEN: Final = 0xFFFF_FFFF
_UNBOUNDED: Final = AnnouncedWindow(scale=0xFFFF_FFFF, round_trip_us=0)
_INTERFACE_BYTES: Final = 4  # with which struct last_ack begins
_ETHERNET_BYTES: Final = 14
_END_OF_RESULTS: Final = 1 << 32
_IPV4_PACKET: Final = bytes(12) + b"\x08\x00" + bytes(46)


class Told(IntEnum):
    """What the client was told of a subflow last."""

    NOTHING = 0
    BACKUP = 1
    REGULAR = 2


class ThrottledUplink(NamedTuple):
    """`acknowledged` bytes since it is throttled, `since_told` of them since the client was told what it was `told`.

    `is_policed`: the client kept sending in debt, so what exceeds the rate is dropped.
    """

    told: Told
    acknowledged: int
    since_told: int
    is_policed: bool = False


class UplinkProgram:
    """Throttles uplinks to the rates of their shares, by what leaves the proxy. All methods raise KernelError."""

    def __init__(self) -> None:
        self.object = BpfObject(OBJECTS / "uplink.bpf.o")
        self._shares = self.object.map("shares")
        self._uplinks = self.object.map("uplinks")
        self._counters = self.object.map("counters")
        self._interruptions, self._interrupted = self.object.map("interruptions"), 0
        self._remind = self.object.prepared("remind", _IPV4_PACKET)
        # `assign` and `remind` may not run at the same time.
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._is_closed = False

    @property
    def descriptor(self) -> int:
        """The file descriptor of the program that is to see what leaves the proxy."""
        return self.object.program("throttle_uplinks")

    @property
    def policing_descriptor(self) -> int:
        """The file descriptor of the program that is to see what arrives, while any is policed."""
        return self.object.program("police_uplinks")

    def set_shares(self, rates: Mapping[int, Rate]) -> None:
        """Make shares, or change their rates, which forgets their debts."""
        shares = {number: Share(_ns_per_kib(rate), paid_at=0) for number, rate in rates.items()}
        self._shares.update({pack_u32(number): pack(share) for number, share in shares.items()})

    def remove_shares(self, shares: Collection[int]) -> None:
        """Free their subflows: `remind` tells the clients, and forgets the subflows."""
        self._shares.delete_all([pack_u32(share) for share in shares])

    def assign(
        self,
        shares: Mapping[FourTuple, int],
        windows: Mapping[FourTuple, AnnouncedWindow] | None = None,
        forgiven: float = FORGIVEN_SECONDS,
    ) -> None:
        """Throttle the uplinks of subflows to the rates of these shares; 0: free them, as `remove_shares` does.

        New ones are backups for `forgiven` seconds, in which what they send costs nothing. What clients may have in
        flight on subflows with `windows` is bounded, those seconds after that is first asked for. Raises KernelError;
        then any part may have been done.
        """
        self._assign(shares, windows or {}, time.monotonic_ns() + round(forgiven * 1e9))

    def forget(self, untold: Collection[FourTuple]) -> None:
        """Free subflows without telling their clients."""
        self._assign(dict.fromkeys(untold, _FORGOTTEN), {}, 0)

    def _assign(
        self, shares: Mapping[FourTuple, int], windows: Mapping[FourTuple, AnnouncedWindow], begin: int
    ) -> None:
        records = [_assignment(ends, share, windows.get(ends, _UNBOUNDED)) for ends, share in shares.items()]
        from_when = begin.to_bytes(8, sys.byteorder)
        for first in range(0, len(records), _MAX_ASSIGNMENTS):
            batch = b"".join(records[first : first + _MAX_ASSIGNMENTS])
            with self._lock:
                result, _ = self.object.run("assign", bytes(_ETHERNET_BYTES) + from_when + batch)
            if result:
                raise KernelError("throttle uplinks", _END_OF_RESULTS - result)

    def note_interruption(self) -> None:
        """Do not count what was acknowledged until now and was not seen, since the program was not attached."""
        self._interrupted += 1
        self._interruptions.update({pack_u32(0): pack_u32(self._interrupted)})

    def remind(self) -> bool:
        """Tell the clients whose debt is paid; every 40 ms while uplinks are throttled, so it returns True."""
        with self._lock:
            self._remind()
        return True

    def uplinks(self) -> dict[FourTuple, ThrottledUplink]:
        """The uplinks that are throttled, or whose clients must be told that they are free."""
        uplinks = {}
        for key, record in self._uplinks.all_elements().items():
            uplink = unpack(Uplink, record)
            since_told = uplink.bytes - uplink.bytes_when_told
            throttled = ThrottledUplink(Told(uplink.told), uplink.bytes, since_told, bool(uplink.is_policed))
            uplinks[unpack_ends(key)] = throttled
        return uplinks

    def told_through(self) -> dict[FourTuple, int]:
        """The index of the interface through which the last ACK of each subflow has left whose client was told."""
        uplinks = {key: unpack(Uplink, record) for key, record in self._uplinks.all_elements().items()}
        return {
            unpack_ends(key): int.from_bytes(uplink.ack[:_INTERFACE_BYTES], sys.byteorder)
            for key, uplink in uplinks.items()
            if uplink.told != Told.NOTHING
        }

    def acknowledged(self) -> dict[FourTuple, int]:
        """As `uplinks`, only the acknowledged bytes; for any thread."""
        with self._reading:
            return {} if self._is_closed else {ends: each.acknowledged for ends, each in self.uplinks().items()}

    def counters(self) -> UplinkCounters:
        """What the program has counted."""
        return read_counters(self._counters, UplinkCounters)

    def close(self) -> None:
        """Drop it and its maps; where it is attached, it keeps them."""
        with self._reading:
            self._is_closed = True
            self.object.close()


def _assignment(ends: FourTuple, share: int, window: AnnouncedWindow) -> bytes:
    return pack(Assignment(pack_ends(ends), share, window.scale, window.round_trip_us))


def _ns_per_kib(rate: Rate) -> int:
    return 1024 * 10**9 // payload_pace(rate, 1)
