"""The network interfaces of this network namespace."""

from __future__ import annotations

import errno
import fcntl
import socket
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from socket import if_indextoname, if_nameindex, if_nametoindex
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError, netlink_call, os_errors
from mptcp_throttle.linux.link_header import LinkHeader, link_header_of

# include/uapi/linux/sockios.h, if.h (struct ifreq)
_SIOCGIFHWADDR: Final = 0x8927
_IFNAMSIZ, _IFREQ_BYTES = 16, 40


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface: its index identifies it for as long as it exists, its name may change."""

    index: int
    name: str


def all_interfaces() -> list[Interface]:
    """All of them. Raises KernelError."""
    with netlink_call("ip link show"):
        return [Interface(index, name) for index, name in if_nameindex()]


def exists(index: int) -> bool:
    """Whether there is an interface with this index."""
    try:
        if_indextoname(index)
    except OSError:
        return False
    return True


def find_interface(name: str) -> Interface:
    """The interface with this name. Raises KernelError with ENODEV if there is none."""
    try:
        return Interface(if_nametoindex(name), name)
    except OSError as error:
        raise KernelError(f"interface {name} does not exist", errno.ENODEV) from error


def find_interfaces(names: Collection[str]) -> list[Interface]:
    """The interfaces that exist, each once: an interface may have several names (ip link property, altname)."""
    by_index: dict[int, Interface] = {}
    for name in names:
        with suppress(KernelError):
            interface = find_interface(name)
            by_index.setdefault(interface.index, interface)
    return list(by_index.values())


def require_interfaces(names: tuple[str, ...]) -> list[Interface]:
    """As `find_interfaces`. Raises KernelError with ENODEV if none exists."""
    interfaces = find_interfaces(names)
    if not interfaces:
        raise KernelError(none_exists(names), errno.ENODEV)
    return interfaces


def none_exists(names: tuple[str, ...]) -> str:
    """The error if no interface with one of these names exists."""
    return f"interface {names[0]} does not exist" if len(names) == 1 else f"none of {', '.join(names)} exists"


def read_link_header(interface: Interface) -> LinkHeader | None:
    """The header with which its frames begin; None: not supported. Raises KernelError."""
    request = interface.name.encode().ljust(_IFREQ_BYTES, b"\0")
    with os_errors(f"ip link show {interface.name}"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, _SIOCGIFHWADDR, request)
    return link_header_of(int.from_bytes(answer[_IFNAMSIZ : _IFNAMSIZ + 2], sys.byteorder))
