"""Keeps the kernel program attached from one instance of the daemon to the next, so that it goes on deciding."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from mptcp_throttle import systemd
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import detach_link

_NAME: Final = "kernel-program"


class KeptLink:
    """The link (struct bpf_link) of which systemd keeps a copy; at first, the one that an earlier instance has left.

    Nothing is taken over from the earlier program, which may be of another version: it is only detached.
    """

    def __init__(self) -> None:
        self._earlier = systemd.take_kept(_NAME)

    def replace(self, link: int | None) -> None:
        """Keep this link, or none. The program of an earlier instance is detached."""
        systemd.keep(_NAME, link)
        for earlier in self._earlier:
            # Without CAP_BPF it is detached when systemd has closed its copy.
            with suppress(KernelError):
                detach_link(earlier)
            os.close(earlier)
        self._earlier = ()

    def forget_earlier(self) -> None:
        """Detach the program of an earlier instance, unless that has been done."""
        if self._earlier:
            self.replace(None)
