"""What the proxy's sockets may have unsent (`unsent_limits.bpf.c`): no system call returns it for a subflow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

from bpf_compiler import compiled

from mptcp_lab.namespaces import in_namespace
from mptcp_throttle.linux.libbpf import BpfObject
from mptcp_throttled.kernel.program_layout import OBJECTS

if TYPE_CHECKING:
    from mptcp_lab.host import Host

_SOURCE: Final = Path(__file__).with_name("unsent_limits.bpf.c")
_FOUND: Final = Struct("=IHBB")


@dataclass(frozen=True)
class UnsentLimits:
    """TCP_NOTSENT_LOWAT of the sockets with a connection on one port."""

    first: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()
    plain: tuple[int, ...] = ()


class UnsentLimitReader:
    """Reads it of the sockets of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._object = BpfObject(compiled(_SOURCE, host.directory, f"-I{OBJECTS}"))

    def read(self, port: int) -> UnsentLimits:
        """The present limits of the sockets on `port`."""
        with in_namespace(self._host.namespace):
            written = self._object.iterate("unsent_limits")
        found: dict[str, tuple[int, ...]] = {}
        for limit, own_port, is_mptcp, has_joined in _FOUND.iter_unpack(written):
            if own_port == port:
                kind = "joined" if has_joined else "first" if is_mptcp else "plain"
                found[kind] = (*found.get(kind, ()), limit)
        return UnsentLimits(**found)

    def close(self) -> None:
        """Drop the program."""
        self._object.close()
