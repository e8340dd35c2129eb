"""What a server of Valkey does for proxies: commands, bytes on the wire, memory and processor time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mptcp_lab.valkey_server import ValkeyServer

HZ_AS_INSTALLED: Final = "hz 10"
"""The server's own default; that of the lab looks after timeouts more often."""

_COUNTERS: Final = {
    "commands": ("total_commands_processed", 1),
    "MB received": ("total_net_input_bytes", 10**6),
    "MB sent": ("total_net_output_bytes", 10**6),
}


class ServerMeter:
    """What the server has done since this object was made."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self._before, self._cpu = _info(server), cpu_seconds(server.process.pid)

    def figures(self, seconds: float) -> dict[str, float]:
        """Per second, as means over `seconds`; and its present memory."""
        cpu, now = cpu_seconds(self._server.process.pid) - self._cpu, _info(self._server)
        counted = {
            f"server: {name} per second": (now[key] - self._before[key]) / unit / seconds
            for name, (key, unit) in _COUNTERS.items()
        }
        memory = {"server: used_memory, MiB": now["used_memory"] / 2**20}
        return {**counted, "server: % of a core": 100 * cpu / seconds, **memory}


def used_memory(server: ValkeyServer) -> int:
    """The memory that the server reports as used, in bytes."""
    return int(_info(server)["used_memory"])


def _info(server: ValkeyServer) -> Mapping[str, float]:
    pairs = (line.split(":", 1) for line in server.cli("INFO").splitlines() if ":" in line)
    return {key: float(value) for key, value in pairs if value.strip().replace(".", "", 1).isdigit()}
