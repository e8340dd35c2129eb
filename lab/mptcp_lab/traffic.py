"""Real MPTCP connections: an echo server with clients, and a transfer that only the processor limits.

Each is a program, because a socket belongs to the network namespace of its process: `python -m mptcp_lab.traffic` and

    serve PORT                                  an echo server
    drive PORT COUNT PARALLEL SEED ADDRESS...   COUNT connections, PARALLEL at a time, used and ended in every way
    hold PORT COUNT PARALLEL SEED ADDRESS...    the same, all at once, open until the program ends
    join PORT RATE SECONDS ADDRESS              RATE connections per second, each for a second
    download PORT RATE SECONDS ADDRESS URL      RATE downloads per second through a proxy, each over a connection of its
                                                own; prints how many were complete, and seconds until the last one was
    pour PORT                                   sends zeros to every client
    drain PORT SECONDS ADDRESS                  receives them and prints bytes per second
    sink PORT PROTOCOL                          receives what clients send, and answers each with the number of bytes
    send PORT PROTOCOL BYTES ADDRESS [SOURCE]   sends to a sink; prints its answer, and the seconds until then

PROTOCOL is mptcp or tcp.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from mptcp_lab.host import Host
    from mptcp_lab.process import Process
    from mptcp_lab.topology import Client, Lab
    from mptcp_throttle.model import Address

IPPROTO_MPTCP: Final = 262
"""include/uapi/linux/in.h; the socket module has no name for it."""

RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing a socket resets it."""

_CHUNK: Final = 4096
_ZEROS: Final = bytes(2**20)
_PARALLEL: Final = 30
_JOINED_SECONDS: Final = 1.0
_DOWNLOADS_AT_ONCE: Final = 150
_PATIENCE_SECONDS: Final = 30
_OPEN_SECONDS: Final = 0.1
_READ_BYTES: Final = 2**16
_SERVER_CLOSES, _SERVER_RESETS = b"C", b"R"


def mptcp_socket(family: int) -> socket.socket:
    """A new socket of MPTCP that does not block."""
    sock = socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP)
    sock.setblocking(False)
    return sock


async def connect_socket(sock: socket.socket, address: str, port: int) -> None:
    """Connect a socket of `mptcp_socket`. Raises TimeoutError after 10 s."""
    # Not loop.sock_connect: it asks getaddrinfo(3), which does not know the protocol.
    with suppress(BlockingIOError):
        sock.connect((address, port))
    connected = asyncio.Event()
    asyncio.get_running_loop().add_writer(sock, connected.set)
    async with asyncio.timeout(10):
        await connected.wait()
    asyncio.get_running_loop().remove_writer(sock)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            if data[-1:] == _SERVER_RESETS:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            if data[-1:] in (_SERVER_CLOSES, _SERVER_RESETS):
                break
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


