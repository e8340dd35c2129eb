"""The TCP sockets that listen, each with the process that has it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from mptcp_throttle.linux.inet_diag import InetDiag, list_listening
from mptcp_throttle.linux.netlink_socket import read_consistently
from mptcp_throttle.setup.host_facts import Listener, Owner

_PROCESSES: Final = Path("/proc")
_SOCKET_LINK: Final = re.compile(r"socket:\[(\d+)\]")


def read_listeners() -> tuple[Listener, ...]:
    """All of this network namespace, by port. Raises KernelError."""
    with InetDiag() as diag:
        found = read_consistently(lambda: list(list_listening(diag)))
    owners = dict(_owners(_PROCESSES, {one.inode for one in found}))
    listeners = (Listener(ip_address(one.local), one.port, one.mptcp, owners.get(one.inode)) for one in found)
    return tuple(sorted(listeners, key=lambda one: (one.port, one.address.version, one.address)))


def _owners(processes: Path, inodes: Collection[int]) -> Iterator[tuple[int, Owner]]:
    """The owner of each socket; of several processes that share one, the first, as a rule the one that opened it."""
    left = set(inodes)
    for directory in sorted(
        (one for one in processes.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name)
    ):
        if not left:
            return
        here = left & set(_socket_inodes(directory / "fd"))
        if here:
            left -= here
            owner = _owner(directory)
            yield from ((inode, owner) for inode in here if owner is not None)


def _socket_inodes(descriptors: Path) -> Iterator[int]:
    """Those of a process; none if it has ended meanwhile, or is not ours to look at."""
    try:
        names = os.listdir(descriptors)
    except OSError:
        return
    for name in names:
        try:
            link = _SOCKET_LINK.fullmatch(os.readlink(descriptors / name))
        except OSError:
            continue
        if link is not None:
            yield int(link[1])


def _owner(directory: Path) -> Owner | None:
    try:
        name = (directory / "comm").read_text(encoding="utf-8", errors="replace").strip()
        cgroup = (directory / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return Owner(int(directory.name), printable(name), unit_of(cgroup))


def printable(name: str) -> str:
    """The name of a process, which any user can choose, without what ends a line of YAML or moves a cursor."""
    return re.sub(r"[^ -~]", "?", name)


def unit_of(cgroup: str) -> str | None:
    """The service in whose cgroup a process is, from /proc/PID/cgroup; None if it is in none, or in a user's own."""
    found = re.findall(r"^0::.*/([A-Za-z0-9:_.@\\-]+\.service)(?:/.*)?$", cgroup, re.MULTILINE)
    return found[-1] if found and not re.search(r"/user@\d+\.service/", cgroup) else None
