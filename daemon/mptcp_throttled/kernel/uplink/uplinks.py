"""The throttled uplinks of this host: program, where it is attached, and shares, and the thread that runs `remind`."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple, RateKind
from mptcp_throttle.ports import ALL_PORTS
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, Hook
from mptcp_throttled.kernel.interfaces import Interface, find_interfaces, read_link_header, require_interfaces
from mptcp_throttled.kernel.reminder import REMIND_SECONDS, Reminder
from mptcp_throttled.kernel.share_numbers import ShareNumbers
from mptcp_throttled.kernel.uplink.acks import AckSender, list_acks
from mptcp_throttled.kernel.uplink.announced_windows import read_announced_windows
from mptcp_throttled.kernel.uplink.program import Told, UplinkProgram
from mptcp_throttled.vocabulary.counters import UplinkCounters
from mptcp_throttled.vocabulary.decision import Throttle

# MAX_REPEATS times REPEAT_NS in bpf/uplink.bpf.c, and a little more.
_RELEASE_SECONDS: Final = 1.2
_TELLING_SECONDS: Final = 30.0
"""After an interface has gone or come, for as long as the way to its clients may take to be there again (DHCP)."""
_FREE: Final = 0


class Uplinks:
    """Throttles what the clients send. For one thread. All methods raise KernelError.

    The program sees what leaves through the interfaces, and nothing while no uplink is throttled; it sees what arrives
    while any is policed. `attach` and `detach_if_told` refresh `policed`, `unreached` and `counters`. For `linger`
    seconds a share without subflows keeps its debt: a client could open new subflows to escape it.
    """

    def __init__(self, interfaces: tuple[str, ...], filters: ClsactFilters) -> None:
        self.policed: frozenset[FourTuple] = frozenset()
        self.unreached: frozenset[FourTuple] = frozenset()
        self.counters = UplinkCounters()
        self.window_problem: str | None = None
        self._names = interfaces
        self._filters = filters
        self._program: UplinkProgram | None = None
        self._attached: dict[Interface, set[Hook]] = {}
        self._reminder: Reminder | None = None
        self._shares = ShareNumbers()
        self._tell_until = -math.inf

    @property
    def linger(self) -> float:
        return self._shares.linger

    @linger.setter
    def linger(self, seconds: float) -> None:
        self._shares.linger = seconds

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests."""
        return self._filters.ports

    def attach(self) -> bool:
        interfaces = require_interfaces(self._names)
        for interface in interfaces:
            if read_link_header(interface) is None:
                what = f"throttle uplinks on {interface.name}, whose link type is not supported"
                raise KernelError(what, errno.EOPNOTSUPP)
        if self._program is None:
            self._program = UplinkProgram()
        self._look(self._program)
        programs = {Hook.EGRESS: self._program.descriptor}
        if self.policed:
            programs[Hook.INGRESS] = self._program.policing_descriptor
        before, attached = self._attached, self._filters.attached
        changed = [link for link in interfaces if link not in before or attached(link) != before[link]]
        incomplete = [link for link in interfaces if link in changed or before[link] != programs.keys()]
        renamed_or_gone = before.keys() - interfaces
        if not incomplete and not renamed_or_gone:
            self._tell_unreached(self._program)
            return False
        for interface in self._filters.interfaces():
            if interface not in interfaces:
                self._filters.detach(interface)
        self._filters.forget_stale()
        self._attached = {interface: {*programs} for interface in interfaces}
        if changed and before:
            self._program.note_interruption()
        for interface in incomplete:
            self._filters.attach(interface, programs)
        if self._reminder is None:
            program = self._program
            reminder = Reminder(program.remind, program.close, "clients cannot be told that they may send again")
            reminder.start()
            self._reminder = reminder
        if before and (changed or renamed_or_gone):
            self._tell_until = time.monotonic() + _TELLING_SECONDS
            self._tell_unreached(self._program)
        return bool(changed and before)

    def _look(self, program: UplinkProgram) -> None:
        before, self.counters = self.counters, program.counters()
        has_changed = (self.counters.policed, self.counters.not_repeated) != (before.policed, before.not_repeated)
        if has_changed or self.policed or self.unreached:
            uplinks, throttled = program.uplinks(), self._shares.subflows
            self.policed = frozenset(ends for ends, uplink in uplinks.items() if uplink.is_policed)
            backups = (ends for ends, uplink in uplinks.items() if uplink.told is Told.BACKUP)
            self.unreached = frozenset(ends for ends in backups if ends not in throttled)

    def _tell_unreached(self, program: UplinkProgram) -> None:
        """Tell clients that their subflows are regular, if their last ACK left through none of the interfaces."""
        if time.monotonic() > self._tell_until:
            return
        ours = {0, *(interface.index for interface in find_interfaces(self._names))}
        unreached = {ends for ends, interface in program.told_through().items() if interface not in ours}
        if not unreached:
            return
        # Whoever cannot be told now is told a second later: that must not keep others from being told.
        with suppress(KernelError), AckSender() as sender:
            for ack in list_acks(ALL_PORTS):
                if ack.ends in unreached:
                    with suppress(KernelError):  # there is no way to the client now
                        sender.send(ack)

    def acknowledged(self) -> Mapping[FourTuple, int]:
        """The bytes that the program has seen acknowledged since it was loaded, by subflow. For any thread."""
        program = self._program
        return {} if program is None else program.acknowledged()

    def throttle(self, uplinks: Mapping[FourTuple, Throttle | None]) -> None:
        """If this fails, any part of it may have been done."""
        program, self.window_problem = self._program, None
        if program is None:
            return
        program.set_shares(self._shares.new_rates(uplinks.values()))
        self._shares.note_rates(uplinks.values())
        numbers = {ends: _FREE if t is None else self._shares.number(t) for ends, t in uplinks.items()}
        # A limited subflow may be the only one of its connection: only a cap means that it has another subflow.
        capped = [ends for ends, t in uplinks.items() if t is not None and t.share.kind is RateKind.UPLINK_CAP]
        windows, error = read_announced_windows(capped)
        if error is not None:
            missing = len(capped) - len(windows)
            self.window_problem = f"the windows of {missing} uplinks are not bounded: {error}"
        program.assign(numbers, windows)
        self._shares.note(uplinks)
        self._remove_unused()

    def _remove_unused(self) -> None:
        unused = self._shares.take_unused()
        if unused and self._program is not None:
            self._program.remove_shares(unused)

    def forget(self, untold: Collection[FourTuple]) -> None:
        if self._program is None:
            return
        self._program.forget(untold)
        self._shares.note(dict.fromkeys(untold))
        self._remove_unused()

    def forget_ended(self, subflows: Collection[FourTuple]) -> None:
        connected, error = read_announced_windows(subflows)
        if error is not None:
            raise error
        self.forget([ends for ends in subflows if ends not in connected])

    def detach_if_told(self) -> bool:
        self._remove_unused()
        if self._program is not None:
            self._look(self._program)
            self._tell_unreached(self._program)
        if self._shares or (self._program is not None and self._program.uplinks()):
            return False
        self._detach()
        return True

    def release(self) -> None:
        """Takes up to 1.2 s while uplinks are throttled."""
        program, end = self._program, time.monotonic() + _RELEASE_SECONDS
        if program is None:
            return
        try:
            self.throttle(dict.fromkeys(self._shares.subflows))
            program.remind()
            self._tell_unreached(program)
            while program.uplinks() and time.monotonic() < end:
                time.sleep(REMIND_SECONDS)
        finally:
            self._detach()

    def _detach(self) -> None:
        if self._attached:
            for interface in self._filters.interfaces():  # as they are called now
                self._filters.detach(interface)
            self._attached = {}
        if self._reminder is not None:
            self._reminder.stop()
            self._reminder = None
        elif self._program is not None:
            self._program.close()
        self._program = None
        self.policed = self.unreached = frozenset()
        self.counters = UplinkCounters()
        self._shares.clear()
