"""BPF object files through libbpf (ctypes on `libbpf.so.1`): load, maps, and attaching to cgroups and interfaces.

An object is compiled from C (`daemon/mptcp_throttled/kernel/bpf/`). libbpf fits it to the running kernel: it finds the
fields of kernel structures by the kernel's type information (CO-RE), so one object serves all kernels.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

from mptcp_throttle.linux.kernel_error import KernelError, fault_point, os_errors

_LOG_BYTES: Final = 1 << 24
_MAX_LINE: Final = 200
_MAX_GROWTH: Final = 256

LASTING_ERRORS: Final = frozenset({errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENOSYS, errno.ENOTSUP, errno.ESRCH})
"""Errors that another try will not cure: missing capabilities, files or type information (BTF), an old kernel."""


class _OpenOptions(ctypes.Structure):
    """struct bpf_object_open_opts (bpf/libbpf.h), up to the last field that is set here."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("object_name", ctypes.c_char_p),
        ("relaxed_maps", ctypes.c_bool),
        ("pin_root_path", ctypes.c_char_p),
        ("removed", ctypes.c_uint32),
        ("kconfig", ctypes.c_char_p),
        ("btf_custom_path", ctypes.c_char_p),
        ("kernel_log_buf", ctypes.c_void_p),
        ("kernel_log_size", ctypes.c_size_t),
        ("kernel_log_level", ctypes.c_uint32),
    )


class _TestRunOptions(ctypes.Structure):
    """struct bpf_test_run_opts (bpf/bpf.h)."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


class _ProgramInfo(ctypes.Structure):
    """struct bpf_prog_info (include/uapi/linux/bpf.h), up to the id."""

    _fields_ = (("type", ctypes.c_uint32), ("id", ctypes.c_uint32))


class _LinkCreateOptions(ctypes.Structure):
    """struct bpf_link_create_opts (bpf/bpf.h), up to the flags."""

    _fields_ = (("sz", ctypes.c_size_t), ("flags", ctypes.c_uint32))


class _LinkInfo(ctypes.Structure):
    """struct bpf_link_info (include/uapi/linux/bpf.h), up to the first field of the union. `target` is the id of a
    cgroup; of a TCX link it has the index of an interface in its lower half."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("program", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("target", ctypes.c_uint64),
    )


_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "libbpf_set_print": (_POINTER, _POINTER),
    "bpf_object__open_file": (_POINTER, _TEXT, _POINTER),
    "bpf_object__load": (_INT, _POINTER),
    "bpf_object__close": (None, _POINTER),
    "bpf_object__find_map_by_name": (_POINTER, _POINTER, _TEXT),
    "bpf_object__find_program_by_name": (_POINTER, _POINTER, _TEXT),
    "bpf_map__fd": (_INT, _POINTER),
    "bpf_map__key_size": (ctypes.c_uint32, _POINTER),
    "bpf_map__value_size": (ctypes.c_uint32, _POINTER),
    "bpf_map__set_map_flags": (_INT, _POINTER, ctypes.c_uint32),
    "bpf_map__reuse_fd": (_INT, _POINTER, _INT),
    "bpf_map__set_initial_value": (_INT, _POINTER, _POINTER, ctypes.c_size_t),
    "bpf_program__fd": (_INT, _POINTER),
    "bpf_program__attach_iter": (_POINTER, _POINTER, _POINTER),
    "bpf_program__attach_cgroup": (_POINTER, _POINTER, _INT),
    "bpf_link__destroy": (_INT, _POINTER),
    "bpf_link__detach": (_INT, _POINTER),
    "bpf_link_detach": (_INT, _INT),
    "bpf_link_create": (_INT, _INT, _INT, _INT, _POINTER),
    "bpf_link__fd": (_INT, _POINTER),
    "bpf_obj_get_info_by_fd": (_INT, _INT, _POINTER, _POINTER),
    "bpf_iter_create": (_INT, _INT),
    "bpf_prog_test_run_opts": (_INT, _INT, _POINTER),
    "bpf_map_lookup_elem": (_INT, _INT, _TEXT, _POINTER),
    "bpf_map_update_batch": (_INT, _INT, _TEXT, _TEXT, _POINTER, _POINTER),
    "bpf_map_get_next_key": (_INT, _INT, _TEXT, _POINTER),
    "bpf_map_delete_batch": (_INT, _INT, _TEXT, _POINTER, _POINTER),
    "ring_buffer__new": (_POINTER, _INT, _POINTER, _POINTER, _POINTER),
    "ring_buffer__consume": (_INT, _POINTER),
    "ring_buffer__free": (None, _POINTER),
}
_RECORD: Final = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, ctypes.c_size_t)


