"""How long JOINs take until they are established, and until the proxy's kernel paces a socket of their connection.

The program `bpf/joins.bpf.c` takes the times in the kernel. Nothing of the product takes part.
"""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Self

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfObject, RingBuffer

_PROGRAM: Final = Path(__file__).with_name("bpf") / "joins.bpf.o"
# bpf/joins.bpf.c
_SETTINGS: Final = Struct("=IIII")
_DELAYS: Final = Struct("=QQ")


class Delays(NamedTuple):
    """When a JOIN was established, and when its socket had a pace, in seconds after its SYN."""

    established: float
    paced: float


class JoinObserver(BpfObject):
    """Observes the JOINs to `port` in the network namespace of that file, until the end of the block.

    `daemon` is its process id. With `joiner`, what is to be paced is the joining subflow, else the first of its
    connection. Raises KernelError.
    """

    def __init__(self, namespace: Path, port: int, daemon: int, *, joiner: bool) -> None:
        super().__init__(_PROGRAM, _SETTINGS.pack(namespace.stat().st_ino, port, daemon, joiner))
        try:
            self._paced = RingBuffer(self.map("paced"))
            self._attach_tracing("frame_arrives")
            self._attach_tracing("system_call_ends")
            self.attach_cgroup("observe", _root_cgroup())
        except KernelError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._paced.close()
        self.close()

    def paced(self) -> list[Delays]:
        """The JOINs whose socket has been paced since the last call. Raises KernelError."""
        return [Delays(*(ns / 1e9 for ns in _DELAYS.unpack(record))) for record in self._paced.take()]

    def _attach_tracing(self, program: str) -> None:
        attach = ctypes.CDLL("libbpf.so.1", use_errno=True).bpf_program__attach
        attach.restype, attach.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
        link = attach(self._find("program", program))
        if link is None:
            raise KernelError(f"attach {program}", ctypes.get_errno())
        self._links[program] = link


def _root_cgroup() -> Path:
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, file_system = line.partition(" - ")
        if file_system.startswith("cgroup2 "):
            return Path(fields.split()[4])
    raise KernelError("no cgroup2 file system is mounted", errno.ENOENT)
