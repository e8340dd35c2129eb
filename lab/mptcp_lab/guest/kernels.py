"""Debian's stock kernels: their packages are downloaded, unpacked into a cache, and never installed.

The cloud flavour has all that we use (MPTCP, qdiscs, netfilter, BPF) in a quarter of the size.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.guest.bzimage import Payload
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CACHE: Final = Path("/var/cache/mptcp-throttle-lab")
NAMES: Final = {"debian-6.1": "6.1", "debian-6.12": "6.12"}
"""The names of the kernels, and their series."""

PACKAGE_SECONDS: Final = 600.0
"""How long downloading or unpacking a package may take."""

_UNFINISHED: Final = ".unfinished-"


@dataclass(frozen=True, slots=True)
class Kernel:
    """An unpacked kernel; `directory` holds `vmlinux` (ELF) and `lib/modules/<version>`."""

    name: str
    directory: Path

    @property
    def vmlinux(self) -> Path:
        """The ELF kernel."""
        return self.directory / "vmlinux"

    @property
    def modules(self) -> Path:
        """The directory of its modules and of depmod(8)'s lists."""
        (modules,) = (self.directory / "lib/modules").iterdir()
        return modules


def get(name: str, report: Callable[[str], None], cache: Path = CACHE) -> Kernel:
    """The kernel `name` (see NAMES), from the cache or else from Debian; `report` gets a line before a download.

    Raises LabError if both fail. To get a newer package, remove the kernel's directory from the cache.
    """
    kernel = Kernel(name, cache / name)
    keep(kernel.directory, lambda scratch: _fetch(NAMES[name], scratch, report))
    return kernel


def keep(directory: Path, make: Callable[[Path], Path]) -> None:
    """Unless the cache has `directory`, make it: `make` gets a scratch directory, and returns one below it.

    Raises LabError if the cache cannot be written.
    """
    cache = directory.parent
    with _locked(cache):
        if not directory.exists():
            for leftover in cache.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(leftover)
            with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=cache) as scratch:
                make(Path(scratch)).rename(directory)


def download(package: str, scratch: Path) -> Path:
    """Download a package, `NAME` or `NAME=VERSION`, and extract its files; their directory, below `scratch`.

    The lists of packages must be up to date. Raises LabError.
    """
    # apt-get downloads to its working directory.
    run(["env", f"--chdir={scratch}", "apt-get", "download", package], timeout=PACKAGE_SECONDS)
    (archive,) = scratch.glob("*.deb")
    run(["dpkg-deb", "--extract", archive, scratch / "package"], timeout=PACKAGE_SECONDS)
    return scratch / "package"


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / "lock").open("w")
    except OSError as error:
        raise LabError(f"{error.filename}: cannot be written: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(series: str, scratch: Path, report: Callable[[str], None]) -> Path:
    run(["apt-get", "update"], timeout=PACKAGE_SECONDS)
    metapackages = [f"linux-image-{series}-cloud-amd64", "linux-image-cloud-amd64"]
    # Not every release of Debian has both; apt-cache prints those it has.
    package = newest(series, run(["apt-cache", "depends", *metapackages], check=False).stdout)
    if package is None:
        raise LabError(f"this Debian has no kernel {series}: neither {' nor '.join(metapackages)} depends on one")
    report(f"downloading and unpacking {package}")
    return _arrange(download(package, scratch), scratch / "kernel")


def newest(series: str, dependencies: str) -> str | None:
    """The kernel package of a series in the output of `apt-cache depends METAPACKAGE...`; None if there is none."""
    match = re.search(rf"Depends: (linux-image-{re.escape(series)}\.\S+)", dependencies)
    return None if match is None else match[1]


def _arrange(package: Path, kernel: Path) -> Path:
    """Move what the guest needs out of an unpacked package, into the layout of `Kernel`."""
    # Debian 13 has /lib in /usr/lib.
    modules = next(path for path in (package / "lib/modules", package / "usr/lib/modules") if path.is_dir())
    (kernel / "lib").mkdir(parents=True)
    modules.rename(kernel / "lib/modules")
    (version,) = (kernel / "lib/modules").iterdir()
    run(["depmod", "--basedir", kernel, version.name], timeout=120)
    image = package / "boot" / f"vmlinuz-{version.name}"
    try:
        (kernel / "vmlinux").write_bytes(_decompressed(Payload.of(image.read_bytes())))
    except ValueError as error:
        raise LabError(f"{image.name}: {error}") from error
    return kernel


def _decompressed(payload: Payload) -> bytes:
    try:
        return subprocess.run(payload.command, input=payload.data, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise LabError(f"{payload.command[0]}: not installed") from error
    except subprocess.CalledProcessError as error:
        raise LabError(f"{payload.command[0]}: {error.stderr.decode(errors='replace').strip()}") from error
