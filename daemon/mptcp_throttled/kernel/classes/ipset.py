"""Our ipsets; those of others are neither read nor changed.

A set maps the subflows of one IP version and one proxy port to packet marks: `hash:ip,port,ip` with `skbinfo`.

What a JOIN, a full reconcile or a restart needs goes through our own netlink code: it adds a mark in 0.07 ms (pyroute2:
1.4 ms) and 1000 marks in 2.5 ms (1053 ms). pyroute2 does what is rare: rename, swap, destroy, look for the set type.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Final, NamedTuple

from pyroute2 import IPSet
from pyroute2.netlink import NETLINK_NETFILTER, NLA_F_NESTED, NLA_F_NET_BYTEORDER, NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_IPSET, ipset

from mptcp_throttle.linux.kernel_error import KernelError, netlink_call
from mptcp_throttle.linux.netlink_codec import attribute, attributes, text
from mptcp_throttle.linux.netlink_socket import NetlinkSocket, Request

MAX_MARKS: Final = 2**20
"""Most elements that one set may have: 32 bytes of kernel memory each (IPv6: 56), twice that while the hash grows."""

SET_TYPE: Final = "hash:ip,port,ip"
_PROTOCOL: Final = 6  # IPSET_PROTOCOL_MIN: what every kernel speaks (include/uapi/linux/netfilter/ipset/ip_set.h)
_MIN_REVISION: Final = 5  # skbinfo (net/netfilter/ipset/ip_set_hash_ipportip.c)
_FAMILIES: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_NFGENMSG: Final = Struct("!BBH")
# include/uapi/linux/netfilter/ipset/ip_set.h: IPSET_ATTR_... of commands, and of a set's parameters (IPSET_ATTR_DATA)
_ATTR_PROTOCOL, _ATTR_SETNAME, _ATTR_TYPENAME, _ATTR_REVISION, _ATTR_FAMILY, _ATTR_FLAGS = 1, 2, 3, 4, 5, 6
_ATTR_DATA, _ATTR_ADT, _ATTR_LINENO = 7, 8, 9
_ATTR_TIMEOUT, _ATTR_CADT_FLAGS, _ATTR_MAXELEM, _ATTR_ELEMENTS = 6, 8, 19, 24
_NUMBER: Final = Struct("!I")
_NAME: Final = re.compile(r"mptcp-throttle-([46])-(\d{1,5})(-new)?")
_NO_IPSET: Final = frozenset({errno.EINVAL, errno.EPROTONOSUPPORT, errno.EOPNOTSUPP})
_ELEMENTS_BYTES: Final = 60_000  # the length of an attribute has 16 bits
_IPSET_ERR_HASH_FULL: Final = ipset.IPSET_ERR_TYPE_SPECIFIC  # include/uapi/linux/netfilter/ipset/ip_set_hash.h
_ERRORS: Final = {
    ipset.IPSET_ERR_BUSY: (errno.EBUSY, "somebody else's rule refers to it"),
    ipset.IPSET_ERR_FIND_TYPE: (errno.ENOENT, "CONFIG_IP_SET_HASH_IPPORTIP"),
    ipset.IPSET_ERR_MAX_SETS: (errno.ENOSPC, "the kernel holds no more sets"),
    _IPSET_ERR_HASH_FULL: (errno.ENOSPC, f"a set holds at most {MAX_MARKS} subflows"),
}


class OwnSet(NamedTuple):
    """The set for one IP version and proxy port; `new` while it is filled to replace the present one."""

    ip_version: int
    port: int
    new: bool = False

    @property
    def name(self) -> str:
        """Its name in ipset(8), at most 31 characters."""
        return f"mptcp-throttle-{self.ip_version}-{self.port}{'-new' if self.new else ''}"

    @classmethod
    def parse(cls, name: str) -> OwnSet | None:
        """The inverse of `name`; None if no set of ours has that name."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2]), match[3] is not None)


class SetHeader(NamedTuple):
    """Whether a set has the parameters that `OwnSets.create` uses, and the number of its elements if known."""

    is_as_made: bool
    elements: int | None


