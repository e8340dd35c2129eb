"""The allowances that kernel programs count (`bpf/allowance_maps.h`), and what they say of them."""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Final

from mptcp_throttle.linux.c_layout import pack, size_of, unpack
from mptcp_throttle.linux.libbpf import BpfObject, RingBuffer
from mptcp_throttle.model import Counting
from mptcp_throttle.proxies import Proxies
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import program_layout
from mptcp_throttled.kernel.networks_map import packed_prefix
from mptcp_throttled.kernel.program_layout import OBJECTS, ns_per_kib, pack_u32
from mptcp_throttled.vocabulary.allowances import MAX_ALLOWANCES, Allowance, AllowanceKey, SubnetAllowances
from mptcp_throttled.vocabulary.kernel_plan import payload_pace

_MAPS: Final = ("allowances", "counted", "allowance_numbers", "used_up", "socket_counts")
_COUNTS: Final = {Counting.DOWN: 1, Counting.UP: 2, Counting.BOTH: 3}
_IPV4: Final = IPv4Network("0.0.0.0/0")
_NONE: Final = pack(program_layout.Numbers(0, 0))
_MAX_PACE: Final = 0xFFFF_FFFE
# By so much more the programs let a subject use: what they count then is in the daemon's next look for certain.
_MARGIN_BYTES: Final = 16 << 10
# So many times longer than what `watch` calls has taken, it waits, so that it takes a tenth of a core at most.
_PAUSE_FACTOR: Final = 9

Counts = Mapping[AllowanceKey, int]
"""What the programs have counted for each allowance, since it has had its number."""


@dataclass(slots=True)
class _Armed:
    """An allowance in the kernel. Its stage is reached at `end`, known from all looks at this stage."""

    number: int
    arming: int
    stage: object = None
    end: int = 0
    packed: bytes = field(default=b"")

    def look(self, stage: object, left: int, before: int | None, after: int | None, present: int) -> None:
        """Know from a look that `left` bytes were left until a stage at some moment between these two counts.

        None: the allowance had no number then. What was carried from the look until the `present` count is missing, and
        the stage begins that much too late; the next look finds it again.
        """
        if before is None or after is None:
            self.stage, self.end = None, present + left
            return
        known = self.end if self.stage == stage else None
        self.stage, self.end = stage, end_of_stage(known, left, before, after)


class Allowances:
    """The maps, for one thread at a time. They stay as long as this process runs. All methods raise KernelError."""

    def __init__(self, proxies: Proxies) -> None:
        self._object = BpfObject(OBJECTS / "allowances.bpf.o")
        self.maps: Final = {name: self._object.map(name) for name in _MAPS}
        self._used_up = RingBuffer(self.maps["used_up"])
        self._proxies = proxies
        self._free = deque(range(1, MAX_ALLOWANCES))
        self._armings = 0
        self._armed: dict[AllowanceKey, _Armed] = {}
        self._rows: object = None
        self._elements: dict[bytes, bytes] = {}

    def watch(self, used_up: Callable[[], None]) -> None:
        """Call `used_up` whenever an allowance has been used up, from a thread of its own."""
        threading.Thread(target=self._watch, args=(used_up,), name="allowances", daemon=True).start()

    def _watch(self, used_up: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(self.maps["used_up"].descriptor, select.POLLIN)
        while True:
            poll.poll()
            self._used_up.take()
            began = time.monotonic()
            used_up()
            time.sleep(_PAUSE_FACTOR * (time.monotonic() - began))

    def counts(self) -> Counts:
        """What the programs have counted."""
        return {key: self._count(armed.number) for key, armed in self._armed.items()}

    def _count(self, number: int) -> int:
        return unpack(program_layout.Counted, self.maps["counted"].get(pack_u32(number))).bytes

    def set(
        self, allowances: Iterable[Allowance], rows: Sequence[SubnetAllowances], before: Counts, after: Counts
    ) -> None:
        """Let the programs count for these allowances, in the `rows` of addresses that use them.

        What is left of each was so at some moment between the counts `before` and `after`.
        """
        wanted = {allowance.key: allowance for allowance in allowances}
        for key in [key for key in self._armed if key not in wanted]:
            self._disarm(key)
        values: dict[bytes, bytes] = {}
        changed: list[tuple[_Armed, bytes]] = []
        for key, allowance in wanted.items():
            armed = self._armed.get(key) or self._arm(key)
            if armed is None:
                continue
            counts = before.get(key), after.get(key), self._count(armed.number)
            armed.look(allowance.stage, allowance.ahead.left, *counts)
            packed = _pack(armed, allowance)
            if packed != armed.packed:
                values[pack_u32(armed.number)] = packed
                changed.append((armed, packed))
        self.maps["allowances"].update(values)
        for armed, packed in changed:
            armed.packed = packed
        self._set_rows(rows)

    def _arm(self, key: AllowanceKey) -> _Armed | None:
        if not self._free:
            return None
        self._armings += 1
        armed = self._armed[key] = _Armed(self._free.popleft(), self._armings)
        return armed

    def _disarm(self, key: AllowanceKey) -> None:
        armed = self._armed.pop(key)
        self.maps["allowances"].update({pack_u32(armed.number): bytes(size_of(program_layout.Allowance))})
        self._free.append(armed.number)

    def _set_rows(self, rows: Sequence[SubnetAllowances]) -> None:
        if rows is self._rows:
            return
        wanted: dict[bytes, bytes] = {}
        for number, (name, _) in self._proxies.numbered() if rows else ():
            wanted[packed_prefix(number, _IPV4)] = _NONE
            for row in rows:
                if row.network.proxy in {None, name}:
                    value = pack(program_layout.Numbers(self._number(row.of_client), self._number(row.of_network)))
                    wanted |= {packed_prefix(number, subnet): value for subnet in row.network.subnets}
        numbers = self.maps["allowance_numbers"]
        numbers.update({key: value for key, value in wanted.items() if self._elements.get(key) != value})
        numbers.delete_all(self._elements.keys() - wanted)
        self._elements, self._rows = wanted, rows

    def _number(self, key: AllowanceKey | None) -> int:
        armed = None if key is None else self._armed.get(key)
        return 0 if armed is None else armed.number


def end_of_stage(known: int | None, left: int, before: int, after: int) -> int:
    """The count at which a stage is reached, `left` bytes before which the count was between `before` and `after`.

    Each look bounds it, and none moves what earlier looks have found within its bounds. `known` is the result of these;
    None: there was none, and the earliest is taken, so that nothing is given twice.
    """
    earliest, latest = before + left, after + left
    return earliest if known is None else min(max(known, earliest), latest)


def _pack(armed: _Armed, allowance: Allowance) -> bytes:
    cap, limit = allowance.cap, allowance.limit
    return pack(
        program_layout.Allowance(
            max(armed.end + _MARGIN_BYTES, 0),
            0 if cap is None else ns_per_kib(cap),
            armed.arming,
            _COUNTS[allowance.ahead.budget.counting],
            _pace(cap),
            _pace(limit),
        )
    )


def _pace(rate: Rate | None) -> int:
    return 0 if rate is None else min(payload_pace(rate, 1), _MAX_PACE)
