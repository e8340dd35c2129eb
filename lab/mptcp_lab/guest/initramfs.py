"""The guest's initramfs: busybox, the modules that the root file system needs, and our two scripts.

The kernel runs `/init` (init.sh). That mounts this machine's `/` and hands over to `start.sh`, which runs the command.
"""

from __future__ import annotations

import lzma
import shlex
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.guest import ENVIRONMENT_VARIABLE, cpio
from mptcp_lab.guest.modules import load_order, name_of
from mptcp_lab.lab_errors import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mptcp_lab.guest.kernels import Kernel

_MODULES: Final = ("virtio_pci", "virtio_rng", "virtio_console", "virtiofs", "overlay")
_SCRIPTS: Final = ("init.sh", "start.sh")


@dataclass(frozen=True, slots=True)
class Job:
    """A command with its arguments, the directory in which it runs, and the directories where its files persist.

    `path` are directories to search for programs before the system's; `end_mark` is written after the command's output
    and must not occur in it.
    """

    command: Sequence[str]
    directory: Path
    end_mark: str
    shares: Sequence[Path] = ()
    path: Sequence[Path] = ()


def build(kernel: Kernel, job: Job) -> bytes:
    """The archive. Raises LabError if this machine or the kernel lacks one of its parts."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise LabError("busybox: not installed")
    order = _load_order(kernel)
    return cpio.archive(
        [
            cpio.directory("bin"),
            cpio.file("bin/busybox", Path(busybox).read_bytes(), executable=True),
            cpio.directory("modules"),
            *(cpio.file(f"modules/{name_of(path)}", _read_module(kernel.modules / path)) for path in order),
            cpio.file("settings", "".join(_settings(kernel, job, order))),
            cpio.file("shares", "".join(f"{share}\n" for share in job.shares)),
            cpio.file("command", _command(kernel, job)),
            *(
                cpio.file(name.removesuffix(".sh"), files(__package__).joinpath(name).read_bytes(), executable=True)
                for name in _SCRIPTS
            ),
        ]
    )


def _load_order(kernel: Kernel) -> tuple[str, ...]:
    dependencies, builtin = ((kernel.modules / name).read_text() for name in ("modules.dep", "modules.builtin"))
    try:
        return load_order(dependencies, builtin, _MODULES)
    except ValueError as error:
        raise LabError(f"{kernel.name}: {error}") from error


def _read_module(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def _settings(kernel: Kernel, job: Job, order: Sequence[str]) -> Iterator[str]:
    """The variables of the scripts, as shell assignments."""
    settings = {
        "kernel": kernel.name,
        "kernel_modules": str(kernel.modules),
        "load_order": " ".join(map(name_of, order)),
        "directory": str(job.directory),
        "end_mark": job.end_mark,
    }
    return _assignments(settings)


def _command(kernel: Kernel, job: Job) -> str:
    system = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    environment = {
        "PATH": ":".join((*map(str, job.path), *system)),
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        ENVIRONMENT_VARIABLE: kernel.name,
        # The host's programs change its /tmp meanwhile, and the guest would see that late or never.
        "TMPDIR": "/run/tmp",
        # Without it python-iptables runs ldconfig(8) over all libraries of the machine at each start: 5 s in the guest.
        "XTABLES_LIBDIR": "/usr/lib/x86_64-linux-gnu/xtables",
    }
    exports = "".join(f"export {line}" for line in _assignments(environment))
    return f"{exports}exec {shlex.join(job.command)}\n"


def _assignments(values: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}={shlex.quote(value)}\n" for name, value in values.items())
