"""Which sockets close, by the kernel's list: what they have carried must not be forgotten until they have closed."""

from __future__ import annotations

import socket
import sys

from polling import eventually

from mptcp_throttled.kernel.sockets.proxy_sockets import closing_cookies

SO_COOKIE = 57  # include/uapi/asm-generic/socket.h


def is_closing(cookie: int) -> bool:
    cookies = closing_cookies()
    assert cookies is not None
    return cookie in cookies


def test_socket_whose_client_keeps_its_side_open_is_closing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as proxy:
            cookie = int.from_bytes(proxy.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder)
            assert not is_closing(cookie)
            proxy.shutdown(socket.SHUT_WR)
            eventually(lambda: is_closing(cookie), "closing", within=5)
            client.close()
            eventually(lambda: not is_closing(cookie), "closed", within=5)
