"""Checks of Squid's configuration."""

from __future__ import annotations

from collections.abc import Iterator

from mptcp_throttle.cli.doctor.finding import Host
from mptcp_throttle.findings import Finding
from mptcp_throttle.model import Direction
from mptcp_throttle.squid_config import CONFIGURATION, has_large_buffer, http_ports, read_lines, serves_others


def uploads(host: Host) -> Iterator[Finding]:
    """Whether Squid ends uploads that are faster than their server; only where uplinks have a rate."""
    subject = "uploads through Squid"
    kinds = {kind for network in host.config.networks for kind in network.rates}
    if all(kind.direction is not Direction.UPLINK for kind in kinds):
        return
    try:
        if not CONFIGURATION.exists():
            return
        is_enough = has_large_buffer(read_lines(CONFIGURATION))
    except OSError as error:
        yield Finding(subject, unchecked=f"{error.filename}: cannot be read: {error.strerror}")
        return
    if is_enough:
        yield Finding(subject)
        return
    problem = "Squid may end them when its request buffer is full (Squid bug 5405)"
    example = "/usr/share/doc/mptcp-throttle/examples/squid/mptcp-throttle.conf"
    remedy = f"install {example} in /etc/squid/conf.d, and restart Squid"
    yield Finding(subject, problem, remedy, harm=False)


def access(host: Host) -> Iterator[Finding]:
    """Whether Squid, where it is the proxy, serves more than this host, as Debian's configuration does not."""
    subject = "access to Squid"
    try:
        lines = list(read_lines(CONFIGURATION))
    except OSError:
        return  # no Squid, or `uploads` says so
    if not http_ports(lines) & {*host.config.proxy.ports}:
        return
    if serves_others(lines):
        yield Finding(subject)
        return
    problem = "its http_access allows this host alone, so it denies the clients"
    remedy = "`http_access allow` for the subnets of the clients, in a file in /etc/squid/conf.d, and restart Squid"
    yield Finding(subject, problem, remedy, harm=False)


def remedy_for_port(port: int) -> str:
    """What else to do where no process listens on a port of the proxy: Debian's Squid has 3128. May be empty."""
    try:
        ports = http_ports(read_lines(CONFIGURATION))
    except OSError:
        return ""
    if not ports or port in ports:
        return ""
    listed = ", ".join(map(str, sorted(ports)))
    return (
        f"; Squid's http_port is {listed}: set proxy.ports to it, or write `http_port {port}` into a file in"
        " /etc/squid/conf.d, and `http_access allow` for the subnets of the clients"
    )
