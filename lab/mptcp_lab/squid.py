"""Squid as an MPTCP proxy: it accepts MPTCP from clients and speaks plain TCP to origin servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mptcp_lab import proxy_server
from mptcp_lab.proxy_server import MPTCPIZE, Access, ProxyServer

if TYPE_CHECKING:
    from mptcp_lab.host import Host
    from mptcp_lab.process import Process

PORT: Final = proxy_server.PORT

_CONFIG: Final = """\
{listen}
http_access allow all
cache deny all
cache_mem 8 MB
access_log none
cache_log /dev/null
cache_store_log none
pid_filename {directory}/squid.pid
coredump_dir none
visible_hostname proxy
# Squid 5 ends an upload when this buffer is full (bug 5405), 512 KB by default.
client_request_buffer_max_size 64 MB
# Requests name addresses only: nothing waits for a name server.
dns_nameservers 127.0.0.1
hosts_file none
pinger_enable off
netdb_filename none
# Squid allocates a table entry for every descriptor it may open, and containers often allow a billion.
max_filedescriptors 4096
shutdown_lifetime 0 seconds
"""
_TRANSPARENT: Final = """\
http_port {port} tproxy
# Squid does not start without a port at which it is a forward proxy.
http_port 127.0.0.1:3128
# It connects to origin servers from its own address.
spoof_client_ip deny all"""


def _squid(name: str, access: Access, port: int, listen: str) -> ProxyServer:
    return ProxyServer(
        name=name,
        access=access,
        programs=("squid",),
        # Without -N the worker loses mptcpize's LD_PRELOAD and listens on plain TCP. -d1 copies errors to stderr.
        command=lambda site: (*MPTCPIZE, "squid", "-N", "-d1", "-f", site.config),
        configuration=lambda site: _CONFIG.format(listen=listen.format(port=port), directory=site.directory),
        port=port,
    )


def squid_with_tproxy(port: int) -> ProxyServer:
    """Squid as a transparent proxy, which listens on that port."""
    return _squid("squid-tproxy", Access.TRANSPARENT, port, _TRANSPARENT)


SQUID: Final = _squid("squid", Access.FORWARD, PORT, "http_port {port}")
SQUID_TPROXY: Final = squid_with_tproxy(PORT)


def start_squid(host: Host) -> Process:
    """Start Squid, v4 and v6; returns once it listens. Raises LabError if it does not."""
    return SQUID.start(host)
