"""Interfaces without an Ethernet header, as WireGuard and PPP have them: tun, whose other end is this process."""

from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Final

from mptcp_lab.namespaces import in_namespace

# include/uapi/linux/if_tun.h
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 1, 0x1000
_REQUEST: Final = Struct("16sH22x")  # struct ifreq
_MOST_BYTES: Final = 1 << 16


@contextmanager
def tun(namespace: str, name: str) -> Iterator[int]:
    """An interface that exists inside the block, and its other end: a packet is read or written at a time."""
    with in_namespace(namespace):
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(descriptor, _TUNSETIFF, _REQUEST.pack(name.encode(), _IFF_TUN | _IFF_NO_PI))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def connected(one: int, other: int) -> Iterator[None]:
    """Inside the block, what leaves through one of two interfaces arrives at the other."""
    ended, end = os.pipe()
    peers = {one: other, other: one}

    def forward() -> None:
        while True:
            ready, _, _ = select.select([ended, *peers], [], [])
            if ended in ready:
                return
            for descriptor in ready:
                os.write(peers[descriptor], os.read(descriptor, _MOST_BYTES))

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield
    finally:
        os.write(end, b".")
        thread.join()
        os.close(end)
        os.close(ended)
