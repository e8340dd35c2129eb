"""Opens real MPTCP connections from many addresses, and keeps them open until it is ended.

`python -m mptcp_lab.benchmarks.real_crowd PROXY PORT RATE CLIENTS PER`: the first CLIENTS addresses of NETWORK, which
must be local, open PER connections each, RATE per second in all. Then it prints `open`. The kernel adds the further
subflows.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from mptcp_lab.traffic import IPPROTO_MPTCP

NETWORK: Final = IPv4Network("10.1.128.0/17")
"""The addresses of its clients."""

_IP_BIND_ADDRESS_NO_PORT: Final = 24  # include/uapi/linux/in.h


def _opened(client: IPv4Address, proxy: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((str(client), 0))
    sock.connect(proxy)
    # Linux sends MP_JOIN after the first data has been acknowledged.
    sock.send(b"x")
    return sock


def hold(proxy: tuple[str, int], rate: int, clients: int, per_client: int) -> list[socket.socket]:
    """Open all connections, at most `rate` per second."""
    began, held = time.monotonic(), []
    for number in range(clients * per_client):
        if (ahead := number / rate - (time.monotonic() - began)) > 0:
            time.sleep(ahead)
        held.append(_opened(NETWORK[1 + number % clients], proxy))
    return held


if __name__ == "__main__":
    address, port, *numbers = sys.argv[1:]
    connections = hold((address, int(port)), *map(int, numbers))
    print("open", flush=True)
    signal.pause()
