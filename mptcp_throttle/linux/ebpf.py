"""eBPF without a compiler: an assembler, and the bpf(2) commands for a hash map, a program and a cgroup link."""

from __future__ import annotations

import ctypes
import errno
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.linux.kernel_error import KernelError, fault_point

# Registers (include/uapi/linux/bpf.h): R0 result; R1-R5 arguments, clobbered by calls; R6-R9 preserved; R10 stack.
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)

# Opcodes (Documentation/bpf/standardization/instruction-set.rst): class | source | operation.
_LDX_W: Final = 0x61
_LDX_DW: Final = 0x79
_STX_W: Final = 0x63
_STX_DW: Final = 0x7B
_ST_W: Final = 0x62
_LD_DW: Final = 0x18
_MOV64_X: Final = 0xBF
_MOV64_K: Final = 0xB7
_MOV32_K: Final = 0xB4
_ADD64_K: Final = 0x07
_SUB64_X: Final = 0x1F
_MUL64_X: Final = 0x2F
_DIV64_X: Final = 0x3F
_RSH64_K: Final = 0x77
_MUL64_K: Final = 0x27
_JEQ_K: Final = 0x15
_JEQ_X: Final = 0x1D
_JNE_K: Final = 0x55
_JGE_K: Final = 0x35
_JGE_X: Final = 0x3D
_JNE_X: Final = 0x5D
_JA: Final = 0x05
_CALL: Final = 0x85
_EXIT: Final = 0x95
_PSEUDO_MAP_FD: Final = 1

_INSTRUCTION: Final = Struct("=BBhi")


class Instruction(NamedTuple):
    """One instruction; a jump names its target label in `to`."""

    opcode: int
    dst: int = 0
    src: int = 0
    offset: int = 0
    immediate: int = 0
    to: str | None = None


def load(dst: int, src: int, offset: int) -> Instruction:
    """`dst = *(u32 *)(src + offset)`."""
    return Instruction(_LDX_W, dst, src, offset)


def load64(dst: int, src: int, offset: int) -> Instruction:
    """`dst = *(u64 *)(src + offset)`."""
    return Instruction(_LDX_DW, dst, src, offset)


def store(dst: int, offset: int, src: int) -> Instruction:
    """`*(u32 *)(dst + offset) = src`."""
    return Instruction(_STX_W, dst, src, offset)


def store64(dst: int, offset: int, src: int) -> Instruction:
    """`*(u64 *)(dst + offset) = src`."""
    return Instruction(_STX_DW, dst, src, offset)


def store_constant(dst: int, offset: int, value: int) -> Instruction:
    """`*(u32 *)(dst + offset) = value`."""
    return Instruction(_ST_W, dst, 0, offset, value)


def move(dst: int, src: int) -> Instruction:
    """`dst = src`."""
    return Instruction(_MOV64_X, dst, src)


def constant(dst: int, value: int) -> Instruction:
    """`dst = value`, sign-extended from 32 bits."""
    return Instruction(_MOV64_K, dst, immediate=value)


def constant32(dst: int, value: int) -> Instruction:
    """`dst = value`, zero-extended from 32 bits."""
    return Instruction(_MOV32_K, dst, immediate=value - (1 << 32) if value >> 31 else value)


def constant64(dst: int, value: int) -> Sequence[Instruction]:
    """`dst = value`, 64 bits: takes two instruction slots."""
    low, high = Struct("=ii").unpack(Struct("=Q").pack(value))
    return Instruction(_LD_DW, dst, immediate=low), Instruction(0, immediate=high)


def add(dst: int, value: int) -> Instruction:
    """`dst += value`."""
    return Instruction(_ADD64_K, dst, immediate=value)


def subtract(dst: int, src: int) -> Instruction:
    """`dst -= src`."""
    return Instruction(_SUB64_X, dst, src)


def multiply(dst: int, src: int) -> Instruction:
    """`dst *= src`."""
    return Instruction(_MUL64_X, dst, src)


def multiply_constant(dst: int, value: int) -> Instruction:
    """`dst *= value`."""
    return Instruction(_MUL64_K, dst, immediate=value)


def divide(dst: int, src: int) -> Instruction:
    """`dst /= src`, unsigned; 0 if `src` is 0."""
    return Instruction(_DIV64_X, dst, src)


def shift_right(dst: int, bits: int) -> Instruction:
    """`dst >>= bits`."""
    return Instruction(_RSH64_K, dst, immediate=bits)


def jump_if_same(dst: int, src: int, to: str) -> Instruction:
    """`if (dst == src) goto to`."""
    return Instruction(_JEQ_X, dst, src, to=to)


def jump_unless_same(dst: int, src: int, to: str) -> Instruction:
    """`if (dst != src) goto to`."""
    return Instruction(_JNE_X, dst, src, to=to)


def jump_if_at_least(dst: int, src: int, to: str) -> Instruction:
    """`if (dst >= src) goto to`, unsigned."""
    return Instruction(_JGE_X, dst, src, to=to)


def jump_if_equal(register: int, value: int, to: str) -> Instruction:
    """`if (register == value) goto to`."""
    return Instruction(_JEQ_K, register, immediate=value, to=to)


