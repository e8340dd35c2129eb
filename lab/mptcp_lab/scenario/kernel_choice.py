"""Which kernel a scenario needs, and whether this machine's has it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.congestion.coupled import COUPLED, kernel_takes_programs
from mptcp_lab.process import run
from mptcp_lab.scenario.scenario_schema import LATEST_KERNEL, Kernel

if TYPE_CHECKING:
    from mptcp_lab.scenario.scenario_schema import Scenario

CONGESTION_CONTROL: Final = "net.ipv4.tcp_congestion_control"
_QDISCS: Final = ("netem", "fq_codel")
_ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def needs(scenario: Scenario) -> tuple[str, ...]:
    """What not every kernel has: `netem`, and congestion controls."""
    sysctls = [host.sysctls for host in scenario.hosts.values()]
    controls = [parameters[CONGESTION_CONTROL] for parameters in sysctls if CONGESTION_CONTROL in parameters]
    return tuple(dict.fromkeys([*(["netem"] if scenario.emulated else []), *controls]))


def coupled_controls(scenario: Scenario) -> tuple[str, ...]:
    """The congestion controls that the lab must register for it."""
    return tuple(need for need in needs(scenario) if need in COUPLED)


def choose(scenario: Scenario, forced: Kernel | None) -> tuple[Kernel, str]:
    """The kernel to run the scenario on, and why in a few words."""
    if forced is not None:
        return forced, "as the command line says"
    if scenario.kernel is not None:
        return scenario.kernel, "as the scenario says"
    missing = [need for need in needs(scenario) if not native_has(need)]
    if missing:
        return Kernel(LATEST_KERNEL), f"this machine's kernel has no {', '.join(missing)} for network namespaces"
    return Kernel.NATIVE, "this machine's kernel has all it needs"


@cache
def native_has(need: str) -> bool:
    """Whether network namespaces of this kernel have that qdisc of `_QDISCS`, or that congestion control."""
    if need in COUPLED:
        return kernel_takes_programs()
    if need not in _QDISCS:
        # A namespace may choose among these only (net/ipv4/tcp_cong.c, tcp_set_default_congestion_control).
        return need in _ALLOWED.read_text(encoding="ascii").split()
    if os.geteuid() != 0:
        return False
    probe = f"tc qdisc add dev lo root {need}"
    return run(["unshare", "--net", *probe.split()], check=False).returncode == 0


def allow_congestion_controls(names: set[str]) -> None:
    """Let network namespaces choose these, for as long as this kernel runs: for a guest's, which is ours alone."""
    for name in names:
        run(["modprobe", f"tcp_{name}"], check=False)
    _ALLOWED.write_text(" ".join({*_ALLOWED.read_text(encoding="ascii").split(), *names}), encoding="ascii")
