"""A sock_ops program that is not ours on a cgroup (`foreign.bpf.c`), and options that the proxy itself sets."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bpf_compiler import compiled

from mptcp_throttle.linux.libbpf import BpfObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.host import Host

_SOURCE: Final = Path(__file__).with_name("foreign.bpf.c")
SYS_PIDFD_GETFD: Final = 438  # include/uapi/asm-generic/unistd.h
# SO_NETNS_COOKIE: include/uapi/asm-generic/socket.h
_PRINT_COOKIE: Final = """\
import socket, sys
print(int.from_bytes(socket.socket().getsockopt(socket.SOL_SOCKET, 71, 8), sys.byteorder))
"""


def mount_of_cgroup2() -> Path:
    """Where cgroup2 is mounted."""
    command = ("findmnt", "-rno", "TARGET", "-t", "cgroup2")
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


def is_removed(cgroup: Path) -> bool:
    """Remove a cgroup with those below it, unless there is a process in it."""
    with suppress(OSError):
        for directory, _, _ in os.walk(cgroup, topdown=False):
            os.rmdir(directory)
    return not cgroup.exists()


@contextmanager
def own_cgroup() -> Iterator[Path]:
    """A new cgroup without a process, which the block leaves without one."""
    cgroup = Path(tempfile.mkdtemp(prefix="mptl-", dir=mount_of_cgroup2()))
    try:
        yield cgroup
    finally:
        cgroup.rmdir()


def _cgroup_of(pid: int) -> Path:
    lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    (path,) = (line.removeprefix("0::/") for line in lines if line.startswith("0::"))
    return mount_of_cgroup2() / path


class ForeignProgram:
    """Attached to the cgroup of a process on `host` until `close`; `directory` is for the compiled object."""

    def __init__(self, host: Host, pid: int, directory: Path) -> None:
        cookie = int(host.run(sys.executable, "-c", _PRINT_COOKIE).stdout)
        self._object = BpfObject(compiled(_SOURCE, directory), cookie.to_bytes(8, sys.byteorder))
        self._object.attach_cgroup("count_packets", _cgroup_of(pid))
        self._counts = self._object.map("packets")

    @property
    def packets(self) -> int:
        """How often it has been called for a packet."""
        return int.from_bytes(self._counts.get(bytes(4)), sys.byteorder)

    def close(self) -> None:
        """Detach it."""
        self._object.close()


def sockets_of(pid: int, port: int) -> Iterator[socket.socket]:
    """The connected sockets of a process with that local port, as its own calls would have them."""
    library = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            descriptor = library.syscall(SYS_PIDFD_GETFD, process, int(name), 0)
            if descriptor < 0:
                continue
            try:
                found = socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)
                continue
            with found:
                if found.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(found, port):
                    yield found
    finally:
        os.close(process)


def _is_connected(found: socket.socket, port: int) -> bool:
    try:
        found.getpeername()
    except OSError:
        return False
    return bool(found.getsockname()[1] == port)
