"""What the kernel's verifier says of each kernel program: the work of checking it, and its stack.

The programs are loaded with the settings that the services give them, with a control group, and are not attached.
"""

from __future__ import annotations

import csv
import ctypes
import os
import re
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.process import run
from mptcp_lab.scenario.results import current_commit
from mptcp_throttle.linux.libbpf import BpfObject
from mptcp_throttle.proxies import ONE_PROXY
from mptcp_throttled.kernel.net_namespace import netns_cookie
from mptcp_throttled.kernel.program_layout import OBJECTS, pack_settings
from mptcp_throttled.vocabulary.class_ids import HANDLE
from mptcp_throttled.vocabulary.control_group import ControlGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RECORDED: Final = Path(__file__).parents[1] / "measured" / "performance" / "program-cost.csv"
MOST_GROWTH: Final = 1.1
"""How many times the recorded instructions or stack a program may have."""

_LOG_BYTES: Final = 1 << 20
_LOG_STATISTICS: Final = 4  # BPF_LOG_STATS (include/linux/bpf_verifier.h)
_TIME: Final = re.compile(r"^verification time (\d+) usec$", re.MULTILINE)
_STACK: Final = re.compile(r"^stack depth ([\d+]+)$", re.MULTILINE)
_INSTRUCTIONS: Final = re.compile(r"^processed (\d+) insns", re.MULTILINE)
_CONTROL_GROUP: Final = ControlGroup(share=0.05)
_WITHOUT_SETTINGS: Final = frozenset({"allowances", "uplink"})


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """`program` is named with its object, as in `uplink/assign`.

    `instructions`: those that the verifier has followed, over all branches; it refuses more than 1 000 000. `stack`:
    bytes, of the program and all its functions together. `milliseconds`: of checking it.
    `compiler`: the one that made the program; others make other instructions. `commit`: that of the programs, if known.
    """

    kernel: str
    program: str
    instructions: int
    stack: int
    milliseconds: float
    compiler: str
    commit: str


def kernel_series() -> str:
    """The series of the running kernel, such as `6.12`."""
    return ".".join(os.uname().release.split(".")[:2])


def compiler() -> str:
    """The compiler's name and version, such as `clang 14.0.6`, which made the programs. Raises LabError."""
    version = run(["clang", "--version"]).stdout
    found = re.search(r"clang version (\d+\.\d+\.\d+)", version)
    return f"clang {found[1]}" if found else version.splitlines()[0]


def costs() -> list[ProgramCost]:
    """The costs of all programs on this kernel. Raises KernelError."""
    settings = pack_settings(netns_cookie(), ONE_PROXY, HANDLE, _CONTROL_GROUP)
    made = compiler(), current_commit()
    found = []
    for path in sorted(OBJECTS.glob("*.bpf.o")):
        name = path.name.split(".")[0]
        with closing(_Checked(path, b"" if name in _WITHOUT_SETTINGS else settings)) as checked:
            found += [_cost(f"{name}/{program}", log, *made) for program, log in checked.statistics().items()]
    return found


def recorded() -> dict[tuple[str, str], ProgramCost]:
    """The recorded costs, by kernel series and program."""
    with RECORDED.open(encoding="utf-8", newline="") as file:
        rows = [_parsed(row) for row in csv.DictReader(file)]
    return {(row.kernel, row.program): row for row in rows}


def record(found: Iterable[ProgramCost]) -> None:
    """Record these costs; rows of other kernels stay."""
    replaced = list(found)
    kernels = {cost.kernel for cost in replaced}
    kept = [cost for cost in recorded().values() if cost.kernel not in kernels]
    rows = sorted([*kept, *replaced], key=lambda cost: (_version(cost.kernel), cost.program))
    with RECORDED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(ProgramCost))
        writer.writerows(astuple(row) for row in rows)


def grown(found: Sequence[ProgramCost], known: dict[tuple[str, str], ProgramCost]) -> list[str]:
    """What is more than `MOST_GROWTH` times what is recorded, or is not recorded, a line each."""
    lines = []
    for cost in found:
        before = known.get((cost.kernel, cost.program))
        if before is None:
            lines.append(f"{cost.program}: nothing is recorded for Linux {cost.kernel}")
            continue
        for name in ("instructions", "stack"):
            now, then = getattr(cost, name), getattr(before, name)
            if now > MOST_GROWTH * then:
                lines.append(f"{cost.program}: {name} on Linux {cost.kernel}: {now}, recorded {then}")
    return lines


def _version(series: str) -> tuple[int, ...]:
    return tuple(map(int, series.split(".")))


def _parsed(row: dict[str, str]) -> ProgramCost:
    numbers = int(row["instructions"]), int(row["stack"]), float(row["milliseconds"])
    return ProgramCost(row["kernel"], row["program"], *numbers, row["compiler"], row["commit"])


class _Checked(BpfObject):
    """An object of whose programs the verifier's statistics are asked for."""

    def _load_opened(self, name: str, log: ctypes.Array[ctypes.c_char] | None) -> None:
        own = ctypes.CDLL("libbpf.so.1")
        own.bpf_object__next_program.restype = ctypes.c_void_p
        own.bpf_program__name.restype = ctypes.c_char_p
        self._logs: dict[str, ctypes.Array[ctypes.c_char]] = {}
        program = None
        while program := own.bpf_object__next_program(ctypes.c_void_p(self._object), ctypes.c_void_p(program)):
            text = ctypes.create_string_buffer(_LOG_BYTES)
            self._logs[own.bpf_program__name(ctypes.c_void_p(program)).decode()] = text
            own.bpf_program__set_log_buf(ctypes.c_void_p(program), text, ctypes.c_size_t(_LOG_BYTES))
            own.bpf_program__set_log_level(ctypes.c_void_p(program), ctypes.c_uint32(_LOG_STATISTICS))
        super()._load_opened(name, log)

    def statistics(self) -> dict[str, str]:
        """What the verifier has written, by the names of the programs."""
        return {program: text.value.decode() for program, text in self._logs.items()}


def _cost(program: str, log: str, compiled_by: str, commit: str) -> ProgramCost:
    """The cost in what print_verification_stats (kernel/bpf/verifier.c) has written."""
    time, stack, instructions = (form.search(log) for form in (_TIME, _STACK, _INSTRUCTIONS))
    if time is None or stack is None or instructions is None:
        raise ValueError(f"{program}: not the verifier's statistics: {log[-200:]!r}")
    bytes_of_stack = sum(map(int, stack[1].split("+")))
    milliseconds = int(time[1]) / 1000
    return ProgramCost(
        kernel_series(), program, int(instructions[1]), bytes_of_stack, milliseconds, compiled_by, commit
    )
