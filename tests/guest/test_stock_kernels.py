"""What must hold on the kernels that users run, not only on this machine's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mptcp_lab.guest.kernels import NAMES

REPOSITORY = Path(__file__).parents[2]
INSIDE = (
    "tests/guest/smoke.py",
    "tests/integration/test_qdisc_round_trip.py",
    "tests/integration/test_uplink_program.py",
    "tests/integration/test_program_cost.py",
    "tests/integration/test_classifiers.py::test_classifier_reads_back_what_it_made_and_changed[nft]",
    "tests/integration/test_classifiers.py::test_flush_of_all_nftables_is_counted_and_read",
)
"""Run in one guest per kernel: starting the guest and Python takes longer than the tests."""

INSIDE_ONE = {
    "debian-6.1": (
        "tests/guest/hosts.py",
        "tests/guest/without_tcx.py",
        "tests/guest/openvswitch.py::test_capped_path_carries_its_cap",
    ),
    "debian-6.12": ("tests/integration/test_discards.py", "tests/guest/openvswitch_queues.py"),
}
"""Also run on one kernel: TCX came with Linux 6.6, and those of kinds of interfaces and of Open vSwitch take minutes.
Of openvswitch.py, which takes eight, only a part is run (docs/contribute/lab.md).

On debian-6.12 two of three runs of that file ended in a kernel panic (docs/explanation/classifiers.md).
"""

UNCLOSED = "ignore::pytest.PytestUnraisableExceptionWarning"
"""python-iptables, when it calls modprobe, leaves files open; this machine has no modprobe."""

REPEATING = f"""
export PYTEST_ADDOPTS="--disable-plugin-autoload -W {UNCLOSED}"
python -m pytest -rs --cache-clear "$@" || {{ (($? == 1)) && lab/repeat-failed python -m pytest; }}
"""
"""A shell's program. What it writes to the guest's file system is gone when the guest ends."""

HANG = "1800"
"""Seconds after which a guest is taken to hang. It takes a quarter of an hour beside the other one."""

MEMORY = "2048"
"""MiB, which also hold all that is written: a download of minutes is hundreds of them."""


@pytest.fixture(scope="module")
def guests(stock_kernels: tuple[str, ...]) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A guest per kernel, all at the same time: each keeps little more than one processor busy."""
    with ExitStack() as stack:
        running = {}
        for kernel in stock_kernels:
            guest = (sys.executable, "-m", "mptcp_lab.guest", "--kernel", kernel, "--memory", MEMORY, "--timeout", HANG)
            command = (*guest, "--", "bash", "-c", REPEATING, "bash", *INSIDE, *INSIDE_ONE.get(kernel, ()))
            running[kernel] = stack.enter_context(
                subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
            stack.callback(running[kernel].terminate)
        yield running


@pytest.mark.parametrize("kernel", NAMES)
def test_stock_kernel_throttles_and_restores_every_qdisc(
    guests: dict[str, subprocess.Popen[str]], kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output, _ = guests[kernel].communicate()
    assert guests[kernel].returncode == 0, output
    assert "SKIPPED" not in output, output
    if "failed beside other tests" in output:
        with capsys.disabled():
            print(output)
