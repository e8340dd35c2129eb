"""The machine: qemu, and a virtiofsd for each directory that the guest mounts.

They leave no files, and the kernel kills them when the thread that started them ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from mptcp_lab.guest import EX_NO_STATUS, EX_TIME_LIMIT, ports
from mptcp_lab.lab_errors import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mptcp_lab.guest.ports import Sink

_QEMU: Final = "qemu-system-x86_64"
_VIRTIOFSD: Final = {
    "/usr/lib/qemu/virtiofsd": ",log_level=warn",
    "/usr/libexec/virtiofsd": "",  # since Debian 13; says nothing of its own accord
}
"""Where it is, and its options there."""

# The level x86-64-v2, which our binary wheels need. Later processors announce fast string instructions, which qemu
# emulates byte by byte.
_CPU: Final = "Nehalem-v1"
# In MiB, for translated code; by default qemu takes a quarter of the machine's memory.
_ACCELERATOR: Final = "tcg,thread=multi,tb-size=256"
_KERNEL_OPTIONS: Final = (
    *("console=ttyS0", "quiet", "panic=-1"),
    # These make a real machine safe or portable, and an emulated one slow.
    *("mitigations=off", "nokaslr", "apparmor=0", "audit=0"),
    *("tsc=reliable", "no_timer_check", "rcupdate.rcu_expedited=1"),
)
_CONSOLE_BYTES: Final = 3000

_BOOTS: Final = 3
"""Rarely, a guest's kernel panics before the command begins. Then qemu has executed an instruction in one processor
while the kernel replaced it in another (a static key, in sched_clock_idle_wakeup_event)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What to start: an ELF kernel, its initramfs, `memory` in MiB, and the directories that the guest may write to.

    `end_mark` is what the guest writes after the command's output (initramfs.Job). `taps` are tap devices of this
    network namespace, the guest's network interfaces in that order.
    """

    kernel: Path
    initramfs: bytes
    end_mark: bytes
    memory: int
    shares: Sequence[Path] = ()
    taps: Sequence[str] = ()
    processors: int = 2


def run(machine: Machine, output: Sink, errors: Sink, timeout: float) -> int:
    """Run the machine until its command ends; the command's exit status. `output` and `errors` receive its output.

    A machine whose kernel panics before the command begins is started again, up to `_BOOTS` times in all.
    Raises LabError with status EX_TIME_LIMIT after `timeout` seconds, with EX_NO_STATUS if the machine ends first.
    """
    deadline, boots = time.monotonic() + timeout, 1
    while (status := _boot(machine, output, errors, timeout, deadline, is_last=boots == _BOOTS)) is None:
        boots += 1
    return status


def _boot(
    machine: Machine, output: Sink, errors: Sink, timeout: float, deadline: float, *, is_last: bool
) -> int | None:
    """As `run`, once; None if the kernel has panicked before the command began, unless this `is_last`."""
    with ExitStack() as stack:
        console = stack.enter_context(_memory_file("console"))
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, processes)
        streams = _start(machine, console, processes, stack)
        outputs = [ports.Output(sink, machine.end_mark) for sink in (output, errors)]
        report = ports.Report()
        try:
            ports.relay(dict(zip(streams, (*outputs, report), strict=True)), deadline)
        except TimeoutError:
            problem = _failure(f"the command did not end within {timeout:g} s", EX_TIME_LIMIT, console)
        else:
            if report.complete:
                return report.status
            if not (report.begun or is_last) and b"Kernel panic" in _tail(console):
                return None
            problem = _failure("the machine ended before the command did", EX_NO_STATUS, console)
        for port in outputs:
            port.break_off()
        raise problem


def _tail(console: BinaryIO) -> bytes:
    console.seek(max(0, console.seek(0, os.SEEK_END) - _CONSOLE_BYTES))
    return console.read()


def _failure(what: str, status: int, console: BinaryIO) -> LabError:
    tail = _tail(console).decode(errors="replace").strip()
    return LabError(f"{what}; its console ends:\n{tail}" if tail else f"{what}; its console is empty", status)


def _start(
    machine: Machine, console: BinaryIO, processes: list[subprocess.Popen[bytes]], stack: ExitStack
) -> list[BinaryIO]:
    """Start all processes, appended to `processes`; the streams of the ports, in the order of ports.NAMES."""
    with ExitStack() as only_for_qemu:
        readers: dict[str, BinaryIO] = {}
        writers: dict[str, BinaryIO] = {}
        for name in ports.NAMES:
            read, write = os.pipe()
            readers[name] = stack.enter_context(os.fdopen(read, "rb", buffering=0))
            writers[name] = only_for_qemu.enter_context(os.fdopen(write, "wb", buffering=0))
        connections: dict[str, socket.socket] = {}
        for tag, directory, cache in _served(machine):
            connections[tag] = only_for_qemu.enter_context(socket.socket(socket.AF_UNIX))
            processes.append(_serve(directory, cache, connections[tag], console))
        initramfs = only_for_qemu.enter_context(_memory_file("initramfs"))
        initramfs.write(machine.initramfs)
        files: list[BinaryIO | socket.socket] = [console, initramfs, *writers.values(), *connections.values()]
        command = [
            *_hardware(machine, initramfs, console),
            *(word for name, writer in writers.items() for word in _port(name, writer)),
            *(word for tag, connection in connections.items() for word in _file_system(tag, connection)),
            *(word for tap in machine.taps for word in _network_interface(tap)),
        ]
        processes.append(_child(command, console, pass_fds=[file.fileno() for file in files]))
        return list(readers.values())


def _served(machine: Machine) -> list[tuple[str, Path, str]]:
    """What the guest can mount: tag (as in init.sh and start.sh), directory, and cache mode."""
    shares = [(f"share{number}", directory, "auto") for number, directory in enumerate(machine.shares)]
    return [("host", Path("/"), "always"), *shares]


def _serve(directory: Path, cache: str, connection: socket.socket, console: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a virtiofsd that serves `directory` over the other end of `connection`."""
    program = next((path for path in _VIRTIOFSD if Path(path).exists()), None)
    if program is None:
        raise LabError(f"{' or '.join(_VIRTIOFSD)}: not installed")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # an abstract address, chosen by the kernel (unix(7), autobind)
        listener.listen()
        connection.connect(listener.getsockname())
        options = f"source={directory},cache={cache},sandbox=chroot{_VIRTIOFSD[program]}"
        return _child([program, f"--fd={listener.fileno()}", "-o", options], console, pass_fds=[listener.fileno()])


