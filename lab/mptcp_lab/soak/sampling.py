"""What `benchmarks/soak` samples while no client is connected: of services, of the proxy's kernel, and of files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab import namespaces
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.soak.bpf_objects import contents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mptcp_lab.host import Host
    from mptcp_lab.process import Process
    from mptcp_lab.soak.bpf_objects import BpfIds

# In the network namespace of the proxy; each part is counted in lines.
_SHOW: Final = {
    "filters": "tc filter show dev eth0 ingress; tc filter show dev eth0 egress",
    # The kernel's own follow from the addresses.
    "routes": "for i in 4 6; do ip -$i route show table all | grep -v 'proto kernel'; ip -$i rule; done",
    # Those of programs, without what Squid has to the origin server for a minute. Others end by a timer of the kernel.
    "sockets": "ss -Htan state listening state established state close-wait not dport = :80",
}
_OBJECTS: Final = {
    "qdiscs": re.compile(r"^qdisc ", re.MULTILINE),
    "classes": re.compile(r"^class ", re.MULTILINE),
    "filters": re.compile(r"^filter ", re.MULTILINE),
    "iptables rules": re.compile(r"^(?:-A|:MPTCP)", re.MULTILINE),
    "nftables lines": re.compile(r"\A(?!\s*\Z)|\n(?=.)"),
}
_SOURCES: Final = {
    "qdiscs": ("tc qdisc",),
    "classes": ("tc class",),
    "filters": ("tc filter",),
    "iptables rules": ("iptables", "ip6tables"),
    "nftables lines": ("nft",),
}
_PRIVATE: Final = re.compile(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", re.MULTILINE)
_FIELD: Final = re.compile(r"^(\w+):\s+(\d+)", re.MULTILINE)


def process_values(name: str, pid: int) -> dict[str, float]:
    """Values of a process: `... resident` and `... private` memory in KiB, `... descriptors`, `... threads`.

    Private memory is what would be free if the process ended: that of shared libraries is not part of it.
    """
    directory = Path("/proc", str(pid))
    fields = dict(_FIELD.findall((directory / "status").read_text(encoding="ascii")))
    private = _PRIVATE.findall((directory / "smaps_rollup").read_text(encoding="ascii"))
    return {
        f"{name} resident": float(fields["VmRSS"]),
        f"{name} private": float(sum(map(int, private))),
        f"{name} descriptors": float(len(list((directory / "fd").iterdir()))),
        f"{name} threads": float(fields["Threads"]),
    }


def kernel_values(proxy: Host, objects: BpfIds) -> dict[str, float]:
    """Values of the proxy's kernel: how many objects there are, and what is in these BPF `objects`.

    Raises LabError and KernelError.
    """
    state = kernel_state(proxy)
    shown = proxy.run("sh", "-c", "".join(f"({command}) || :; echo ---; " for command in _SHOW.values())).stdout
    parts = dict(zip(_SHOW, shown.split("---\n"), strict=False))
    with namespaces.in_namespace(proxy.namespace):
        in_maps = contents(objects.maps)
    counts = {name: _count(name, state.items()) for name in _OBJECTS}
    counts["filters"] += len(_OBJECTS["filters"].findall(parts["filters"]))
    return {
        **counts,
        **{name: float(len(parts[name].splitlines())) for name in ("routes", "sockets")},
        "BPF programs": float(len(objects.programs)),
        "BPF links": float(len(objects.links)),
        "BPF maps": float(len(objects.maps)),
        "map entries": float(in_maps.entries),
        "steering slots": float(in_maps.slots),
        "socket storage": float(in_maps.stored),
    }


def _count(name: str, state: Iterable[tuple[str, str]]) -> float:
    """How many objects of that name the texts have, which are given with their commands."""
    texts = (text for command, text in state if command.startswith(_SOURCES[name]))
    return float(sum(len(_OBJECTS[name].findall(text)) for text in texts))


def machine_values() -> dict[str, float]:
    """Values of the machine: `kernel slab`, the memory in KiB that the kernel has for objects and cannot give back."""
    fields = dict(_FIELD.findall(Path("/proc/meminfo").read_text(encoding="ascii")))
    return {"kernel slab": float(fields["SUnreclaim"])}


def file_values(state: Path, run: Path) -> dict[str, float]:
    """Values of the services' directories: `history` and `state files` in KiB, and `run files`."""
    sizes = {path.name: path.stat().st_size for path in state.iterdir()}
    history = sum(size for name, size in sizes.items() if name.startswith("history."))
    return {
        "history": history / 1024,
        "state files": (sum(sizes.values()) - history) / 1024,
        "run files": float(sum(path.is_file() or path.is_socket() for path in run.rglob("*"))),
    }


class LineCount:
    """The lines of logs, over all their time; each call reads what is new."""

    def __init__(self) -> None:
        self._places: dict[Path, int] = {}
        self._lines = 0

    def count(self, processes: Iterable[Process]) -> dict[str, float]:
        """`log lines` of these programs, and of earlier ones with the same logs."""
        for log in {process.log for process in processes}:
            with log.open("rb") as file:
                file.seek(self._places.get(log, 0))
                new = file.read()
            self._places[log] = self._places.get(log, 0) + len(new)
            self._lines += new.count(b"\n")
        return {"log lines": float(self._lines)}


def differences(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """The values that have changed, a line each."""
    return [f"{name}: {after[name]:g} instead of {value:g}" for name, value in before.items() if after[name] != value]
