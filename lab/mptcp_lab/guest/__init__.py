"""A throw-away machine that runs one command on a stock Debian kernel, with this machine's files.

qemu emulates the processor, so that no hardware support is needed. What happens, in order:

    kernels    which kernel; its package is downloaded and unpacked once
    initramfs  the archive that finds the file system: modules, and the two init scripts beside this file
    machine    qemu and what serves it files, from the first instruction to the command's exit status
"""

from __future__ import annotations

import os
from typing import Final

ENVIRONMENT_VARIABLE: Final = "MPTCP_LAB_GUEST"
"""Set inside the guest only, to the name of its kernel."""

EX_TIME_LIMIT: Final = 124
EX_NO_STATUS: Final = 125
"""As timeout(1) has them: the command took too long; it could not be run, or not to its end."""


def inside() -> str | None:
    """The name of the guest kernel this program runs on; None outside a guest."""
    return os.environ.get(ENVIRONMENT_VARIABLE)
