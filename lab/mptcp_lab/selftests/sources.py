"""The selftests of the very kernel that a guest runs: Debian's package `linux-source-SERIES` of the same version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.guest.kernels import NAMES, PACKAGE_SECONDS, download, keep
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from mptcp_lab.guest.kernels import Kernel

SELFTESTS: Final = Path("tools/testing/selftests/net")
"""Where they are in the unpacked sources; the scripts are in its `mptcp`."""

_HEADERS: Final = Path("include/uapi")
_UNPACKED: Final = (
    f"*/{SELFTESTS}/mptcp/*",
    f"*/{SELFTESTS}/*.sh",
    # Of the headers, those with what is new in MPTCP. The rest is this machine's.
    f"*/{_HEADERS}/linux/mptcp*.h",
    f"*/{_HEADERS}/linux/tcp.h",
)
_VERSION: Final = re.compile(rb"Debian (\d\S*) \(\d{4}-\d\d-\d\d\)")
_COMPILER: Final = "clang"
_COMPILE_SECONDS: Final = 60.0


def get(kernel: Kernel, report: Callable[[str], None]) -> Path:
    """The sources of the kernel's selftests, compiled, from the cache or else from Debian.

    `report` gets a line before a download. Raises LabError if both fail.
    """
    version = package_version(kernel.vmlinux.read_bytes())
    if version is None:
        raise LabError(f"{kernel.vmlinux}: names no version of a Debian package")
    directory = kernel.directory.with_name(f"{kernel.name}-selftests-{version}")
    keep(directory, lambda scratch: _fetch(f"linux-source-{NAMES[kernel.name]}={version}", scratch, report))
    return directory


def package_version(image: bytes) -> str | None:
    """The version of the package that the kernel was built from, as its banner says; None if it does not."""
    match = _VERSION.search(image)
    return None if match is None else match[1].decode()


def _fetch(package: str, scratch: Path, report: Callable[[str], None]) -> Path:
    report(f"downloading and unpacking {package}")
    run(["apt-get", "update"], timeout=PACKAGE_SECONDS)
    (archive,) = (download(package, scratch) / "usr/src").glob("*.tar.xz")
    sources = scratch / "sources"
    sources.mkdir()
    options = (f"--directory={sources}", "--strip-components=1", "--wildcards")
    run(["tar", "--extract", f"--file={archive}", *options, *_UNPACKED], timeout=PACKAGE_SECONDS)
    for source in sorted((sources / SELFTESTS / "mptcp").glob("*.c")):
        headers = f"-I{sources / _HEADERS}"
        run([_COMPILER, "-O2", headers, "-o", source.with_suffix(""), source], timeout=_COMPILE_SECONDS)
    return sources