def jump_unless_equal(register: int, value: int, to: str) -> Instruction:
    """`if (register != value) goto to`."""
    return Instruction(_JNE_K, register, immediate=value, to=to)


def jump_from(register: int, value: int, to: str) -> Instruction:
    """`if (register >= value) goto to`, unsigned."""
    return Instruction(_JGE_K, register, immediate=value, to=to)


def jump(to: str) -> Instruction:
    """`goto to`."""
    return Instruction(_JA, to=to)


def load_map(dst: int, descriptor: int) -> Sequence[Instruction]:
    """`dst = map`: takes two instruction slots."""
    return Instruction(_LD_DW, dst, _PSEUDO_MAP_FD, 0, descriptor), Instruction(0)


def call(helper: int) -> Instruction:
    """`r0 = helper(r1, ..., r5)`."""
    return Instruction(_CALL, immediate=helper)


def leave() -> Instruction:
    """`return r0`."""
    return Instruction(_EXIT)


def assemble(lines: Sequence[Instruction | str]) -> bytes:
    """Encode a program for the kernel; a string among the lines labels the instruction after it."""
    labels: dict[str, int] = {}
    instructions: list[Instruction] = []
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(instructions)
        else:
            instructions.append(line)
    return b"".join(_encode(number, one, labels) for number, one in enumerate(instructions))


def _encode(number: int, one: Instruction, labels: Mapping[str, int]) -> bytes:
    offset = one.offset if one.to is None else labels[one.to] - number - 1
    return _INSTRUCTION.pack(one.opcode, one.dst | one.src << 4, offset, one.immediate)


# bpf(2): commands and union bpf_attr (include/uapi/linux/bpf.h).
_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
_ATTRIBUTE_BYTES: Final = 144
_MAP_CREATE, _MAP_DELETE, _PROG_LOAD, _MAP_UPDATE_BATCH, _LINK_CREATE = 0, 3, 5, 26, 28
_MAP_TYPE_HASH: Final = 1
_NO_PREALLOC: Final = 1
_LOG_BYTES: Final = 65536
_CREATE: Final = Struct("=IIIII")
_ELEMENT: Final = Struct("=IxxxxQQQ")
_BATCH: Final = Struct("=QQQQIIQQ")
_LOAD: Final = Struct("=IIQQIIQ")
_LINK: Final = Struct("=IIII")

_libc: Final = ctypes.CDLL(None, use_errno=True)


def create_hash_map(key_bytes: int, value_bytes: int, entries: int) -> int:
    """Create a hash map; returns its descriptor. Raises KernelError."""
    attributes = _CREATE.pack(_MAP_TYPE_HASH, key_bytes, value_bytes, entries, _NO_PREALLOC)
    return _bpf("bpf map create", _MAP_CREATE, attributes)


def update_map(descriptor: int, elements: Mapping[bytes, bytes]) -> None:
    """Add or replace elements, in one call (Linux 5.6). Raises KernelError, after which some may have been written."""
    with _in_memory(b"".join(elements), b"".join(elements.values())) as (keys_at, values_at):
        batch = _BATCH.pack(0, 0, keys_at, values_at, len(elements), descriptor, 0, 0)
        _bpf("bpf map update", _MAP_UPDATE_BATCH, batch)


def delete_from_map(descriptor: int, key: bytes) -> None:
    """Delete an element. Raises KernelError, with ENOENT if the map does not have the key."""
    with _in_memory(key) as (key_at,):
        _bpf("bpf map delete", _MAP_DELETE, _ELEMENT.pack(descriptor, key_at, 0, 0))


def load_program(kind: int, program: bytes) -> int:
    """Load a program of type `kind`; returns its descriptor. Raises KernelError with the verifier's last line."""
    log = ctypes.create_string_buffer(_LOG_BYTES)
    with _in_memory(program, b"GPL\0") as (program_at, license_at):
        count = len(program) // _INSTRUCTION.size
        attributes = _LOAD.pack(kind, count, program_at, license_at, 1, _LOG_BYTES, ctypes.addressof(log))
        try:
            return _bpf("bpf prog load", _PROG_LOAD, attributes)
        except KernelError as error:
            said = log.value.decode(errors="replace").strip().splitlines()
            raise KernelError("bpf prog load", error.number, said[-1] if said else "") from error


def link(program: int, target: int, attach_type: int) -> int:
    """Attach a program to a cgroup, beside those of others; returns the link, which detaches it when closed.

    Raises KernelError.
    """
    return _bpf("bpf link create", _LINK_CREATE, _LINK.pack(program, target, attach_type, 0))


@contextmanager
def _in_memory(*values: bytes) -> Iterator[tuple[int, ...]]:
    buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
    yield tuple(ctypes.addressof(buffer) for buffer in buffers)


def _bpf(what: str, command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise KernelError(what, errno.ENOSYS)
    fault_point(what)
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTE_BYTES)
    result = int(_libc.syscall(number, command, buffer, _ATTRIBUTE_BYTES))
    if result < 0:
        raise KernelError(what, ctypes.get_errno())
    return result
