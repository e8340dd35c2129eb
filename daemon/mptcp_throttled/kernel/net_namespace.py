"""Which network namespace this process is in."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Final

from mptcp_throttle.linux.kernel_error import os_errors

# include/uapi/asm-generic/socket.h (x86 and arm64)
_SO_NETNS_COOKIE: Final = 71
_COOKIE: Final = Struct("=Q")


def netns_cookie() -> int:
    """The number of this network namespace, which no other has until a reboot. Raises KernelError before Linux 5.14."""
    with os_errors("getsockopt SO_NETNS_COOKIE"), socket.socket(socket.AF_UNIX) as any_socket:
        (cookie,) = _COOKIE.unpack(any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))
    return int(cookie)
