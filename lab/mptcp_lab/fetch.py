"""Fetches documents through the proxy and prints the seconds from the first SYN to the last byte, as a client program.

`python -m mptcp_lab.fetch PROXY PORT [--tcp] [--from ADDRESS] [--connections N] URL...`: the URLs are shared among N
connections that stay open, as a browser does.
"""

from __future__ import annotations

import argparse
import queue
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Final

_IPPROTO_MPTCP: Final = 262  # include/uapi/linux/in.h
_PART_BYTES: Final = 1 << 18
_TIMEOUT_SECONDS: Final = 120.0


def _fetch(proxy: tuple[str, int], protocol: int, source: str | None, urls: queue.SimpleQueue[str]) -> int:
    """Fetch URLs over one connection until none is left; the bytes received. Raises OSError or HTTPException."""
    (family, kind, _, _, address), *_ = socket.getaddrinfo(*proxy, type=socket.SOCK_STREAM)
    connection = HTTPConnection(*proxy, timeout=_TIMEOUT_SECONDS)
    connection.auto_open = 0  # it would open plain TCP
    received = 0
    with socket.socket(family, kind, protocol) as connected:
        connected.settimeout(_TIMEOUT_SECONDS)
        if source is not None:
            connected.bind((source, 0))
        connected.connect(address)
        connection.sock = connected
        with suppress(queue.Empty):
            while True:
                connection.request("GET", urls.get_nowait())
                response = connection.getresponse()
                if response.status != 200:
                    raise HTTPException(f"HTTP status {response.status}")
                while part := response.read(_PART_BYTES):
                    received += len(part)
    return received


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the seconds, the bytes received, and the begin by the monotonic clock."""
    parser = argparse.ArgumentParser(prog="fetch", description=__doc__)
    parser.add_argument("proxy")
    parser.add_argument("port", type=int)
    parser.add_argument("--tcp", action="store_true", help="plain TCP")
    parser.add_argument("--from", dest="source", help="the client's address; default: the kernel's choice")
    parser.add_argument("--connections", type=int, default=1, help="default: %(default)s")
    parser.add_argument("urls", nargs="+", metavar="URL")
    options = parser.parse_args(arguments)
    urls: queue.SimpleQueue[str] = queue.SimpleQueue()
    for url in options.urls:
        urls.put(url)
    protocol = socket.IPPROTO_TCP if options.tcp else _IPPROTO_MPTCP
    with ThreadPoolExecutor(options.connections) as pool:
        began = time.monotonic()
        parts = [
            pool.submit(_fetch, (options.proxy, options.port), protocol, options.source, urls)
            for _ in range(options.connections)
        ]
        received = sum(part.result() for part in parts)
        print(time.monotonic() - began, received, began)


if __name__ == "__main__":
    main()
