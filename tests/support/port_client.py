"""A client program with one MPTCP connection to the proxy, from a port that the test chooses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from mptcp_lab.origin import endless
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from proxy_world import ProxyWorld

    from mptcp_lab.host import Host
    from mptcp_lab.process import Process
    from mptcp_lab.topology import Address

_DUPLEX_PORT: Final = 4000
_FETCH: Final = """
import socket, sys
own, port, proxy, proxy_port, url, fast_open = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as connection:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.setsockopt(socket.IPPROTO_TCP, 30, int(fast_open))  # TCP_FASTOPEN_CONNECT
    connection.bind((own, int(port)))
    connection.connect((proxy, int(proxy_port)))
    connection.sendall(f"GET {url} HTTP/1.1\\r\\nHost: origin\\r\\n\\r\\n".encode())
    while connection.recv(1 << 18):
        pass
"""
_EXCHANGE: Final = """
import socket, sys, threading
def send(connection):
    while True:
        connection.sendall(bytes(1 << 16))
def exchange(connection):
    threading.Thread(target=send, args=(connection,), daemon=True).start()
    while connection.recv(1 << 18):
        pass
"""
_ORIGIN: Final = f"""{_EXCHANGE}
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener:
    print("listening", flush=True)
    exchange(listener.accept()[0])
"""
_CLIENT: Final = f"""{_EXCHANGE}
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_STREAM, 262) as connection:
    connection.connect((sys.argv[1], int(sys.argv[2])))
    connection.sendall(f"CONNECT {{sys.argv[3]}} HTTP/1.1\\r\\n\\r\\n".encode())
    assert b" 200 " in connection.recv(1 << 16)
    exchange(connection)
"""


def download_from(
    world: ProxyWorld, address: Address, port: int, *, client: Host | None = None, fast_open: bool = False
) -> Process:
    """A download of a client that does not end, over a connection whose first subflow has this end.

    With `fast_open` the request is data of the SYN, as far as net.ipv4.tcp_fastopen lets the client send it there.
    """
    origin = f"http://{world.lab.origin_address(4)}/{endless(world.origin).name}"
    proxy = (str(world.lab.proxy_address(4)), str(PORT))
    arguments = (str(address), str(port), *proxy, origin, str(int(fast_open)))
    return (client or world.lab.client).start(f"from-{port}", sys.executable, "-c", _FETCH, *arguments)


def exchange(world: ProxyWorld, proxy: str | None = None) -> Process:
    """One connection to that address of the proxy, on which both ends send zeros as fast as they may.

    By default, its IPv4 address.
    """
    address = str(world.lab.origin_address(4))
    server = world.lab.origin.start("exchange", sys.executable, "-c", _ORIGIN, address, str(_DUPLEX_PORT))
    server.wait_until(lambda: "listening" in server.log_text(), "listening")
    to = (proxy or str(world.lab.proxy_address(4)), str(PORT))
    return world.lab.client.start("exchange", sys.executable, "-c", _CLIENT, *to, f"{address}:{_DUPLEX_PORT}")
