"""One host of `benchmarks/datapath`, in a network namespace of its own: marks subflows, then sends to all in turn.

`python -m mptcp_lab.benchmarks.datapath_host VARIANT SUBFLOWS`. Prints `ready`; then answers each line `SECONDS BYTES
BURST` on stdin with the packets of so many bytes, so many in a row to each subflow, that it sent per second of its
processor time.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

from pyroute2 import IPRoute

from mptcp_throttle.model import Endpoint, FourTuple
from mptcp_throttled.kernel.htb import Marking
from mptcp_throttled.kernel.marking.sets import IpsetMarking
from mptcp_throttled.reconcile.commands import as_commands
from mptcp_throttled.reconcile.operations import MakeChain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VARIANTS: Final = ("none", "seed", "rules", "ipset")

_PORT: Final = 8080
_PROXY: Final = IPv4Address("10.3.0.2")
_ROUTER: Final = IPv4Address("10.3.0.1")
_FIRST_CLIENT: Final = IPv4Address("10.64.0.1")
_CLIENTS: Final = "10.64.0.0/10"
# Else it would look for a socket of its own for every packet.
_ROUTER_SETUP: Final = f"""\
ip link set eth0 up
ip address add {_ROUTER}/24 dev eth0
ip route add blackhole {_CLIENTS}
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 0 > /proc/sys/net/ipv4/tcp_early_demux
"""
_MARKING: Final = Marking(0xFFFF0000, (_PORT,))
_HEADER_BYTES: Final = 40
_BATCH: Final = 1024  # UIO_MAXIOV (include/uapi/linux/uio.h): sendmmsg(2) takes no more


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """struct msghdr (socket.h of libc)."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("iovec", ctypes.c_void_p),
        ("iovec_length", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (("header", _Header), ("sent", ctypes.c_uint))


_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Sender:
    """Segments as the proxy sends them, `burst` to one subflow after the other, through a raw socket.

    From IP's output on, their way is that of TCP's. What this program needs of memory does not grow with their number:
    the processor's caches are to be the kernel's.
    """

    def __init__(self, subflows: Sequence[FourTuple], size: int, burst: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._count = len(subflows) * burst
        headers = b"".join(_headers(ends, size) * burst for ends in subflows)
        # A batch may begin anywhere.
        self._table = headers * (1 + -(-_BATCH // self._count))
        self._headers = ctypes.create_string_buffer(_BATCH * _HEADER_BYTES)
        self._payload = bytes(size - _HEADER_BYTES)
        # The kernel looks up the route of this one: all clients have the same.
        self._address = struct.pack("=H2x4s8x", socket.AF_INET, _FIRST_CLIENT.packed)
        self._vectors = (_Iovec * (2 * _BATCH))()
        self._messages = (_Message * _BATCH)()
        for number in range(_BATCH):
            header = ctypes.addressof(self._headers) + number * _HEADER_BYTES
            self._vectors[2 * number] = _Iovec(header, _HEADER_BYTES)
            self._vectors[2 * number + 1] = _Iovec(_address_of(self._payload), len(self._payload))
            vectors = ctypes.addressof(self._vectors) + 2 * number * ctypes.sizeof(_Iovec)
            self._messages[number].header = _Header(_address_of(self._address), len(self._address), vectors, 2)

    def packets_per_second(self, seconds: float) -> float:
        """By processor time, so that whatever else the machine does is left out of account.

        The router's part is in it: the kernel carries it out when the sender is done with its own.
        """
        sent, began, used = 0, time.monotonic(), time.thread_time()
        while time.monotonic() - began < seconds:
            sent += self._send(sent % self._count)
        return sent / (time.thread_time() - used)

    def _send(self, first: int) -> int:
        table = _address_of(self._table) + first * _HEADER_BYTES
        ctypes.memmove(self._headers, table, _BATCH * _HEADER_BYTES)
        sent = _libc.sendmmsg(self._socket.fileno(), self._messages, _BATCH, 0)
        if sent < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(sent)


def _address_of(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def _headers(ends: FourTuple, size: int) -> bytes:
    # The kernel fills in the checksum of IP; that of TCP nobody looks at. An identification of 0 it would replace by
    # one from a table of destinations, which costs; TCP counts in the socket.
    client = ends.client.address.packed
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, size, 1, 0, 64, socket.IPPROTO_TCP, 0, _PROXY.packed, client)
    return ip + struct.pack("!HHIIBBHHH", _PORT, ends.client.port, 0, 0, 0x50, 0x10, 1024, 0, 0)


def _mark(variant: str, subflows: Sequence[FourTuple]) -> None:
    marks = {ends: 2 + number % 60_000 for number, ends in enumerate(subflows)}
    if variant == "ipset":
        IpsetMarking(_MARKING).make(4, marks)
    elif variant == "rules":
        # As our back end makes them, in less time.
        commands = as_commands(MakeChain(4, marks), "eth0", _MARKING, "rules")
        _restore(
            [
                ":MPTCP-THROTTLE -",
                *(command.partition(" -t mangle ")[2] for command in commands if " -N " not in command),
            ]
        )
    elif variant == "seed":
        _restore(_seed_rules(subflows))


def _seed_rules(subflows: Sequence[FourTuple]) -> Iterator[str]:
    for ends in subflows:
        yield f"-A OUTPUT -p tcp -s {_PROXY} --sport {_PORT} -d {ends.client.address} -j MARK --set-mark 4"


def _restore(lines: Sequence[str] | Iterator[str]) -> None:
    rules = "\n".join(["*mangle", *(line.partition("  #")[0] for line in lines), "COMMIT", ""])
    subprocess.run(["iptables-legacy-restore"], input=rules, text=True, check=True)


@contextmanager
def _way_to_the_clients() -> Iterator[None]:
    """A veth, and behind it a router that has no route to them: each packet's whole way out, and no more."""
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as router:
        router.stdin.write(b"\n")  # type: ignore[union-attr]
        router.stdin.flush()  # type: ignore[union-attr]
        router.stdout.readline()  # type: ignore[union-attr]
        with IPRoute() as ip:
            ip.link("add", ifname="eth0", kind="veth", peer={"ifname": "eth0", "net_ns_pid": router.pid})
            (index,) = ip.link_lookup(ifname="eth0")
            ip.addr("add", index=index, address=str(_PROXY), prefixlen=24)
            ip.link("set", index=index, state="up")
            subprocess.run(["nsenter", f"--net=/proc/{router.pid}/ns/net", "sh", "-ec", _ROUTER_SETUP], check=True)
            ip.route("add", dst=_CLIENTS, gateway=str(_ROUTER), oif=index)
        yield


def main() -> None:
    """Mark, then send when told to."""
    variant, count = sys.argv[1], int(sys.argv[2])
    subflows = [
        FourTuple(Endpoint(_FIRST_CLIENT + number, 1024 + number % 60_000), Endpoint(_PROXY, _PORT))
        for number in range(count)
    ]
    with _way_to_the_clients():
        _mark(variant, subflows)
        senders: dict[tuple[int, int], _Sender] = {}
        print("ready", flush=True)
        for line in sys.stdin:
            seconds, size, burst = line.split()
            kind = int(size), int(burst)
            if kind not in senders:
                senders[kind] = _Sender(subflows, *kind)
            print(senders[kind].packets_per_second(float(seconds)), flush=True)


if __name__ == "__main__":
    main()
