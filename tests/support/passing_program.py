"""A program of others at an interface, by TCX, that lets each packet pass (`passing.bpf.c`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bpf_compiler import compiled

from mptcp_lab.namespaces import in_namespace
from mptcp_throttle.linux import tcx
from mptcp_throttle.linux.libbpf import AttachType, BpfObject, program_id
from mptcp_throttled.kernel.interfaces import find_interface

if TYPE_CHECKING:
    from mptcp_lab.host import Host

_SOURCE: Final = Path(__file__).with_name("passing.bpf.c")


@contextmanager
def passing_program(host: Host, where: AttachType, directory: Path) -> Iterator[int]:
    """The id of such a program, before all others at `eth0` inside the block; its object is in `directory`."""
    passing = BpfObject(compiled(_SOURCE, directory))
    try:
        with in_namespace(host.namespace):
            link = passing.attach_interface("pass", find_interface("eth0").index, "eth0", where)
        yield program_id(passing.program("pass"))
        os.close(link)
    finally:
        passing.close()


def programs_at(host: Host, where: AttachType) -> tuple[int, ...]:
    """The ids of the programs at `eth0`, in their order."""
    with in_namespace(host.namespace):
        return tcx.attached(find_interface("eth0").index, where).programs
