"""What must hold on the kernels that users run, not only on this machine's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mptcp_lab.guest.kernels import NAMES

REPOSITORY = Path(__file__).parents[2]
INSIDE = ("tests/guest/smoke.py", "tests/integration/test_qdisc_round_trip.py")
"""One start of the guest and of Python for all: these are the slow things there."""


@pytest.mark.parametrize("kernel", NAMES)
def test_the_main_job_is_done_and_every_qdisc_comes_back(kernel: str) -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mptcp_lab.guest", "--kernel", kernel, "--timeout", "300", "--"),
            *("python", "-m", "pytest", "-rs", "--disable-plugin-autoload", "-p", "no:cacheprovider", *INSIDE),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SKIPPED" not in result.stdout, result.stdout
