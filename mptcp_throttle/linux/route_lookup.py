"""Through which interface the kernel sends to an address (RTM_GETROUTE), as `ip route get` shows it."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, if_indextoname, if_nameindex
from typing import Final, Self

from pyroute2 import IPRoute

from mptcp_throttle.linux.kernel_error import KernelError, netlink_call
from mptcp_throttle.linux.timed_pyroute2 import timed
from mptcp_throttle.model import Address

_FAMILIES: Final = {4: AF_INET, 6: AF_INET6}
_RTN_UNICAST: Final = 1  # include/uapi/linux/rtnetlink.h
_RTN_LOCAL: Final = 2
_NO_ROUTE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL})
"""The errors for a route of type unreachable, prohibit or blackhole, and for no route (fib_props,
net/ipv4/fib_semantics.c)."""


class RouteLookup:
    """Looks up routes in this network namespace; that needs no rights. All methods raise KernelError."""

    def __init__(self) -> None:
        with netlink_call("open a netlink socket"), ExitStack() as stack:
            self._ip = stack.enter_context(timed(IPRoute))
            self._opened = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def address_of(self, interface: str, ip_version: int) -> Address | None:
        """The first address of an interface that is not for its link alone; None if it has none, or does not exist."""
        with netlink_call(f"ip -{ip_version} address show dev {interface}"):
            index = next((number for number, name in if_nameindex() if name == interface), None)
            messages = () if index is None else self._ip.get_addr(index=index, family=_FAMILIES[ip_version])
            # On a point-to-point interface IFA_ADDRESS is the peer's; an IPv6 address without a peer has no IFA_LOCAL.
            shown = (message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS") for message in messages)
            addresses = map(ip_address, shown)
            return next((address for address in addresses if not address.is_link_local), None)

    def interface_to(self, destination: Address, source: Address | None = None) -> str | None:
        """The interface through which packets to `destination` leave, sent from `source` if given; None if none do."""
        what = f"ip route get {destination}" + (f" from {source}" if source is not None else "")
        addresses = {"dst": str(destination)} | ({} if source is None else {"src": str(source)})
        try:
            with netlink_call(what):
                (route,) = self._ip.route("get", **addresses)
                is_usable = route["type"] in {_RTN_UNICAST, _RTN_LOCAL}
                return if_indextoname(route.get_attr("RTA_OIF")) if is_usable else None
        except KernelError as error:
            if error.number in _NO_ROUTE:
                return None
            raise
