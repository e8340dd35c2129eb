"""Clients of a proxy, most of them honest.

`python -m mptcp_lab.soak.customers PORT RATE SECONDS SEED ORIGIN ADDRESS...`: RATE connections begin per second, each
to one of the ADDRESSes. What each does is drawn at random (`_USES`). After SECONDS the remaining ones end. The program
prints as JSON how many of each use have begun, and how many honest ones have failed. ORIGIN is `HOST/SHORT/LONG`: the
origin server, and its documents. A client that has vanished sends its packets with the mark VANISHED, which its host
must drop.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mptcp_lab.traffic import RESET_ON_CLOSE, begun, connect_socket, document_missing, mptcp_socket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

VANISHED: Final = 0x5
"""The mark of packets that must not leave the host."""

HOSTILE: Final = frozenset({"reset", "vanished", "slow"})
"""The uses that are hostile."""

_SO_MARK: Final = 36  # include/uapi/asm-generic/socket.h
_READ_BYTES: Final = 2**16
_CHUNK: Final = 2**14
_PATIENCE_SECONDS: Final = 30.0
_SHORT_UPLOAD: Final = 50_000
_LONG_UPLOAD: Final = 3_000_000
_NAMES: Final = 8  # uploads that the origin server keeps
_SLOW_BYTES: Final = 1000
_SLOW_SECONDS: Final = 0.2


class _Failed(Exception):
    """The proxy has ended an honest connection early, or its answer was not the expected one."""


class _Customer:
    """A connection."""

    def __init__(self, sock: socket.socket, chance: random.Random, origin: str) -> None:
        self._socket = sock
        self._chance = chance
        self._host, self._short, self._long = origin.split("/")
        self._loop = asyncio.get_running_loop()

    async def _ask(self, name: str) -> None:
        await self._send(f"GET http://{self._host}/{name} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    async def _send(self, data: bytes) -> None:
        # Not wait_for: until Python 3.12 it hides that a task is cancelled, if that comes together with the result.
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await self._loop.sock_sendall(self._socket, data)

    async def _receive(self, most: int = _READ_BYTES) -> bytes:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            data = await self._loop.sock_recv(self._socket, most)
        if not data:
            raise _Failed
        return data

    async def _receive_for(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await self._receive()

    async def download(self) -> None:
        """A whole document."""
        await self._ask(self._short)
        received = bytearray()
        while document_missing(bytes(received)):
            received += await self._receive()

    async def long_download(self) -> None:
        """Some seconds of a document without an end."""
        await self._ask(self._long)
        await self._receive_for(self._chance.uniform(3, 10))

    async def upload(self) -> None:
        """A short upload."""
        await self._upload(_SHORT_UPLOAD)

    async def long_upload(self) -> None:
        """An upload of some seconds."""
        await self._upload(_LONG_UPLOAD)

    async def _upload(self, size: int) -> None:
        url = f"http://{self._host}/uploads/{self._chance.randrange(_NAMES)}"
        await self._send(f"PUT {url} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // _CHUNK):
            await self._send(bytes(_CHUNK))
        await self._send(bytes(size % _CHUNK))
        answer = await self._receive()
        if not answer.startswith((b"HTTP/1.1 201 ", b"HTTP/1.1 204 ")):  # created, or replaced
            raise _Failed

    async def reset(self) -> None:
        """A reset during a download."""
        await self._ask(self._long)
        await self._receive_for(self._chance.uniform(0.1, 1.5))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)

    async def vanished(self) -> None:
        """During a download, the host stops sending anything, until the program ends."""
        await self._ask(self._long)
        await self._receive_for(self._chance.uniform(0.1, 1.5))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_MARK, VANISHED)
        await asyncio.Event().wait()

    async def slow(self) -> None:
        """A client that reads slowly, until the program ends."""
        await self._ask(self._long)
        while True:
            await self._receive(_SLOW_BYTES)
            await asyncio.sleep(_SLOW_SECONDS)


_USES: Final[dict[str, tuple[float, Callable[[_Customer], Awaitable[None]]]]] = {
    "download": (0.45, _Customer.download),
    "long download": (0.13, _Customer.long_download),
    "upload": (0.28, _Customer.upload),
    "long upload": (0.07, _Customer.long_upload),
    "reset": (0.03, _Customer.reset),
    "vanished": (0.02, _Customer.vanished),
    "slow": (0.02, _Customer.slow),
}
"""How large a part of the connections has each use; with the handshakes that `raw_client` leaves unfinished, a tenth is
hostile."""


async def serve_customers(
    port: int, rate: float, seconds: float, seed: int, origin: str, addresses: list[str]
) -> dict[str, int]:
    """How many connections have begun, by their use, and how many honest ones have `failed`."""
    chance, counts = random.Random(seed), Counter[str]()  # noqa: S311

    async def connect(use: str, number: int) -> None:
        own = random.Random(seed * 1_000_000 + number)  # noqa: S311
        address = own.choice(addresses)
        with mptcp_socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
            try:
                await connect_socket(sock, address, port)
                await _USES[use][1](_Customer(sock, own, origin))
            except (OSError, _Failed):
                if use not in HOSTILE:
                    counts["failed"] += 1

    weights = [weight for weight, _ in _USES.values()]
    async with asyncio.TaskGroup() as tasks:
        running = []
        async for number in begun(rate, seconds):
            (use,) = chance.choices(list(_USES), weights)
            counts[use] += 1
            running.append(tasks.create_task(connect(use, number)))
        for task in running:
            task.cancel()
    return dict(counts)


if __name__ == "__main__":
    port, rate, seconds, seed, origin, *addresses = sys.argv[1:]
    print(
        json.dumps(asyncio.run(serve_customers(int(port), float(rate), float(seconds), int(seed), origin, addresses)))
    )
