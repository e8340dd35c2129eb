"""The namespace lock: one daemon or clean-up at a time in a network namespace, whatever its configuration and files.

It is not per interface. A start or a clean-up removes what an earlier instance has left on any interface. The tables
of nftables and the chains of iptables belong to the namespace, and two kernel programs would pace the same sockets.

A process has the lock while it has a raw socket of `_PROTOCOL` that is bound to `_ADDRESS`, its claim:

* /proc/net/raw lists it to all processes of the namespace, whatever their mounts, users and process ids.
* The kernel closes it when the process ends, however it ends.
* It takes CAP_NET_RAW in the namespace, so no other user can take the lock first. Any user could bind an abstract Unix
  socket, or lock the file of the namespace (/proc/self/ns/net).

Each process claims the lock before it looks for other claims, so two that start at once cannot miss each other. Both
withdraw, and try again after different pauses.

The name of an abstract Unix socket tells whose claim it is. Any user can forge such a name, so it decides nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mptcp_throttle import service
from mptcp_throttle.errors import UserError

_PROTOCOL: Final = 253  # for experiments (RFC 3692)
# A multicast group, which can be bound without an interface; as it is not joined, nothing is received. 0x4d50 is ours.
_ADDRESS: Final = "239.77.80.0"
_SOCKETS: Final = Path("/proc/self/net")  # /proc/net is hidden by ProcSubset=pid
_NAME_BYTES: Final = 108  # sun_path, include/uapi/linux/un.h
_ATTEMPTS: Final = 3
_LONGEST_PAUSE_MS: Final = 100


@contextmanager
def namespace_lock(config: Path) -> Iterator[None]:
    """Hold the lock inside the block, in the name of this process and its configuration file.

    Raises UserError that names the process which has it, or if this process lacks CAP_NET_RAW in the namespace.
    """
    holder = ""
    for _ in range(_ATTEMPTS):
        with _claimed(config) as own:
            foreign = [claim for claim in _claims() if claim != own]
            if not foreign:
                yield
                return
            holder = _holder(foreign[0])
        time.sleep(secrets.randbelow(_LONGEST_PAUSE_MS) / 1000)
    raise UserError(f"mptcp-throttled is running already in this network namespace: {holder}", os.EX_TEMPFAIL)


@contextmanager
def _claimed(config: Path) -> Iterator[int]:
    """Claim the lock inside the block; yields the inode number of the claim."""
    try:
        claim = socket.socket(socket.AF_INET, socket.SOCK_RAW, _PROTOCOL)
    except PermissionError as error:
        raise service.lacks_capability("CAP_NET_RAW") from error
    with claim, socket.socket(socket.AF_UNIX) as name:
        inode = os.fstat(claim.fileno()).st_ino
        with suppress(OSError):  # forged
            name.bind(_name(inode, config))
        claim.bind((_ADDRESS, 0))
        yield inode


def _claims() -> list[int]:
    """The inode numbers of all claims."""
    address = int.from_bytes(socket.inet_aton(_ADDRESS), sys.byteorder)
    bound = f"{address:08X}:{_PROTOCOL:04X}"
    rows = [line.split() for line in (_SOCKETS / "raw").read_text(encoding="ascii").splitlines()]
    return [int(row[9]) for row in rows if row[1] == bound]


def _prefix(inode: int) -> str:
    return f"mptcp-throttled {inode} "


def _name(inode: int, config: Path) -> bytes:
    """The name of a claim: process id and configuration file, of whose path the end is kept if it is too long."""
    start = f"\0{_prefix(inode)}{os.getpid()} ".encode()
    path, room = os.fsencode(config.absolute()), _NAME_BYTES - len(start)
    return start + (path if len(path) <= room else b"..." + path[3 - room :])


def _holder(inode: int) -> str:
    """Whose claim it is, as its name says."""
    for line in (_SOCKETS / "unix").read_text(encoding="utf-8", errors="replace").split("\n"):
        _, _, text = line.partition(f" @{_prefix(inode)}")
        process, _, config = text.partition(" ")
        if process.isdecimal() and config.isprintable():
            return f"process {process}, {config}"
    return "another program"
