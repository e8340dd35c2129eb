"""One host of `benchmarks/datapath`, in its own network namespace: marks subflows, then sends to all in turn.

`python -m mptcp_lab.benchmarks.datapath_host VARIANT SUBFLOWS` prints `ready`. Then it answers each line `SECONDS BYTES
BURST` on stdin: it sends packets of BYTES, BURST in a row to each subflow, for SECONDS, and prints the packets per
second of its processor time.
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
from mptcp_throttled.answers.plan_commands.tc import as_commands
from mptcp_throttled.kernel.classes.nft import NftClassifier
from mptcp_throttled.kernel.classes.sets import IpsetClassifier
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic
from mptcp_throttled.vocabulary.operations import MakeAssignments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

VARIANTS: Final = ("none", "seed", "rules", "ipset", "nft")

_PORT: Final = 8080
_PROXY: Final = IPv4Address("10.3.0.2")
_ROUTER: Final = IPv4Address("10.3.0.1")
_FIRST_CLIENT: Final = IPv4Address("10.64.0.1")
_CLIENTS: Final = "10.64.0.0/10"
# Early demux would look up a local socket for every packet.
_ROUTER_SETUP: Final = f"""\
ip link set eth0 up
ip address add {_ROUTER}/24 dev eth0
ip route add blackhole {_CLIENTS}
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 0 > /proc/sys/net/ipv4/tcp_early_demux
"""
_MARKING: Final = MarkedTraffic(0xFFFF0000, (_PORT,))
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
    """Sends segments like the proxy's through a raw socket, `burst` in a row to each subflow.

    From ip_output() on they take the same path as TCP's. This program's memory use does not grow with the number of
    subflows, so that it leaves the processor's caches to the kernel.
    """

    def __init__(self, subflows: Sequence[FourTuple], size: int, burst: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._count = len(subflows) * burst
        headers = b"".join(_headers(ends, size) * burst for ends in subflows)
        # A batch may begin anywhere.
        self._table = headers * (1 + -(-_BATCH // self._count))
        self._headers = ctypes.create_string_buffer(_BATCH * _HEADER_BYTES)
        self._payload = bytes(size - _HEADER_BYTES)
        # The kernel looks up the route by this address; all clients have the same route.
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
        """Per second of processor time, so that other load on the machine does not count.

        The router's work is included: the kernel does it in the sender's context.
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
    # The kernel fills in the IP checksum; nobody checks TCP's. It would replace an identification of 0 by one from a
    # table of destinations, which costs time that TCP, which counts in the socket, does not need.
    client = ends.client.address.packed
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, size, 1, 0, 64, socket.IPPROTO_TCP, 0, _PROXY.packed, client)
    return ip + struct.pack("!HHIIBBHHH", _PORT, ends.client.port, 0, 0, 0x50, 0x10, 1024, 0, 0)


def _mark(variant: str, subflows: Sequence[FourTuple]) -> None:
    marks = {ends: 2 + number % 60_000 for number, ends in enumerate(subflows)}
    if variant == "ipset":
        IpsetClassifier(_MARKING).make(4, marks)
    elif variant == "nft":
        NftClassifier().make(4, marks)
    elif variant == "rules":
        # The rules of our back end, made faster.
        commands = as_commands(MakeAssignments(4, marks), ("eth0",), _MARKING, "rules")
        rules = [command.partition(" -t mangle ")[2] for command in commands if " -N " not in command]
        _restore([":MPTCP-THROTTLE -", *rules])
    elif variant == "seed":
        rule = f"-A OUTPUT -p tcp -s {_PROXY} --sport {_PORT} -d {{}} -j MARK --set-mark 4"
        _restore(rule.format(ends.client.address) for ends in subflows)


def _restore(lines: Iterable[str]) -> None:
    rules = "\n".join(["*mangle", *(line.partition("  #")[0] for line in lines), "COMMIT", ""])
    subprocess.run(["iptables-legacy-restore"], input=rules, text=True, check=True)


@contextmanager
def _way_to_the_clients() -> Iterator[None]:
    """A veth to a router that drops all packets: each takes its whole way out of the host, and no more."""
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
    """Mark the subflows, then send for each line of stdin."""
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
