"""Whether a mangle table may have a chain, without python-iptables, which takes long to load.

The structures are those of <linux/netfilter_ipv4/ip_tables.h> and <linux/netfilter_ipv6/ip6_tables.h>.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from typing import Final

_LEVELS: Final = {4: (socket.AF_INET, socket.IPPROTO_IP), 6: (socket.AF_INET6, socket.IPPROTO_IPV6)}
_GET_INFO: Final = 64
_GET_ENTRIES: Final = 65
_MANGLE: Final = b"mangle"
_READINGS: Final = 20
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Info(ctypes.Structure):
    """struct ipt_getinfo, and struct ip6t_getinfo."""

    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("valid_hooks", ctypes.c_uint),
        ("hook_entry", ctypes.c_uint * 5),
        ("underflow", ctypes.c_uint * 5),
        ("num_entries", ctypes.c_uint),
        ("size", ctypes.c_uint),
    )


class _Entries(ctypes.Structure):
    """struct ipt_get_entries, and struct ip6t_get_entries: entries are aligned to 8 bytes, as the counters in them."""

    _fields_ = (("name", ctypes.c_char * 32), ("size", ctypes.c_uint), ("entries", ctypes.c_uint64 * 0))


def may_have_chain(ip_version: int, chain: str) -> bool:
    """Whether the name of this chain is anywhere in the table of this network namespace: as a chain, or in a rule.

    As with python-iptables, the kernel makes the table if there is none. Raises OSError.
    """
    family, level = _LEVELS[ip_version]
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
        for reading in range(1, _READINGS + 1):
            info = _Info(name=_MANGLE)
            _ask(asking, level, _GET_INFO, info)
            entries = ctypes.create_string_buffer(ctypes.sizeof(_Entries) + info.size)
            head = _Entries.from_buffer(entries)
            head.name, head.size = _MANGLE, info.size
            try:
                _ask(asking, level, _GET_ENTRIES, entries)
            except OSError as error:
                # Another program has changed the table in between.
                if error.errno != errno.EAGAIN or reading == _READINGS:
                    raise
            else:
                return chain.encode() + b"\0" in entries.raw
    raise AssertionError


def _ask(asking: socket.socket, level: int, option: int, value: ctypes.Structure | ctypes.Array[ctypes.c_char]) -> None:
    size = ctypes.c_uint(ctypes.sizeof(value))
    if _LIBC.getsockopt(asking.fileno(), level, option, ctypes.byref(value), ctypes.byref(size)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
