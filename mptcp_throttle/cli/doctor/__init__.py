"""`mptcp-throttle doctor`: a list of small checks of the kernel, the proxy, the configuration and both services.

A check is a function from `Host` to findings (`mptcp_throttle.findings`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mptcp_throttle.cli.doctor import file_checks, kernel_checks, mark_checks, proxy_checks, service_checks
from mptcp_throttle.config.schema import Config
from mptcp_throttle.findings import Check, Finding, Host
from mptcp_throttle.rpc import Json, RpcClient, RpcError

CHECKS: Final[tuple[Check, ...]] = (  # in the order in which they are shown
    proxy_checks.namespace,
    kernel_checks.mptcp,
    kernel_checks.joins,
    kernel_checks.send_buffers,
    kernel_checks.unsent_data,
    kernel_checks.clock,
    proxy_checks.interface,
    proxy_checks.listeners,
    proxy_checks.ends,
    proxy_checks.translated,
    proxy_checks.interceptions,
    proxy_checks.own_connections,
    proxy_checks.routes,
    kernel_checks.root_qdiscs,
    proxy_checks.access,
    proxy_checks.uploads,
    mark_checks.classifier,
    mark_checks.foreign_marks,
    mark_checks.legacy_tables,
    file_checks.configuration_files,
    file_checks.schedules,
    file_checks.socket_group,
    file_checks.cli_user,
    service_checks.sniffer,
    service_checks.daemon,
    service_checks.units,
)


def examine(config_file: Path, config: Config, timeout: float) -> list[Finding]:
    """Check this host and both services, each of which has `timeout` seconds to answer. Raises UserError."""
    sockets = config.sockets
    host = Host(config_file, config, _ask(sockets.sniffer, timeout), _ask(sockets.daemon, timeout))
    return [finding for check in CHECKS for finding in check(host)]


def _ask(socket: Path, timeout: float) -> Json | str:
    try:
        return RpcClient(socket, timeout).call("status")
    except RpcError as error:
        return str(error)
