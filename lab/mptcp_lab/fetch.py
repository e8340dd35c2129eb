"""Fetches documents through the proxy and prints the seconds from the first SYN to the last byte, as a client program.

`python -m mptcp_lab.fetch PROXY PORT [--tcp] [--from ADDRESS] [--connections N] URL...`: the URLs are shared among N
connections that stay open, as in a browser. With `--period SECONDS` the URLs are the chunks of a video. One is due each
period, and is fetched over a connection of its own when the chunk before has arrived. The seconds are then those of the
slowest chunk, from when it was due.
"""

from __future__ import annotations

import argparse
import queue
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from typing import Final

IPPROTO_MPTCP: Final = 262  # include/uapi/linux/in.h
_PART_BYTES: Final = 1 << 18
_TIMEOUT_SECONDS: Final = 120.0


@contextmanager
def connected(proxy: tuple[str, int], protocol: int, source: str | None) -> Iterator[HTTPConnection]:
    """A connection to the proxy, of that protocol, from the address `source` if any. Raises OSError."""
    (family, kind, _, _, address), *_ = socket.getaddrinfo(*proxy, type=socket.SOCK_STREAM)
    connection = HTTPConnection(*proxy, timeout=_TIMEOUT_SECONDS)
    connection.auto_open = 0  # it would open plain TCP
    with socket.socket(family, kind, protocol) as opened:
        opened.settimeout(_TIMEOUT_SECONDS)
        if source is not None:
            opened.bind((source, 0))
        opened.connect(address)
        connection.sock = opened
        yield connection


def get(connection: HTTPConnection, url: str) -> None:
    """Fetch a document to its end. Raises OSError or HTTPException."""
    connection.request("GET", url)
    response = connection.getresponse()
    if response.status != 200:
        raise HTTPException(f"HTTP status {response.status}")
    while response.read(_PART_BYTES):
        pass


def _fetch(proxy: tuple[str, int], protocol: int, source: str | None, urls: queue.SimpleQueue[str]) -> None:
    """Fetch URLs over one connection until none is left. Raises OSError or HTTPException."""
    with connected(proxy, protocol, source) as connection, suppress(queue.Empty):
        while True:
            get(connection, urls.get_nowait())


def _fetch_all(
    proxy: tuple[str, int], protocol: int, source: str | None, urls: Sequence[str], connections: int
) -> float:
    began, queued = time.monotonic(), _queue(urls)
    with ThreadPoolExecutor(connections) as pool:
        parts = [pool.submit(_fetch, proxy, protocol, source, queued) for _ in range(connections)]
        for part in parts:
            part.result()
    return time.monotonic() - began


def _play(proxy: tuple[str, int], protocol: int, source: str | None, urls: Sequence[str], period: float) -> float:
    began, slowest = time.monotonic(), 0.0
    for number, url in enumerate(urls):
        due = began + number * period
        time.sleep(max(0.0, due - time.monotonic()))
        _fetch(proxy, protocol, source, _queue([url]))
        slowest = max(slowest, time.monotonic() - due)
    return slowest


def _queue(urls: Sequence[str]) -> queue.SimpleQueue[str]:
    queued: queue.SimpleQueue[str] = queue.SimpleQueue()
    for url in urls:
        queued.put(url)
    return queued


def proxy_arguments(program: str, text: str | None) -> argparse.ArgumentParser:
    """The command line of a client program: how it connects to the proxy."""
    parser = argparse.ArgumentParser(prog=program, description=text)
    parser.add_argument("proxy")
    parser.add_argument("port", type=int)
    parser.add_argument("--tcp", action="store_true", help="plain TCP")
    parser.add_argument("--from", dest="source", help="the client's address; default: the kernel's choice")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the seconds, and when they began, in seconds of the monotonic clock."""
    parser = proxy_arguments("fetch", __doc__)
    parser.add_argument("--connections", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--period", type=float, metavar="SECONDS", help="of the chunks of a video")
    parser.add_argument("urls", nargs="+", metavar="URL")
    options = parser.parse_args(arguments)
    protocol = socket.IPPROTO_TCP if options.tcp else IPPROTO_MPTCP
    end = (options.proxy, options.port), protocol, options.source
    began = time.monotonic()
    if options.period is not None:
        print(_play(*end, options.urls, options.period), began)
    else:
        print(_fetch_all(*end, options.urls, options.connections), began)


if __name__ == "__main__":
    main()
