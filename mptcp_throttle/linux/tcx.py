"""Programs that see what arrives or leaves through an interface, by TCX (Linux 6.6), without a link.

They outlive a process. This calls bpf(2) itself: libbpf 1.1 (Debian 12) can neither choose a place in TCX's order nor
detach a program of an earlier process. To open that program by its id takes CAP_SYS_ADMIN, which no service of ours
has; its place and the revision of the order are enough.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from collections.abc import Callable, Collection
from functools import cache
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.linux.kernel_error import KernelError, fault_point
from mptcp_throttle.linux.libbpf import BEFORE, AttachType

# arch/*/include/asm/unistd.h: bpf(2) has a number of its own on each.
_SYSCALLS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "loongarch64": 280, "ppc64le": 361, "s390x": 351}
# include/uapi/linux/bpf.h: enum bpf_cmd; flags of a place; union bpf_attr for BPF_PROG_ATTACH and BPF_PROG_QUERY
_ATTACH, _DETACH, _QUERY = 8, 9, 16
_AFTER, _BY_ID = 1 << 4, 1 << 5
_ATTACH_ATTRIBUTES: Final = Struct("=IIII4xIQ")
_QUERY_ATTRIBUTES: Final = Struct("=II8xQI4x24xQ")
_MAX_PROGRAMS: Final = 64  # BPF_MPROG_MAX (include/linux/bpf_mprog.h)
_ATTEMPTS: Final = 10
_LOOPBACK: Final = 1


class Attached(NamedTuple):
    """The ids of the programs in the order in which they run, and the revision of that order."""

    programs: tuple[int, ...]
    revision: int


def _bpf(what: str, command: int, attributes: bytes) -> bytes:
    """The attributes afterwards. Raises KernelError."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise KernelError(what, errno.EINVAL, f"bpf(2) is not known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    if _syscall()(number, command, buffer, len(attributes)) < 0:
        raise KernelError(what, ctypes.get_errno())
    return buffer.raw


@cache
def _syscall() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype, function.argtypes = ctypes.c_long, (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


@cache
def has_tcx() -> bool:
    """Whether this process may attach programs by TCX."""
    try:
        _query(_LOOPBACK, AttachType.TCX_INGRESS)
    except KernelError:  # EINVAL before Linux 6.6, EPERM
        return False
    return True


def attached(interface: int, where: AttachType) -> Attached:
    """The programs at the interface of that index. Raises KernelError."""
    fault_point("bpf prog query")
    return _query(interface, where)


def _query(interface: int, where: AttachType) -> Attached:
    ids = (ctypes.c_uint32 * _MAX_PROGRAMS)()
    attributes = _QUERY_ATTRIBUTES.pack(interface, where.value, ctypes.addressof(ids), _MAX_PROGRAMS, 0)
    *_, count, revision = _QUERY_ATTRIBUTES.unpack(_bpf("bpf prog query", _QUERY, attributes))
    return Attached(tuple(ids[:count]), revision)


def attach_first(program: int, interface: int, where: AttachType) -> None:
    """Attach the program of that file descriptor before those that are there. Raises KernelError."""
    fault_point("bpf prog attach")
    _bpf("bpf prog attach", _ATTACH, _ATTACH_ATTRIBUTES.pack(interface, program, where.value, BEFORE, 0, 0))


def detach(programs: Collection[int], interface: int, where: AttachType) -> None:
    """Detach those of these ids that are attached without a link. Raises KernelError."""
    for _ in range(_ATTEMPTS):
        present, revision = attached(interface, where)
        place = next((place for place, program in enumerate(present) if program in programs), None)
        if place is None:
            return
        flags, relative = (_AFTER | _BY_ID, present[place - 1]) if place else (BEFORE, 0)
        attributes = _ATTACH_ATTRIBUTES.pack(interface, 0, where.value, flags, relative, revision)
        fault_point("bpf prog detach")
        try:
            _bpf("bpf prog detach", _DETACH, attributes)
        except KernelError as error:
            if error.number not in (errno.ESTALE, errno.ENOENT):  # another program has changed the order
                raise
    raise KernelError("bpf prog detach", errno.EAGAIN)
