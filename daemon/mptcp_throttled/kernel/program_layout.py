"""What kernel programs share with the daemon: their directory, and the layouts of `bpf/settings.h` and `counters.h`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from struct import Struct
from typing import Final

from mptcp_throttle.linux.inet_diag import IPV4_MAPPED, unmapped
from mptcp_throttle.linux.libbpf import BpfMap
from mptcp_throttle.model import Address, FourTuple

OBJECTS: Final = Path(__file__).with_name("bpf")

_MAX_PORTS: Final = 16
_SETTINGS: Final = Struct(f"=Q{_MAX_PORTS}II4x")
_ENDS: Final = Struct("=16s16s4sI")

_COUNTER: Final = Struct("=Q")

ENDS_BYTES: Final = _ENDS.size


def pack_settings(netns_cookie: int, ports: Sequence[int], htb_handle: int) -> bytes:
    """struct settings."""
    return _SETTINGS.pack(netns_cookie, *ports, *(0,) * (_MAX_PORTS - len(ports)), htb_handle)


def pack_ends(ends: FourTuple) -> bytes:
    """struct ends."""
    # struct bpf_sock_ops has the remote port as 32 bits in network byte order, the local port in host byte order.
    client, proxy = mapped(ends.client.address), mapped(ends.proxy.address)
    return _ENDS.pack(client, proxy, ends.client.port.to_bytes(4, "big"), ends.proxy.port)


def unpack_ends(packed: bytes) -> FourTuple:
    """The subflow of a struct ends."""
    client, proxy, client_port, proxy_port = _ENDS.unpack(packed)
    return FourTuple.of(unmapped(client), int.from_bytes(client_port, "big"), unmapped(proxy), proxy_port)


def read_counters(counters: BpfMap, count: int) -> Iterator[int]:
    """The first numbers of the map of `bpf/counters.h`. Raises KernelError."""
    for index in range(count):
        yield _COUNTER.unpack(counters.get(index.to_bytes(4, sys.byteorder)))[0]


def mapped(address: Address) -> bytes:
    """An address in 16 bytes, IPv4 as IPv4-mapped."""
    return IPV4_MAPPED + address.packed if isinstance(address, IPv4Address) else address.packed