class OwnSets:
    """Our sets in the kernel. For one thread only; all methods raise KernelError.

    A set that a rule refers to cannot be destroyed, but it can be swapped with another.
    """

    def __init__(self, max_marks: int = MAX_MARKS) -> None:
        self._max_marks = max_marks
        self._opened: IPSet | None = None
        self._socket: NetlinkSocket | None = None
        self._absent = False

    def close(self) -> None:
        """Close the netlink sockets; they are opened again when needed."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def require(self) -> None:
        """Raise KernelError if the kernel lacks the set type or skbinfo."""
        with _call(f"look for {SET_TYPE} of ipset"):
            _, newest = self._ipset().get_supported_revisions(SET_TYPE)
        if newest < _MIN_REVISION:
            raise KernelError(f"the kernel's {SET_TYPE} has no skbinfo (Linux 3.19)", errno.ENOENT)

    def present(self) -> dict[OwnSet, SetHeader]:
        """Our sets; none if the kernel has no ipset."""
        if self._absent:
            return {}
        try:
            headers = self._list(
                "ipset list -terse", attribute(_ATTR_FLAGS, _NUMBER.pack(ipset.IPSET_FLAG_LIST_HEADER))
            )
        except _NoIpsetError:
            # Each attempt makes the kernel run modprobe(8).
            self._absent = True
            return {}
        named = ((OwnSet.parse(text(header[_ATTR_SETNAME])), header) for header in headers)
        return {own: self._header(own, header) for own, header in named if own is not None}

    def elements(self, own: OwnSet) -> Iterator[bytes]:
        """The elements of a set, encoded, some hundreds concatenated at a time."""
        return (part.get(_ATTR_ADT, b"") for part in self._list(f"ipset list {own.name}", _named(own)))

    def create(self, own: OwnSet) -> None:
        """Create an empty set."""
        self._carry_out(create_request(own, self._max_marks))

    def add(self, own: OwnSet, elements: Sequence[bytes]) -> None:
        """Add encoded elements; present ones get the new mark. If one is refused, those before it have been added."""
        self._alter("add", ipset.IPSET_CMD_ADD, own, elements)

    def delete(self, own: OwnSet, elements: Sequence[bytes]) -> None:
        """Delete encoded elements; absent ones are skipped."""
        self._alter("del", ipset.IPSET_CMD_DEL, own, elements)

    def rename(self, own: OwnSet, other: OwnSet) -> None:
        """Rename a set that no rule refers to, to a name that is free."""
        with _call(f"ipset rename {own.name} {other.name}"):
            self._ipset().rename(own.name, other.name)

    def swap(self, own: OwnSet, other: OwnSet) -> None:
        """Exchange the contents of two sets, atomically also for the rules that refer to them."""
        with _call(f"ipset swap {own.name} {other.name}"):
            self._ipset().swap(own.name, other.name)

    def destroy(self, *sets: OwnSet) -> None:
        """Destroy sets."""
        for own in sets:
            with _call(f"ipset destroy {own.name}"):
                self._ipset().destroy(own.name)

    def destroy_all(self, ip_version: int) -> None:
        """Destroy all our sets of that IP version."""
        self.destroy(*(own for own in self.present() if own.ip_version == ip_version))

    def _header(self, own: OwnSet, header: Mapping[int, bytes]) -> SetHeader:
        made_with = attributes(header.get(_ATTR_DATA, b""))
        is_as_made = (
            text(header[_ATTR_TYPENAME]) == SET_TYPE
            and header[_ATTR_FAMILY] == bytes([_FAMILIES[own.ip_version]])
            and made_with.get(_ATTR_MAXELEM) == _NUMBER.pack(self._max_marks)
            and made_with.get(_ATTR_CADT_FLAGS) == _NUMBER.pack(ipset.IPSET_FLAG_WITH_SKBINFO)
            and _ATTR_TIMEOUT not in made_with
        )
        elements = made_with.get(_ATTR_ELEMENTS)
        return SetHeader(is_as_made, None if elements is None else _NUMBER.unpack(elements)[0])

    def _list(self, what: str, which: bytes) -> list[dict[int, bytes]]:
        """The attributes of each answer to IPSET_CMD_LIST with the attribute `which`."""
        with _call(what):
            self._ipset()
            request = ipset_request(what, ipset.IPSET_CMD_LIST, which)
            return [attributes(payload, _NFGENMSG.size) for payload in self._requests().dump(request)]

    def _alter(self, verb: str, command: int, own: OwnSet, elements: Sequence[bytes]) -> None:
        if not elements:
            return
        step = _ELEMENTS_BYTES // len(elements[0])
        for begin in range(0, len(elements), step):
            some = elements[begin : begin + step]
            what = f"ipset {verb} {own.name}: {len(some)} marks"
            self._carry_out(elements_request(what, command, own, some))

    def _carry_out(self, request: Request) -> None:
        (refusal,) = self._requests().carry_out([request])
        if refusal is not None:
            raise _explained(request.what, refusal)

    def _requests(self) -> NetlinkSocket:
        if self._socket is None:
            self._socket = NetlinkSocket(NETLINK_NETFILTER)
        return self._socket

    def _ipset(self) -> IPSet:
        if self._opened is None:
            try:
                # Raises an error without ipset: it asks the kernel for its protocol version.
                self._opened = IPSet()
            except (NetlinkError, OSError) as error:
                number = error.code if isinstance(error, NetlinkError) else error.errno
                if number in _NO_IPSET:
                    raise _NoIpsetError from error
                raise
        return self._opened


class _NoIpsetError(KernelError):
    def __init__(self) -> None:
        super().__init__("the kernel has no ipset (CONFIG_IP_SET)", errno.ENOENT)


def ipset_request(what: str, command: int, *body: bytes, flags: int = 0) -> Request:
    """A request for IPSET_CMD_... with these netlink attributes; `flags` are NLM_F_..."""
    head = _NFGENMSG.pack(socket.AF_INET, 0, 0), attribute(_ATTR_PROTOCOL, bytes([_PROTOCOL]))
    return Request(what, NFNL_SUBSYS_IPSET << 8 | command, flags, b"".join([*head, *body]))


def create_request(own: OwnSet, max_marks: int) -> Request:
    """Create an empty set for at most `max_marks` elements."""
    parameters = (
        attribute(_ATTR_MAXELEM | NLA_F_NET_BYTEORDER, _NUMBER.pack(max_marks)),
        attribute(_ATTR_CADT_FLAGS | NLA_F_NET_BYTEORDER, _NUMBER.pack(ipset.IPSET_FLAG_WITH_SKBINFO)),
    )
    return ipset_request(
        f"ipset create {own.name} {SET_TYPE}",
        ipset.IPSET_CMD_CREATE,
        _named(own),
        attribute(_ATTR_TYPENAME, SET_TYPE.encode() + b"\0"),
        attribute(_ATTR_REVISION, bytes([_MIN_REVISION])),
        attribute(_ATTR_FAMILY, bytes([_FAMILIES[own.ip_version]])),
        attribute(_ATTR_DATA | NLA_F_NESTED, b"".join(parameters)),
        flags=NLM_F_CREATE | NLM_F_EXCL,
    )


def elements_request(what: str, command: int, own: OwnSet, elements: Sequence[bytes]) -> Request:
    """Add or delete encoded elements."""
    nested = attribute(_ATTR_ADT | NLA_F_NESTED, b"".join(elements))
    return ipset_request(what, command, _named(own), attribute(_ATTR_LINENO, bytes(4)), nested)


def _named(own: OwnSet) -> bytes:
    return attribute(_ATTR_SETNAME, own.name.encode() + b"\0")


@contextmanager
def _call(what: str) -> Iterator[None]:
    try:
        with netlink_call(what):
            yield
    except KernelError as error:
        raise _explained(what, error) from error


def _explained(what: str, error: KernelError) -> KernelError:
    return KernelError(what, *_ERRORS[error.number]) if error.number in _ERRORS else error
