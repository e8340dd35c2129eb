"""Our nftables tables, one per IP version; tables of other programs are neither read nor changed.

Our own netlink code, because libnftables reads all sets of the host again for each change:
docs/explanation/own-code.md has the figures.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pyroute2.netlink import NETLINK_NETFILTER

from mptcp_throttle.linux.kernel_error import KernelError, decoding_errors
from mptcp_throttle.linux.netlink_socket import DumpInterrupted, NetlinkSocket, Request
from mptcp_throttle.own_chains import BEFORE_NAT, OWN_TABLE
from mptcp_throttled.kernel.classes import nft_messages
from mptcp_throttled.kernel.classes.nft_messages import CHAIN, FAMILIES, MAP, Part

_CHECKED: Final = f"{OWN_TABLE}-check"  # never committed
_NO_NFTABLES: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT})


class OwnTables:
    """Our tables in the kernel, with chains of this priority. For one thread only; all methods raise KernelError.

    Every change is one transaction: all of it is made, or nothing. `generation` tells whether nftables was changed
    between or during calls that read.
    """

    def __init__(self, priority: int = BEFORE_NAT) -> None:
        self._priority = priority
        self._socket: NetlinkSocket | None = None
        self._absent = False

    def close(self) -> None:
        """Close the netlink socket; it is opened again when needed."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def require(self) -> None:
        """Raise KernelError if the kernel cannot have our table for IPv4."""
        what = "look for maps of nftables"
        try:
            requests = tuple(nft_messages.make_requests(4, (), table=_CHECKED))
            self._netlink().carry_out_together(what, nft_messages.batch(requests, commit=False))
        except KernelError as error:
            if error.number in {*_NO_NFTABLES, errno.ENOENT}:
                raise KernelError(what, error.number, "CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4") from error
            raise

    def generation(self) -> int:
        """The number of changes that this host has made to nftables, modulo 2 ** 32; 0 if the kernel has none."""
        what = "look for changes of nftables"
        answer = self._get(nft_messages.generation_request(what))
        with decoding_errors(what):
            return 0 if answer is None else nft_messages.generation_of(answer)

    def present(self) -> set[int]:
        """The IP versions for which a table with our name exists; none if the kernel has no nftables."""
        return {version for version in FAMILIES if self._table(version) is not None}

    def is_as_made(self, ip_version: int) -> bool | None:
        """Whether our table has what `make` puts into it, elements aside, and nothing else; None if there is none."""
        table = self._table(ip_version)
        if table is None:
            return None
        if not nft_messages.is_table(table):
            return False
        subflows = self._get(
            nft_messages.part_request(f"nft list map {_name(ip_version)} {MAP}", Part.MAP_HEADER, ip_version)
        )
        if subflows is None or not nft_messages.is_map(subflows, ip_version):
            return False
        what = f"nft list chain {_name(ip_version)} {CHAIN}"
        chain = self._get(nft_messages.part_request(what, Part.CHAIN_HEADER, ip_version))
        if chain is None or not nft_messages.is_chain(chain, self._priority):
            return False
        rules = list(self._dump(nft_messages.part_request(what, Part.RULES, ip_version)))
        return len(rules) == 1 and nft_messages.is_rule(rules[0], ip_version)

    def elements(self, ip_version: int) -> Iterator[bytes]:
        """The elements of our map, encoded, some hundreds concatenated at a time."""
        what = f"nft list map {_name(ip_version)} {MAP}"
        return map(nft_messages.elements_of, self._dump(nft_messages.part_request(what, Part.ELEMENTS, ip_version)))

    def make(self, ip_version: int, elements: Sequence[bytes]) -> None:
        """Make our table with exactly these encoded elements; one that exists is replaced."""
        what = f"nft add table {_name(ip_version)}: {len(elements)} assignments"
        new = nft_messages.make_requests(ip_version, elements, self._priority)
        self._commit(what, (*nft_messages.delete_requests(ip_version), *new))

    def change(self, ip_version: int, add: Sequence[bytes], delete: Sequence[bytes]) -> None:
        """Delete and add encoded elements. Those to be deleted must be in the map, those to be added not."""
        what = f"nft add element {_name(ip_version)} {MAP}: {len(add)} assignments, and delete {len(delete)}"
        self._commit(what, tuple(nft_messages.change_requests(ip_version, add, delete)))

    def remove(self, ip_version: int) -> None:
        """Remove our table, if there is one."""
        if self._table(ip_version) is not None:
            self._commit(f"nft delete table {_name(ip_version)}", nft_messages.delete_requests(ip_version))

    def _table(self, ip_version: int) -> Mapping[int, bytes] | None:
        return self._get(nft_messages.part_request(f"nft list table {_name(ip_version)}", Part.TABLE, ip_version))

    def _get(self, request: Request) -> Mapping[int, bytes] | None:
        """The attributes that the kernel answers; None if it does not know what is asked for."""
        if self._absent:
            return None
        try:
            with decoding_errors(request.what):
                (answer,) = self._netlink().get(request)
        except KernelError as error:
            if error.number in _NO_NFTABLES:
                # Each attempt makes the kernel run modprobe(8).
                self._absent = True
            elif error.number != errno.ENOENT:
                raise
            return None
        return nft_messages.answered(answer)

    def _dump(self, request: Request) -> Iterator[Mapping[int, bytes]]:
        # What interrupts it is any change of nftables, which may be none of ours.
        with suppress(DumpInterrupted):
            for payload in self._netlink().stream(request):
                yield nft_messages.answered(payload)

    def _commit(self, what: str, requests: Sequence[Request]) -> None:
        self._netlink().carry_out_together(what, nft_messages.batch(requests))

    def _netlink(self) -> NetlinkSocket:
        if self._socket is None:
            self._socket = NetlinkSocket(NETLINK_NETFILTER)
        return self._socket


def _name(ip_version: int) -> str:
    return f"{FAMILIES[ip_version]} {OWN_TABLE}"
