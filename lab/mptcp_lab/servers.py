"""The servers of the lab's proxy. docs/howto/servers.md says how an operator makes each of them speak MPTCP."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.proxy_server import MPTCPIZE, PORT, SOCKS_PORT, Access, ProxyServer
from mptcp_lab.squid import SQUID, SQUID_TPROXY

if TYPE_CHECKING:
    from mptcp_lab.proxy_server import Site

BUILT: Final = Path("/var/cache/mptcp-throttle-lab/servers/bin")
"""Where `lab/bootstrap --servers` puts what it has built."""

_STREAM_MODULE: Final = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
_SOCKET_PROXY: Final = Path("/usr/lib/systemd/systemd-socket-proxyd")

_NGINX: Final = """\
{modules}daemon off;
error_log stderr;
pid {directory}/proxy-nginx.pid;
worker_processes 1;
events {{ worker_connections 1024; }}
"""
_NGINX_HTTP: Final = """\
http {{
    access_log off;
    sendfile on;
    # What the client is too slow for is sent from a file, so sendfile(2) is used; by default that may have 1 GB.
    proxy_max_temp_file_size 16m;
    client_max_body_size 0;
    proxy_request_buffering off;
    client_body_temp_path {directory}/proxy-body;
    proxy_temp_path {directory}/proxy-proxy;
    fastcgi_temp_path {directory}/proxy-fastcgi;
    uwsgi_temp_path {directory}/proxy-uwsgi;
    scgi_temp_path {directory}/proxy-scgi;
    server {{
        listen {port};
        listen [::]:{port};
        location / {{
            proxy_pass http://{upstream};
            proxy_http_version 1.1;
        }}
    }}
}}
"""
_NGINX_STREAM: Final = """\
stream {{
    server {{
        listen {port};
        listen [::]:{port};
        proxy_pass {upstream};
    }}
}}
"""
_HAPROXY: Final = """\
global
    maxconn 1000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1m
    timeout server 1m
listen downloads
    bind :::{port} v4v6
    server origin {upstream}
"""
_SHADOWSOCKS: Final = {"method": "aes-128-gcm", "password": "of the lab", "mode": "tcp_only"}
_SING_BOX: Final = {
    "log": {"level": "warn"},
    "inbounds": [{"type": "mixed", "listen": "::", "listen_port": PORT, "tcp_multi_path": True}],
    "outbounds": [{"type": "direct"}],
}


class ServerKind(StrEnum):
    """Which server runs on the proxy."""

    SQUID = "squid"
    SQUID_TPROXY = "squid-tproxy"
    NGINX_HTTP = "nginx-http"
    NGINX_STREAM = "nginx-stream"
    HAPROXY = "haproxy"
    SYSTEMD_SOCKET = "systemd-socket"
    SHADOWSOCKS_LIBEV = "shadowsocks-libev"
    SHADOWSOCKS_RUST = "shadowsocks-rust"
    SING_BOX = "sing-box"

    @property
    def program(self) -> ProxyServer:
        """What is started."""
        return _SERVERS[self]


def _nginx(kind: ServerKind, section: str, *modules: Path) -> ProxyServer:
    load = "".join(f"load_module {module};\n" for module in modules)
    return ProxyServer(
        name=kind.value,
        access=Access.REVERSE,
        programs=("nginx", *modules),
        # -e: else nginx complains about the compiled-in log file before it has read the configuration.
        command=lambda site: (*MPTCPIZE, "nginx", "-e", "stderr", "-c", site.config),
        configuration=lambda site: (_NGINX + section).format(
            modules=load, directory=site.directory, port=PORT, upstream=site.upstream
        ),
    )


def _shadowsocks(
    kind: ServerKind, server: str | Path, client: str | Path, *start: str, listen: str | list[str], **options: bool
) -> ProxyServer:
    """Both ends of one implementation; `start` comes before their command lines."""
    common = _SHADOWSOCKS | options

    def of_client(site: Site) -> str:
        address, _, port = site.upstream.rpartition(":")
        local = {"local_address": "127.0.0.1", "local_port": SOCKS_PORT}
        return json.dumps({"server": address.strip("[]"), "server_port": int(port), **local, **common})

    return ProxyServer(
        name=kind.value,
        access=Access.SOCKS,
        programs=(server,),
        command=lambda site: (*start, server, "-c", site.config),
        configuration=lambda _site: json.dumps({"server": listen, "server_port": PORT, **common}),
        client=ProxyServer(
            name="shadowsocks-client",
            access=Access.SOCKS,
            programs=(client,),
            command=lambda site: (*start, client, "-c", site.config),
            configuration=of_client,
            port=SOCKS_PORT,
        ),
    )


_SERVERS: Final = {
    ServerKind.SQUID: SQUID,
    ServerKind.SQUID_TPROXY: SQUID_TPROXY,
    ServerKind.NGINX_HTTP: _nginx(ServerKind.NGINX_HTTP, _NGINX_HTTP),
    ServerKind.NGINX_STREAM: _nginx(ServerKind.NGINX_STREAM, _NGINX_STREAM, _STREAM_MODULE),
    ServerKind.HAPROXY: ProxyServer(
        name="haproxy",
        access=Access.REVERSE,
        programs=("haproxy",),
        command=lambda site: (*MPTCPIZE, "haproxy", "-db", "-f", site.config),
        configuration=lambda site: _HAPROXY.format(port=PORT, upstream=site.upstream),
    ),
    ServerKind.SYSTEMD_SOCKET: ProxyServer(
        name="systemd-socket",
        access=Access.REVERSE,
        programs=("systemd-socket-activate", _SOCKET_PROXY),
        # It makes the listening socket, as systemd does with `SocketProtocol=mptcp`, and starts the service without
        # mptcpize's LD_PRELOAD: the service knows nothing of MPTCP.
        command=lambda site: (
            *(*MPTCPIZE, "systemd-socket-activate", f"--listen=[::]:{PORT}"),
            *(_SOCKET_PROXY, site.upstream),
        ),
        configuration=lambda _site: "",
    ),
    ServerKind.SHADOWSOCKS_LIBEV: _shadowsocks(
        ServerKind.SHADOWSOCKS_LIBEV,
        "ss-server",
        "ss-local",
        *MPTCPIZE,
        listen=["::", "0.0.0.0"],  # noqa: S104
    ),
    ServerKind.SHADOWSOCKS_RUST: _shadowsocks(
        ServerKind.SHADOWSOCKS_RUST, BUILT / "ssserver", BUILT / "sslocal", listen="::", mptcp=True
    ),
    ServerKind.SING_BOX: ProxyServer(
        name="sing-box",
        access=Access.FORWARD,
        programs=(BUILT / "sing-box",),
        command=lambda site: (BUILT / "sing-box", "run", "--config", site.config),
        configuration=lambda _site: json.dumps(_SING_BOX),
    ),
}
