"""Registers coupled congestion controls with the kernel, so that network namespaces can choose them by name."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.lab_errors import LabError
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COUPLED: Final = ("lia", "olia")
"""Their names, as `net.ipv4.tcp_congestion_control` takes them."""

_PROGRAMS: Final = Path(__file__).with_name("bpf")
_LOCKS: Final = Path("/run")
_TYPES: Final = Path("/sys/kernel/btf/vmlinux")
_LINKS_SINCE_MINOR: Final = 2
# include/uapi/linux/bpf.h
_BPF_F_LINK: Final = 1 << 13
_BPF_STRUCT_OPS: Final = 44


def kernel_takes_programs() -> bool:
    """Whether the running kernel has the type information (BTF) that these programs need."""
    return _TYPES.exists()


@contextmanager
def registered(names: Iterable[str]) -> Iterator[None]:
    """While the block runs, the kernel has these of `COUPLED`; waits while another lab has them. Raises LabError."""
    with ExitStack() as controls:
        try:
            for name in sorted(names):
                controls.enter_context(_alone(name))
                controls.callback(_Control(name).close)
        except KernelError as error:
            raise LabError(f"congestion control {name}: {error}") from error
        yield


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """No other lab has the control while the block runs: it would vanish for both when either ends."""
    with _LOCKS.joinpath(f"mptcp-lab-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Control(BpfObject):
    """A congestion control of the kernel until `close`. If this process is killed, Linux 6.4 and later remove it.

    Raises KernelError; before Linux 6.4 also if a killed lab has left a control, perhaps of an older build.
    """

    def __init__(self, name: str) -> None:
        self._link: int | None = None
        path = _PROGRAMS / f"{name}.bpf.o"
        has_links = True
        try:
            super().__init__(path, map_flags={name: _BPF_F_LINK})
        except KernelError as error:
            # Since Linux 6.4 a link registers it (kernel/bpf/bpf_struct_ops.c), before that the map's update does.
            if error.number != errno.EINVAL:
                raise
            has_links = False
            super().__init__(path)
        try:
            self._register(name, has_links=has_links)
        except KernelError:
            self.close()
            raise

    def _register(self, name: str, *, has_links: bool) -> None:
        own = ctypes.CDLL("libbpf.so.1", use_errno=True)
        own.bpf_map__attach_struct_ops.restype = ctypes.c_void_p
        own.bpf_map__attach_struct_ops.argtypes = (ctypes.c_void_p,)
        registration = own.bpf_map__attach_struct_ops(self._find("map", name))
        if registration is None:
            remedy = "a killed lab has left it: reboot" if ctypes.get_errno() == errno.EEXIST else ""
            raise KernelError(f"register {name}", ctypes.get_errno(), remedy)
        self._links[name] = registration
        # Since libbpf 1.2 the first call creates the link, too.
        if has_links and own.libbpf_minor_version() < _LINKS_SINCE_MINOR:
            link = own.bpf_link_create(self.map(name).descriptor, 0, _BPF_STRUCT_OPS, None)
            if link < 0:
                raise KernelError(f"register {name}", ctypes.get_errno())
            self._link = link

    def close(self) -> None:
        """Unregister it."""
        if self._link is not None:
            os.close(self._link)
            self._link = None
        super().close()
