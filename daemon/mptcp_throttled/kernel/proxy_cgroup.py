"""The cgroup in which the proxy listens, for the sock_ops program to be attached to."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from mptcp_throttle.linux.fault_point import os_errors
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.kernel.sockets import listener_cgroups


class ProxyCgroup:
    """Finds the cgroup of the sockets that listen on the proxy's ports."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._last: tuple[frozenset[int], Path] | None = None

    def find(self) -> Path:
        """The directory of the cgroup; of several cgroups, the closest common ancestor. Raises KernelError.

        The directories are searched only when the listeners' cgroups have changed since the last call.
        """
        ids = listener_cgroups(self._ports)
        if not ids:
            raise KernelError(f"nobody listens on port {', '.join(map(str, self._ports))}", errno.ENOENT)
        if self._last is None or self._last[0] != ids:
            self._last = ids, _directory_of(ids)
        return self._last[1]


def _directory_of(ids: Collection[int]) -> Path:
    # os.walk skips directories that are removed meanwhile, as cgroups often are.
    with os_errors("look for the proxy's cgroup"):
        mount = _cgroup2_mount()
        found = [directory for directory, _, _ in os.walk(mount) if _inode(directory) in ids]
    if not found:
        remedy = "set daemon.cgroup, or daemon.pacing to false"
        raise KernelError(f"the proxy's cgroup is not below {mount}", errno.ENOENT, remedy)
    return Path(os.path.commonpath(found))


def _inode(directory: str) -> int | None:
    try:
        return os.stat(directory).st_ino
    except FileNotFoundError:
        return None


def _cgroup2_mount() -> Path:
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, file_system = line.partition(" - ")
        if file_system.split()[0] == "cgroup2":
            return Path(fields.split()[4])
    raise KernelError("no cgroup2 file system is mounted", errno.ENOENT, "mount one, or set daemon.pacing to false")