@cache
def _libbpf() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise KernelError("load libbpf.so.1", errno.ENOENT, "install the package libbpf1") from error
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    # It would print its own messages to stderr.
    library.libbpf_set_print(None)
    return library


def _checked(what: str, result: int | None, remedy: str = "") -> int:
    """The result, unless it is an error: libbpf returns NULL or a negative number, and sets errno."""
    if result is None or result < 0:
        raise KernelError(what, ctypes.get_errno() or -(result or -errno.EINVAL), remedy)
    return result


class BpfMap:
    """A map of a loaded object, by its file descriptor."""

    def __init__(self, descriptor: int, key_bytes: int, value_bytes: int) -> None:
        self.descriptor = descriptor
        self._key_bytes = key_bytes
        self._value_bytes = value_bytes

    def update(self, elements: Mapping[bytes, bytes]) -> None:
        """Add or replace elements, in one call. Raises KernelError, after which some may have been written."""
        if not elements:
            return
        fault_point("bpf map update")
        count = ctypes.c_uint32(len(elements))
        keys, values = b"".join(elements), b"".join(elements.values())
        if len(values) != len(elements) * self._value_bytes:  # the kernel would read beyond them
            raise ValueError(f"a value of this map has {self._value_bytes} bytes")
        result = _libbpf().bpf_map_update_batch(self.descriptor, keys, values, ctypes.byref(count), None)
        _checked("bpf map update", result)

    def get(self, key: bytes) -> bytes:
        """The value, with the padding of its structure. Raises KernelError, with ENOENT if the map has no such key."""
        value = ctypes.create_string_buffer(self._value_bytes)
        _checked("bpf map lookup", _libbpf().bpf_map_lookup_elem(self.descriptor, key, value))
        return value.raw

    def find(self, key: bytes) -> bytes | None:
        """As `get`, but None if the map has no such key."""
        try:
            return self.get(key)
        except KernelError as error:
            if error.number != errno.ENOENT:
                raise
            return None

    def delete_all(self, keys: Collection[bytes]) -> None:
        """Delete these elements, as far as they are there, in one call; for the map types that have batches.

        Raises KernelError, after which some may be left.
        """
        ahead, size = b"".join(keys), self._key_bytes
        while ahead:
            fault_point("bpf map delete")
            count = ctypes.c_uint32(len(ahead) // size)
            result = _libbpf().bpf_map_delete_batch(self.descriptor, ahead, ctypes.byref(count), None)
            # The kernel stops at a key that is not there, `count` then being the number of those before it.
            if result < 0 and ctypes.get_errno() != errno.ENOENT:
                _checked("bpf map delete", result)
            ahead = ahead[(count.value + (result < 0)) * size :]

    def all_keys(self) -> list[bytes]:
        """The keys of all elements."""
        keys: list[bytes] = []
        previous, following = None, ctypes.create_string_buffer(self._key_bytes)
        while _libbpf().bpf_map_get_next_key(self.descriptor, previous, following) == 0:
            previous = following.raw
            keys.append(previous)
        return keys

    def all_elements(self) -> dict[bytes, bytes]:
        """All elements, without those that go meanwhile. Raises KernelError."""
        values = ((key, self.find(key)) for key in self.all_keys())
        return {key: value for key, value in values if value is not None}

    def clear(self) -> None:
        """Delete all elements; for the map types that have batches. Raises KernelError."""
        self.delete_all(self.all_keys())


class RingBuffer:
    """The records that a program puts into a ring buffer (BPF_MAP_TYPE_RINGBUF). All methods raise KernelError."""

    def __init__(self, map_: BpfMap) -> None:
        self._records: list[bytes] = []
        self._callback = _RECORD(self._add)
        buffer = _libbpf().ring_buffer__new(map_.descriptor, self._callback, None, None)
        self._buffer = _checked("map the ring buffer", buffer)

    def _add(self, _context: None, record: int, size: int) -> int:
        self._records.append(ctypes.string_at(record, size))
        return 0

    def take(self) -> list[bytes]:
        """The records that have come since the last call."""
        _checked("read the ring buffer", _libbpf().ring_buffer__consume(self._buffer))
        records, self._records = self._records, []
        return records

    def close(self) -> None:
        """Unmap it."""
        _libbpf().ring_buffer__free(self._buffer)


_LINK_TYPE_TCX: Final = 11  # enum bpf_link_type (include/uapi/linux/bpf.h)
BEFORE: Final = 1 << 3
"""BPF_F_BEFORE (include/uapi/linux/bpf.h): before the program that is named, or else before all."""


class AttachType(Enum):
    """Where at an interface a program is attached: enum bpf_attach_type (include/uapi/linux/bpf.h)."""

    TCX_INGRESS = 46
    TCX_EGRESS = 47


class BpfObject:
    """The programs and maps of an object file in the kernel, until `close` or the end of this process.

    `constants` is the content of the object's section `.rodata`, the variables that are constant once it is loaded.
    `map_flags` are flags (BPF_F_*) of maps by name, `shared` maps of other objects that it has instead of its own. All
    methods raise KernelError; the constructor with the verifier's last line.
    """

    def __init__(
        self,
        path: Path,
        constants: bytes = b"",
        map_flags: Mapping[str, int] | None = None,
        shared: Mapping[str, BpfMap] | None = None,
    ) -> None:
        self._library = _libbpf()
        self._links: dict[str, int] = {}
        self._object = 0
        fault_point("bpf object load")
        if not path.exists():
            raise KernelError(f"load {path.name}", errno.ENOENT, f"{path} is missing: run make in {path.parent}")
        maps = map_flags or {}, shared or {}
        try:
            self._load(path, constants, *maps, None)
        except KernelError:
            self.close()
            # Once more for the verifier's log, which may have megabytes.
            try:
                self._load(path, constants, *maps, ctypes.create_string_buffer(_LOG_BYTES))
            except KernelError:
                self.close()
                raise

    def _load(
        self,
        path: Path,
        constants: bytes,
        map_flags: Mapping[str, int],
        shared: Mapping[str, BpfMap],
        log: ctypes.Array[ctypes.c_char] | None,
    ) -> None:
        library, options = self._library, _OpenOptions(sz=ctypes.sizeof(_OpenOptions))
        if log is not None:
            options.kernel_log_buf, options.kernel_log_size = ctypes.addressof(log), len(log)
        opened = library.bpf_object__open_file(os.fsencode(path), ctypes.byref(options))
        self._object = _checked(f"open {path.name}", opened)
        if constants:
            constants_map = self._find("map", ".rodata")
            _checked("set constants", library.bpf_map__set_initial_value(constants_map, constants, len(constants)))
        for name, flags in map_flags.items():
            _checked(f"set flags of map {name}", library.bpf_map__set_map_flags(self._find("map", name), flags))
        for name, map_ in shared.items():
            reused = library.bpf_map__reuse_fd(self._find("map", name), map_.descriptor)
            _checked(f"share map {name}", reused)
        self._load_opened(path.name, log)

    def _load_opened(self, name: str, log: ctypes.Array[ctypes.c_char] | None) -> None:
        result = self._library.bpf_object__load(self._object)
        _checked(f"load {name}", result, "" if log is None else _last_line(log.value))

    def _find(self, kind: str, name: str) -> int:
        find = getattr(self._library, f"bpf_object__find_{kind}_by_name")
        return _checked(f"find {kind} {name}", find(self._object, name.encode()))

    def map(self, name: str) -> BpfMap:
        """The map of that name."""
        pointer = self._find("map", name)
        descriptor = _checked(f"map {name}", self._library.bpf_map__fd(pointer))
        sizes = self._library.bpf_map__key_size(pointer), self._library.bpf_map__value_size(pointer)
        return BpfMap(descriptor, *sizes)

    def attach_cgroup(self, program: str, cgroup: Path) -> int:
        """Attach a program to a cgroup, beside programs that are there, until `close`.

        Returns the file descriptor of the link. A copy of it keeps the program attached when this process has ended.
        """
        fault_point("bpf link create")
        with os_errors(f"cgroup {cgroup}"):
            directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            link = self._library.bpf_program__attach_cgroup(self._find("program", program), directory)
            self._links[program] = _checked(f"attach {program}", link)
        finally:
            os.close(directory)
        return int(self._library.bpf_link__fd(link))

    def attach_interface(self, program: str, index: int, name: str, attach_type: AttachType) -> int:
        """Attach a tc program to the interface of that index and name, before programs that are there (TCX, Linux 6.6).

        Returns the file descriptor of the link, which is the caller's: the program is detached when it and its copies
        are closed.
        """
        fault_point("bpf link create")
        options = ctypes.byref(_LinkCreateOptions(ctypes.sizeof(_LinkCreateOptions), BEFORE))
        link = self._library.bpf_link_create(self.program(program), index, attach_type.value, options)
        lacks_tcx = link < 0 and ctypes.get_errno() == errno.EINVAL
        return _checked(f"attach {program} to {name}", link, "before Linux 6.6 there is no TCX" if lacks_tcx else "")

    def iterate(self, program: str) -> bytes:
        """Run an iterator program over all its objects; what it has written."""
        fault_point("bpf iterator")
        library = self._library
        if program not in self._links:
            link = library.bpf_program__attach_iter(self._find("program", program), None)
            self._links[program] = _checked(f"attach {program}", link)
        run = _checked(f"run {program}", library.bpf_iter_create(library.bpf_link__fd(self._links[program])))
        with os_errors(f"run {program}"), open(run, "rb") as written:
            return written.read()

    def run(self, program: str, packet: bytes) -> tuple[int, bytes]:
        """Run a tc program on a packet with an Ethernet header; what it returns, and the packet then.

        Packets that it redirects are sent.
        """
        fault_point("bpf test run")
        after = ctypes.create_string_buffer(len(packet) + _MAX_GROWTH)
        options = _TestRunOptions(
            sz=ctypes.sizeof(_TestRunOptions),
            data_in=packet,
            data_out=ctypes.addressof(after),
            data_size_in=len(packet),
            data_size_out=len(after),
            repeat=1,
        )
        result = self._library.bpf_prog_test_run_opts(self.program(program), ctypes.byref(options))
        _checked(f"run {program}", result)
        return options.retval, after.raw[: options.data_size_out]

    def prepared(self, program: str, packet: bytes) -> Callable[[], int]:
        """A function that runs a tc program as `run` does, for callers that run it many times a second.

        It returns what the program returns.
        """
        size = ctypes.sizeof(_TestRunOptions)
        options = _TestRunOptions(sz=size, data_in=packet, data_size_in=len(packet), repeat=1)
        descriptor, reference = self.program(program), ctypes.byref(options)

        def run() -> int:
            fault_point("bpf test run")
            options.data_size_out = 0  # the last run has set it; a packet that grows beyond it would be ENOSPC
            _checked(f"run {program}", self._library.bpf_prog_test_run_opts(descriptor, reference))
            return int(options.retval)

        return run

    def program(self, name: str) -> int:
        """The file descriptor of the program of that name, for netlink."""
        return _checked(f"program {name}", self._library.bpf_program__fd(self._find("program", name)))

    def close(self) -> None:
        """Detach the programs, and drop them and the maps."""
        for link in self._links.values():
            self._library.bpf_link__detach(link)  # another process may have a copy of the link
            self._library.bpf_link__destroy(link)
        self._links = {}
        if self._object:
            self._library.bpf_object__close(self._object)
        self._object = 0


def program_id(program: int) -> int:
    """The id of the program of a file descriptor. Raises KernelError."""
    info = _ProgramInfo()
    _read_info("bpf prog info", program, info)
    return int(info.id)


def is_attached(link: int) -> bool:
    """Whether the program of a link to a cgroup or an interface, by its file descriptor, is still attached.

    Root can detach any link, and to delete the cgroup or the interface detaches it, too. Raises KernelError.
    """
    info = _LinkInfo()
    _read_info("bpf link info", link, info)
    mask = 0xFFFF_FFFF if info.type == _LINK_TYPE_TCX else 0xFFFF_FFFF_FFFF_FFFF
    return bool(info.target & mask)


def _read_info(what: str, descriptor: int, info: ctypes.Structure) -> None:
    size = ctypes.c_uint32(ctypes.sizeof(info))
    _checked(what, _libbpf().bpf_obj_get_info_by_fd(descriptor, ctypes.byref(info), ctypes.byref(size)))


def detach_link(link: int) -> None:
    """Detach the program of a link, by its file descriptor, even if another process has copies. Raises KernelError."""
    _checked("bpf link detach", _libbpf().bpf_link_detach(link))


def _last_line(log: bytes) -> str:
    """The last line of the verifier's log that is not its statistics."""
    lines = [line for line in log.decode(errors="replace").splitlines() if line and not line.startswith("processed ")]
    return lines[-1][:_MAX_LINE] if lines else ""
