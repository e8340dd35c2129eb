"""The proxy's own TCP sockets, from inet_diag: the cgroup in which they listen, and what those that can send have."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from struct import Struct
from typing import Final

from mptcp_throttle.linux.inet_diag import (
    CLOSED_HERE,
    FIN_WAIT2,
    INET_DIAG_CLASS_ID,
    INET_DIAG_INFO,
    INET_DIAG_ULP_INFO,
    LIST_SOCKETS,
    LISTEN,
    SENDING,
    InetDiag,
    is_of_mptcp,
    parse_attributes,
    parse_socket,
)
from mptcp_throttle.linux.kernel_error import KernelError, decoding_errors, os_errors
from mptcp_throttle.linux.netlink_socket import read_consistently
from mptcp_throttle.model import Address, FourTuple
from mptcp_throttle.ports import ALL_PORTS, Ports
from mptcp_throttled.vocabulary.class_ids import minor_of
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.traffic import SocketTotals

_INET_DIAG_CGROUP_ID: Final = 21  # include/uapi/linux/inet_diag.h
_CGROUP_ID: Final = Struct("=Q")
_CLASS_ID: Final = Struct("=I")
_NO_CLASS: Final = _CLASS_ID.pack(0)
_WANTED: Final = frozenset({INET_DIAG_INFO, INET_DIAG_CLASS_ID, INET_DIAG_ULP_INFO})
_UNLIMITED: Final = 2**64 - 1
# struct tcp_info (include/uapi/linux/tcp.h): tcpi_rtt; tcpi_max_pacing_rate; tcpi_bytes_received, tcpi_segs_out,
# tcpi_segs_in; tcpi_notsent_bytes; tcpi_data_segs_in, tcpi_data_segs_out; tcpi_bytes_sent, tcpi_bytes_retrans
_TCP_INFO: Final = Struct("=68xI40xQ8xQIII4xII40xQQ")
_MICROSECOND: Final = 1e-6
# struct inet_diag_msg: the ports and addresses; id.idiag_cookie
_ENDS: Final = slice(4, 40)
_COOKIE: Final = slice(44, 52)


class ProxyCgroup:
    """Finds the cgroup of the sockets that listen on the proxy's ports."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._last: tuple[frozenset[int], Path] | None = None

    def find(self) -> Path:
        """The directory of the cgroup; of several cgroups, the closest common ancestor. Raises KernelError.

        The directories are searched only when the listeners' cgroups have changed since the last call.
        """
        ids = _listener_cgroups(self._ports)
        if not ids:
            raise KernelError(f"no program listens on port {self._ports}", errno.ENOENT)
        if self._last is None or self._last[0] != ids:
            self._last = ids, _directory_of(ids)
        return self._last[1]


def _directory_of(ids: Collection[int]) -> Path:
    # os.walk skips directories that are removed during the walk, as cgroups often are.
    with os_errors("look for the proxy's cgroup"):
        mount = _cgroup2_mount()
        directories = [directory for directory, _, _ in os.walk(mount) if _inode(directory) in ids]
    if not directories:
        remedy = "set daemon.cgroup, or daemon.pacing to false"
        raise KernelError(f"the proxy's cgroup is not below {mount}", errno.ENOENT, remedy)
    return Path(os.path.commonpath(directories))


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


def _listener_cgroups(ports: Ports) -> frozenset[int]:
    """The ids (inode numbers) of the cgroups whose processes listen on these ports. Raises KernelError.

    A socket that listens on the loopback interface only counts if no other socket listens: clients do not reach it.
    """
    listeners = read_consistently(lambda: list(_listeners(ports)))
    reachable = frozenset(cgroup for address, cgroup in listeners if not address.is_loopback)
    return reachable or frozenset(cgroup for _, cgroup in listeners)


def _listeners(ports: Ports) -> Iterator[tuple[Address, int]]:
    with InetDiag() as diag, decoding_errors(LIST_SOCKETS):
        for listener in diag.sockets(LISTEN, {_INET_DIAG_CGROUP_ID}, ports):
            if _INET_DIAG_CGROUP_ID in listener.attributes:
                yield ip_address(listener.local), _CGROUP_ID.unpack(listener.attributes[_INET_DIAG_CGROUP_ID])[0]


def count_paced(ports: Ports) -> int:
    """How many sockets on these ports have a maximum pacing rate. Raises KernelError."""
    return sum(state.pace is not None for state in SocketReader(ports).read().values())


def closing_cookies() -> frozenset[int] | None:
    """SO_COOKIE of the sockets that this host has closed, and whose end the kernel has not reported yet.

    None: the kernel does not list them now.
    """

    def read() -> frozenset[int]:
        with InetDiag() as diag:
            payloads = diag.list_payloads(CLOSED_HERE | FIN_WAIT2, ALL_PORTS)
            return frozenset(map(_cookie, payloads))

    try:
        return read_consistently(read)
    except KernelError:
        return None


class SocketReader:
    """Reads the sockets that can send, on `ports`, again and again: it remembers the ends of those it knows."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._known: dict[bytes, FourTuple] = {}

    def read(self, *, on_all_ports: bool = False) -> dict[FourTuple, SocketState]:
        """What each socket has; with `on_all_ports`, also those that this host has opened. Raises KernelError."""
        return read_consistently(lambda: self._read(ALL_PORTS if on_all_ports else self._ports))

    def _read(self, ports: Ports) -> dict[FourTuple, SocketState]:
        known, states = {}, {}
        with InetDiag() as diag, decoding_errors(LIST_SOCKETS):
            for payload in diag.list_payloads(SENDING, ports):
                key = payload[_ENDS]
                known[key] = ends = self._known.get(key) or _ends(payload)
                states[ends] = _state(parse_attributes(payload, _WANTED), _cookie(payload))
        self._known = known
        return states


def _cookie(payload: bytes) -> int:
    return int.from_bytes(payload[_COOKIE], sys.byteorder)


def _ends(payload: bytes) -> FourTuple:
    socket = parse_socket(payload, ())
    return FourTuple.of(socket.remote, socket.remote_port, socket.local, socket.local_port)


def _state(attributes: Mapping[int, bytes], cookie: int) -> SocketState:
    (priority,) = _CLASS_ID.unpack(attributes.get(INET_DIAG_CLASS_ID, _NO_CLASS))
    tcp_info = _TCP_INFO.unpack_from(attributes[INET_DIAG_INFO])
    rtt, pace, received, segments_out, segments_in, unsent, data_in, data_out, sent, retransmitted = tcp_info
    totals = SocketTotals(sent, retransmitted, received, segments_out, segments_in, data_out, data_in)
    return SocketState(
        minor_of(priority) or 0,
        pace if pace < _UNLIMITED else None,
        totals,
        rtt * _MICROSECOND or None,
        cookie,
        is_of_mptcp(attributes),
        unsent,
    )
