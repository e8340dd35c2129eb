import platform
import shutil
from collections.abc import Iterator

import pytest
from openvswitch_uplink import Uplink, made_uplink

from mptcp_lab.guest import kernels


@pytest.fixture(scope="session")
def stock_kernels() -> tuple[str, ...]:
    """The names of all stock kernels, which are in the cache: no test's output or time limit includes a download."""
    if platform.machine() != "x86_64":
        pytest.skip(f"this machine is {platform.machine()}; the guest runs its programs on x86_64")
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is not installed; lab/bootstrap --guest installs it")
    for name in kernels.NAMES:
        kernels.get(name, print)
    return tuple(kernels.NAMES)


@pytest.fixture(scope="module")
def uplink() -> Iterator[Uplink]:
    """Of a proxy whose interface is a port of an Open vSwitch; in the guest only."""
    with made_uplink() as uplink:
        yield uplink