async def serve(port: int) -> None:
    """Echo; close or reset a connection when its client asks for that."""
    listener = mptcp_socket(socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::", port))
    server = await asyncio.start_server(_answer, sock=listener, backlog=1024)
    print("listening", flush=True)
    await server.serve_forever()


async def _connection(addresses: list[str], port: int, seed: int, *, hold: bool) -> None:
    choice = random.Random(seed)  # noqa: S311
    address = choice.choice(addresses)
    sock = mptcp_socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    # Tests reset subflows of this program on purpose: TCP's errors are expected.
    with suppress(OSError, asyncio.IncompleteReadError):
        await connect_socket(sock, address, port)
        reader, writer = await asyncio.open_connection(sock=sock)
        for _ in range(choice.randint(2, 6)):
            writer.write(bytes(_CHUNK))
            await asyncio.wait_for(reader.readexactly(_CHUNK), 10)
            await asyncio.sleep(choice.uniform(0.05, 0.5))
        if hold:
            await asyncio.Event().wait()
        end = choice.choice(["close", "reset", _SERVER_CLOSES, _SERVER_RESETS])
        if isinstance(end, bytes):
            writer.write(end)
            await asyncio.wait_for(reader.read(), 10)
        elif end == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        writer.close()
        await writer.wait_closed()


async def drive(port: int, count: int, parallel: int, seed: int, addresses: list[str], *, hold: bool) -> None:
    """Open `count` connections, `parallel` at a time (with `hold`: all at once), each to one of `addresses`."""
    room = asyncio.Semaphore(count if hold else parallel)

    async def connect(number: int) -> None:
        async with room:
            with suppress(TimeoutError):
                await _connection(addresses, port, seed * 10_000 + number, hold=hold)

    await asyncio.gather(*(connect(number) for number in range(count)))


async def begun(rate: float, seconds: float) -> AsyncIterator[int]:
    """Count from 0, `rate` times per second for `seconds`, or as often as what is done each time allows."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(round(rate * seconds)):
        if loop.time() - began > seconds:
            return
        await asyncio.sleep(began + number / rate - loop.time())
        yield number


async def join(port: int, rate: float, seconds: float, address: str) -> None:
    """Open `rate` connections per second; the kernel joins its endpoints' subflows. Each ends after a second."""
    await asyncio.gather(*[asyncio.create_task(_joined(address, port)) async for _ in begun(rate, seconds)])


async def _joined(address: str, port: int) -> None:
    sock = mptcp_socket(socket.AF_INET)
    with sock, suppress(OSError, TimeoutError):
        await connect_socket(sock, address, port)
        # Linux sends MP_JOIN after the first data has been acknowledged.
        sock.send(b"x")
        await asyncio.sleep(_JOINED_SECONDS)


async def download(port: int, rate: float, seconds: float, address: str, url: str) -> dict[str, float]:
    """Begin `rate` downloads per second, or as many as possible: those `complete`, and `seconds` until the last was."""
    room, tasks = asyncio.Semaphore(_DOWNLOADS_AT_ONCE), []
    began = time.monotonic()
    async for _ in begun(rate, seconds):
        await room.acquire()
        tasks.append(asyncio.create_task(_downloaded(address, port, url)))
        tasks[-1].add_done_callback(lambda _: room.release())
    return {"complete": sum(await asyncio.gather(*tasks)), "seconds": time.monotonic() - began}


async def _downloaded(address: str, port: int, url: str) -> bool:
    """Whether the whole document has arrived. The client closes the connection a moment later."""
    loop, received, missing = asyncio.get_running_loop(), bytearray(), 1
    with mptcp_socket(socket.AF_INET) as sock, suppress(OSError, TimeoutError):
        await connect_socket(sock, address, port)
        await loop.sock_sendall(sock, f"GET {url} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        while missing and (data := await asyncio.wait_for(loop.sock_recv(sock, _READ_BYTES), _PATIENCE_SECONDS)):
            received += data
            missing = document_missing(bytes(received))
        await asyncio.sleep(_OPEN_SECONDS)
    return not missing


def document_missing(response: bytes) -> int:
    """Bytes to come of a response that says how long it is, at least 1 while its header is not complete."""
    header, _, document = response.partition(b"\r\n\r\n")
    length = re.search(rb"\r\nContent-Length: (\d+)", header)
    return 1 if length is None else int(length[1]) - len(document)


def pour(port: int) -> None:
    """Send zeros to every client, as fast as it receives them."""
    with mptcp_socket(socket.AF_INET) as listener:
        listener.setblocking(True)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen()
        while True:
            threading.Thread(target=_pour_into, args=(listener.accept()[0],), daemon=True).start()


def _pour_into(client: socket.socket) -> None:
    with client, suppress(OSError):
        while True:
            client.sendall(_ZEROS)


def receive(port: int, seconds: float, address: str) -> float:
    """Receive from `pour` for `seconds`; bytes per second."""
    with mptcp_socket(socket.AF_INET) as sock:
        sock.setblocking(True)
        # Without a reset the kernel goes on receiving what the server sends.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        sock.connect((address, port))
        received, began = 0, time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            received += len(sock.recv(len(_ZEROS)))
    return received / elapsed


_PROTOCOLS: Final = {"mptcp": IPPROTO_MPTCP, "tcp": socket.IPPROTO_TCP}


def sink(port: int, protocol: str) -> None:
    """Receive from every client until it has sent all, and answer the number of bytes."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, _PROTOCOLS[protocol]) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", port))
        listener.listen()
        while True:
            threading.Thread(target=_receive_all, args=(listener.accept()[0],), daemon=True).start()


def _receive_all(client: socket.socket) -> None:
    with client, suppress(OSError):
        received = 0
        while data := client.recv(len(_ZEROS)):
            received += len(data)
        client.sendall(str(received).encode())


def send(port: int, protocol: str, size: int, address: str, source: str | None) -> dict[str, float]:
    """Send `size` zeros to a `sink`: the `bytes` that it has received, and the `seconds` from the SYN to its answer."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, _PROTOCOLS[protocol]) as sock:
        if source is not None:
            sock.bind((source, 0))
        began = time.monotonic()
        sock.connect((address, port))
        for sent in range(0, size, len(_ZEROS)):
            sock.sendall(_ZEROS[: size - sent])
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while data := sock.recv(_CHUNK):
            answer += data
    return {"seconds": time.monotonic() - began, "bytes": int(answer)}


def program(*arguments: object) -> tuple[str, ...]:
    """The command line of one of these programs, to be run on a host."""
    return (sys.executable, "-m", "mptcp_lab.traffic", *map(str, arguments))


def start_server(proxy: Host, port: int) -> Process:
    """Start the echo server; returns once it listens."""
    return _start_listening(proxy, "serve", port)


def start_pour(proxy: Host, port: int) -> Process:
    """Start `pour`; returns once it listens."""
    return _start_listening(proxy, "pour", port)


def _start_listening(proxy: Host, name: str, port: int) -> Process:
    server = proxy.start(name, *program(name, port))
    server.wait_until(lambda: proxy.listens(port, mptcp=True), "listening")
    return server


def drain(lab: Lab, port: int, seconds: float) -> float:
    """Let the first client receive from `pour` for `seconds`; bytes per second."""
    command = program("drain", port, seconds, lab.proxy_address(4))
    return float(lab.client.run(*command, timeout=seconds + 30).stdout)


def start_client(
    client: Client, addresses: Iterable[Address], port: int, *, mode: Literal["drive", "hold"], count: int, seed: int
) -> Process:
    """Start `count` connections to one of the `addresses` each."""
    return client.start(f"{mode}-{seed}", *program(mode, port, count, _PARALLEL, seed, *addresses))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", port]:
            asyncio.run(serve(int(port)))
        case ["pour", port]:
            pour(int(port))
        case ["join", port, rate, seconds, address]:
            asyncio.run(join(int(port), float(rate), float(seconds), address))
        case ["download", port, rate, seconds, address, url]:
            print(json.dumps(asyncio.run(download(int(port), float(rate), float(seconds), address, url))))
        case ["drain", port, seconds, address]:
            print(receive(int(port), float(seconds), address))
        case ["sink", port, protocol]:
            sink(int(port), protocol)
        case ["send", port, protocol, size, address, *source]:
            print(json.dumps(send(int(port), protocol, int(size), address, source[0] if source else None)))
        case ["drive" | "hold" as mode, port, count, parallel, seed, *addresses]:
            asyncio.run(drive(int(port), int(count), int(parallel), int(seed), addresses, hold=mode == "hold"))
