"""A virtual machine that runs one command on a stock Debian kernel, with this machine's files, and is then discarded.

qemu emulates the processor, so no hardware support is needed. The modules, in the order of what happens:

    kernels    downloads and unpacks the kernel's package, once
    initramfs  packs the archive that mounts the root file system: modules, and the two scripts beside this file
    machine    runs qemu and virtiofsd, from the start to the command's exit status
"""

from __future__ import annotations

import os
from typing import Final

ENVIRONMENT_VARIABLE: Final = "MPTCP_LAB_GUEST"
"""Set inside the guest only, to the name of its kernel."""

EX_TIME_LIMIT: Final = 124
EX_NO_STATUS: Final = 125
"""Exit statuses, as of timeout(1): the command took too long; the command could not be run to its end."""


def inside() -> str | None:
    """The name of the guest kernel this program runs on; None outside a guest."""
    return os.environ.get(ENVIRONMENT_VARIABLE)
