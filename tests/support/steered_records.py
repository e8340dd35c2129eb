"""The records that the steering programs of a running daemon have of subflows."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foreign_program import SYS_PIDFD_GETFD

from mptcp_throttle.linux.c_layout import pack, unpack
from mptcp_throttle.linux.libbpf import BpfMap
from mptcp_throttle.model import FourTuple
from mptcp_throttled.kernel.program_layout import Steered, pack_ends, unpack_ends

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_RECORDS: Final = 65536
"""MAX_STEERED in bpf/steering.h."""

_KEY_BYTES: Final = 40
_EMPTY: Final = pack(Steered(*[0] * len(Steered._fields)))
_HASH: Final = 1  # BPF_MAP_TYPE_HASH (include/uapi/linux/bpf.h)
_FIELD: Final = re.compile(r"^(\w+):\t(\d+)$", re.M)


class SteeredRecords:
    """The records of the daemon with this process id, until `close`."""

    def __init__(self, pid: int) -> None:
        process = os.pidfd_open(pid)
        try:
            library = ctypes.CDLL(None, use_errno=True)
            self._map = BpfMap(library.syscall(SYS_PIDFD_GETFD, process, _find(pid), 0), _KEY_BYTES, len(_EMPTY))
        finally:
            os.close(process)

    def all(self) -> dict[FourTuple, Steered]:
        """The records, by subflow."""
        return {unpack_ends(ends): unpack(Steered, record) for ends, record in self._map.all_elements().items()}

    def of_port(self, client_port: int) -> Steered | None:
        """The record of the subflow from this port of a client."""
        return next((record for ends, record in self.all().items() if ends.client.port == client_port), None)

    def fill(self) -> None:
        """Add records of subflows that do not exist, until there is room for no other."""
        room = MAX_RECORDS - len(self._map.all_keys())
        self._map.update({pack_ends(_invented(number)): _EMPTY for number in range(room)})

    def empty(self) -> None:
        """Delete all records, as if the programs had just been loaded."""
        self._map.clear()

    def close(self) -> None:
        """Give the map back."""
        os.close(self._map.descriptor)


def _invented(number: int) -> FourTuple:
    return FourTuple.of(f"203.0.113.{number % 250}", 1 + number // 250, "203.0.113.254", 1)


def _find(pid: int) -> int:
    """A descriptor of the map; the daemon has several, of the same map."""
    found: dict[int, int] = {}
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            text = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="utf-8")
        except FileNotFoundError:  # closed by now
            continue
        info = {name: int(value) for name, value in _FIELD.findall(text)}
        sizes = info.get("map_type"), info.get("key_size"), info.get("value_size")
        if sizes == (_HASH, _KEY_BYTES, len(_EMPTY)):
            found[info["map_id"]] = int(descriptor)
    assert len(found) == 1, f"the daemon has {len(found)} maps of steered subflows"
    return next(iter(found.values()))


@contextmanager
def records_of(pid: int) -> Iterator[SteeredRecords]:
    """The records of the daemon with this process id."""
    records = SteeredRecords(pid)
    try:
        yield records
    finally:
        records.close()
