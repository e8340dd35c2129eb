"""Our programs at the egress and the ingress of an interface, by TCX where the kernel has it (Linux 6.6).

TCX comes before all filters of clsact. Ours come before those of others: a program that decides, even only to let the
packet pass, hides it from all later ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Final

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.linux import tcx
from mptcp_throttle.linux.kernel_error import os_errors
from mptcp_throttle.linux.libbpf import AttachType, program_id
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, Hook
from mptcp_throttled.kernel.interfaces import Interface, all_interfaces

_ATTACH_TYPES: Final = {Hook.INGRESS: AttachType.TCX_INGRESS, Hook.EGRESS: AttachType.TCX_EGRESS}
_FILE_NAME: Final = re.compile(r"tcx-(\d+)")

_own: Final[set[int]] = set()
"""The ids of this process's programs: one of them may be in front of another."""


def note_own(program: int) -> None:
    """Note a program of this process, by its file descriptor: ours may be behind it. Raises KernelError."""
    _own.add(program_id(program))


class TcxPrograms(ClsactFilters):
    """As `ClsactFilters`, whose filters it uses before Linux 6.6. It also removes the filters of an earlier version.

    `directory` also has a file for each interface with the ids of our programs there: to read a program's name takes
    CAP_SYS_ADMIN. The kernel uses no id twice until a reboot.
    """

    def interfaces(self) -> list[Interface]:
        """The interfaces with a program or filter of ours, or a clsact that we have added."""
        return [*{*super().interfaces(), *(link for link in all_interfaces() if self._ids_file(link).exists())}]

    def with_filters(self) -> list[Interface]:
        """The interfaces with a program or filter of ours."""
        return [*{*super().with_filters(), *(link for link in all_interfaces() if any(self._ours_at(link)))}]

    def attached(self, interface: Interface) -> set[Hook]:
        """Where our program is there, and comes first."""
        if not tcx.has_tcx():
            return super().attached(interface)
        ours = self._recorded(interface)
        return {
            hook
            for hook, where in _ATTACH_TYPES.items()
            if _is_first(tcx.attached(interface.index, where).programs, ours)
        }

    def attach(self, interface: Interface, programs: Mapping[Hook, int]) -> None:
        """Attach the programs with these file descriptors, in place of those that are there."""
        if not tcx.has_tcx():
            super().attach(interface, programs)
            return
        super().detach(interface)
        wanted = {hook: program_id(program) for hook, program in programs.items()}
        ours = self._recorded(interface) | {*wanted.values()}
        # First: a program without a record would be taken for another's.
        self._record_programs(interface, ours)
        for hook, where in _ATTACH_TYPES.items():
            if hook in wanted:
                tcx.detach({wanted[hook]}, interface.index, where)
                _own.add(wanted[hook])
                tcx.attach_first(programs[hook], interface.index, where)
            tcx.detach(ours - {wanted.get(hook)}, interface.index, where)
        self._record_programs(interface, wanted.values())

    def detach(self, interface: Interface) -> None:
        """Leave the interface as it was before `attach`."""
        super().detach(interface)
        for where, programs in self._ours_at(interface):
            tcx.detach(programs, interface.index, where)
        with os_errors(f"{self._ids_file(interface)}"):
            self._ids_file(interface).unlink(missing_ok=True)

    def forget_stale(self) -> None:
        """Delete the records of interfaces that have gone."""
        super().forget_stale()
        self._forget_stale(_FILE_NAME)

    def _ours_at(self, interface: Interface) -> Iterator[tuple[AttachType, frozenset[int]]]:
        """Where programs of ours are, and which."""
        recorded = self._recorded(interface)
        for where in _ATTACH_TYPES.values() if recorded else ():
            ours = recorded.intersection(tcx.attached(interface.index, where).programs)
            if ours:
                yield where, ours

    def _recorded(self, interface: Interface) -> frozenset[int]:
        file = self._ids_file(interface)
        with os_errors(f"{file}"):
            return frozenset(map(int, file.read_text(encoding="utf-8").split())) if file.exists() else frozenset()

    def _record_programs(self, interface: Interface, programs: Collection[int]) -> None:
        file = self._ids_file(interface)
        with os_errors(f"{file}"):
            write_atomically(file, " ".join(map(str, programs)))

    def _ids_file(self, interface: Interface) -> Path:
        return self._directory / f"tcx-{interface.index}"


def _is_first(programs: Collection[int], ours: Collection[int]) -> bool:
    """Whether one program of ours is there, behind none of others."""
    before = takewhile(lambda program: program not in ours, programs)
    return sum(program in ours for program in programs) == 1 and all(program in _own for program in before)
