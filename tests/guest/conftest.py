import platform
import shutil

import pytest


@pytest.fixture(autouse=True)
def _guests_can_run_here() -> None:
    if platform.machine() != "x86_64":
        pytest.skip(f"this machine is {platform.machine()}, and the guest runs its programs on x86_64")
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is not installed; lab/bootstrap --guest installs it")
