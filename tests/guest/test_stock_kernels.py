"""What must hold on the kernels that users run, not only on this machine's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mptcp_lab.guest.kernels import NAMES

REPOSITORY = Path(__file__).parents[2]
INSIDE = ("tests/guest/smoke.py", "tests/integration/test_original_qdiscs.py")
"""Run in one guest per kernel: starting the guest and Python takes longer than the tests."""

HANG = "1800"
"""Seconds after which a guest is taken to hang. It takes one minute, or several beside other load."""


@pytest.mark.usefixtures("stock_kernels")
@pytest.mark.parametrize("kernel", NAMES)
def test_stock_kernel_throttles_and_restores_every_qdisc(kernel: str) -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mptcp_lab.guest", "--kernel", kernel, "--timeout", HANG, "--"),
            *("python", "-m", "pytest", "-rs", "--disable-plugin-autoload", "-p", "no:cacheprovider", *INSIDE),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SKIPPED" not in result.stdout, result.stdout