def _hardware(machine: Machine, initramfs: BinaryIO, console: BinaryIO) -> list[str]:
    return [
        *(_QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35,memory-backend=memory", "-cpu", _CPU, "-accel", _ACCELERATOR),
        *("-smp", str(machine.processors), "-m", f"{machine.memory}M"),
        # virtiofsd accesses the guest's memory.
        *("-object", f"memory-backend-memfd,id=memory,size={machine.memory}M,share=on"),
        *("-kernel", str(machine.kernel), "-initrd", _path(initramfs), "-append", " ".join(_KERNEL_OPTIONS)),
        *("-chardev", f"file,id=console,path={_path(console)},append=on", "-serial", "chardev:console"),
        *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
    ]


def _port(name: str, writer: BinaryIO) -> list[str]:
    return [
        *("-chardev", f"file,id={name},path={_path(writer)}"),
        *("-device", f"virtserialport,chardev={name},name={name}"),
    ]


def _file_system(tag: str, connection: socket.socket) -> list[str]:
    return [
        *("-chardev", f"socket,id={tag},fd={connection.fileno()}"),
        *("-device", f"vhost-user-fs-pci,queue-size=1024,chardev={tag},tag={tag}"),
    ]


def _network_interface(tap: str) -> list[str]:
    return [
        *("-netdev", f"tap,id={tap},ifname={tap},script=no,downscript=no"),
        *("-device", f"virtio-net-pci,netdev={tap}"),
    ]


def _child(command: Sequence[str], console: BinaryIO, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    if shutil.which(command[0]) is None:
        raise LabError(f"{command[0]}: not installed")
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        stdin=subprocess.DEVNULL,
        stdout=console,
        stderr=console,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def _memory_file(name: str) -> BinaryIO:
    """A file in memory, opened for appending by all its writers."""
    descriptor = os.memfd_create(name)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return os.fdopen(descriptor, "w+b", buffering=0)


def _path(file: BinaryIO) -> str:
    """The path by which a child process opens the inherited `file`."""
    return f"/dev/fd/{file.fileno()}"
