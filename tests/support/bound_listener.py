"""A server whose socket is bound to a device, as `interface` of HAProxy and `BindToDevice=` of systemd do it."""

from __future__ import annotations

import ctypes
import os
import re
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from foreign_program import SYS_PIDFD_GETFD

from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.host import Host


@contextmanager
def listener_bound_to(interface: str, proxy: Host) -> Iterator[None]:
    """Inside the block, connections that begin are bound to the interface."""
    shown = proxy.run("ss", "-tlnpH", "sport", "=", f":{PORT}").stdout
    found = re.search(r"pid=(\d+),fd=(\d+)", shown)
    assert found is not None, shown
    process = os.pidfd_open(int(found[1]))
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, process, int(found[2]), 0)
    os.close(process)
    with socket.socket(fileno=descriptor) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        try:
            yield
        finally:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"")
