"""`mptcp-throttle-namespace`: keeps the network namespace of the proxy's container at a path, for the services.

It ends with the container, and so do the services, whose units are bound to its unit. No service needs the right to
enter a namespace: systemd starts them in this one (`NetworkNamespacePath=`). Only this program may mount.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from mptcp_throttle import service, systemd
from mptcp_throttle.command_line import command_line
from mptcp_throttle.config.load import find_namespace
from mptcp_throttle.errors import UserError
from mptcp_throttle.network_namespace import KEPT_AT, OWN_NAMESPACE, Container, Engine
from mptcp_throttle.programs import ProgramFailed, output_of

_MS_BIND, _MNT_DETACH = 4096, 2  # include/uapi/linux/mount.h, fs.h
_NS_GET_NSTYPE: Final = 0xB703  # include/uapi/linux/nsfs.h
_CLONE_NEWNET: Final = 0x40000000  # include/uapi/linux/sched.h
_MOUNTS: Final = Path("/proc/self/mountinfo")
_LOCKED_IN: Final = Path("/run/mptcp-throttle/namespace")  # tmpfiles.d makes it
_LOOK_SECONDS: Final = 1.0  # to ask an engine takes some 50 ms
_NAME_AND_PROCESS: Final = "--format={{.Name}} {{.State.Pid}}"
_PROCESS: Final = {
    Engine.DOCKER: ("docker", "inspect", "--type=container", _NAME_AND_PROCESS),
    Engine.PODMAN: ("podman", "inspect", "--type=container", _NAME_AND_PROCESS),
    Engine.LXC: ("lxc-info", "--pid", "--no-humanize", "--name"),
}
"""Print the first process of a container whose name follows; nothing, or a number below 1, unless it runs. Docker and
podman print its name before: what follows may also be the beginning of another container's id."""

_Wait = Callable[[], None]


class _Absent(Exception):
    """There is no such namespace now; the message says why."""


class _Stopped(Exception):
    """By SIGTERM or SIGINT."""


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page is made from it."""
    return command_line(
        "mptcp-throttle-namespace", f"Keep the network namespace of the proxy's container at {KEPT_AT}."
    )


def _run(config: Path) -> None:
    source = find_namespace(config)
    if source is None:
        raise UserError(f"{config}: proxy.namespace is null: the proxy has the network of this host", os.EX_CONFIG)
    with service.single_instance(_LOCKED_IN, "mptcp-throttle-namespace"):
        follow(source, KEPT_AT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status is one of those in `mptcp_throttle.errors`."""
    options = parser().parse_args(arguments)
    return service.run(lambda: _run(options.config))


def follow(source: Container | Path, path: Path) -> None:
    """Wait for the namespace, keep it at `path`, and return when its container or its own path is gone.

    The path still has it then, since the clean-up after the daemon enters it, too; the next start removes it, and so
    does SIGTERM. Raises UserError.
    """
    try:
        service.on_stop_signal(_stop)
        _remove(path)
        namespace, wait = _wait_for(source)
        _bind(namespace, path)
        os.close(namespace)  # while it is open, umount(8) of a source path is refused (EBUSY)
        _say(f"{source}: its network namespace is at {path}")
        systemd.notify("READY=1")
        wait()
        _say(f"{source}: has gone")
    except _Stopped:
        service.on_stop_signal(lambda: None)
        _remove(path)


def why_left(source: Container | Path) -> str | None:
    """Why the network namespace at KEPT_AT is not, or no longer, that of `source`; None: it is.

    Not for a process inside of it: lxc-info(1) asks through a socket of the host's. Raises UserError.
    """
    try:
        path = source if isinstance(source, Path) else Path(f"/proc/{_process_of(source)}/ns/net")
        return None if _is_same(path, KEPT_AT.stat()) else "has another network namespace, or none"
    except FileNotFoundError:
        return "is not there"
    except _Absent as absent:
        return str(absent)


def _stop() -> None:
    raise _Stopped


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _wait_for(source: Container | Path) -> tuple[int, _Wait]:
    """The descriptor of the namespace, once it is there, and a function that waits for its end."""
    said = ""
    while True:
        try:
            return _open_path(source) if isinstance(source, Path) else _open_container(source)
        except _Absent as absent:
            if str(absent) != said:
                said = str(absent)
                _say(f"{source}: {said}; waiting for it")
        time.sleep(_LOOK_SECONDS)


def _open_container(container: Container) -> tuple[int, _Wait]:
    pid = _process_of(container)
    with ExitStack() as opened:
        process = _opened(opened, lambda: os.pidfd_open(pid))
        namespace = _opened(opened, lambda: os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        # Until it was opened, the number could become that of another process: the engine reports none that has ended.
        if _process_of(container) != pid or _has_ended(process, 0):
            raise _Absent("its process has ended")
        opened.pop_all()
    return namespace, lambda: _wait_for_end(process)


def _open_path(path: Path) -> tuple[int, _Wait]:
    if path.exists() and not _is_namespace(path):
        raise _Absent("is no network namespace")
    with ExitStack() as opened:
        namespace = _opened(opened, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        # Before the look at what is there now: the kernel reports later changes of mounts (fs/proc_namespace.c).
        mounts = _opened(opened, lambda: os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC))
        if not _is_network(namespace):
            raise _Absent("is no network namespace")
        opened.pop_all()
    own = os.fstat(namespace)
    return namespace, lambda: _wait_for_another(path, own, mounts)


def _opened(opened: ExitStack, open_: Callable[[], int]) -> int:
    """A descriptor that `opened` closes."""
    try:
        descriptor = open_()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise _Absent("is not there") from error
    except OSError as error:
        raise _refused(error.filename or "pidfd_open", error) from error
    opened.callback(os.close, descriptor)
    return descriptor


def _is_namespace(path: Path) -> bool:
    """Whether it is a namespace of any kind, without opening it: to open a device or a pipe may have an effect."""
    with suppress(OSError):
        return path.stat().st_dev == OWN_NAMESPACE.stat().st_dev  # nsfs
    return False


def _is_network(namespace: int) -> bool:
    with suppress(OSError):
        return fcntl.ioctl(namespace, _NS_GET_NSTYPE) == _CLONE_NEWNET
    return False


def _process_of(container: Container) -> int:
    program, *arguments = _PROCESS[container.engine]
    try:
        shown = output_of(program, *arguments, container.name)
    except ProgramFailed as error:
        raise _Absent(str(error)) from error
    if shown is None:
        raise UserError(f"{container}: {program} is not installed", os.EX_UNAVAILABLE)
    *name, number = shown.split() or [""]
    if name and name[0].removeprefix("/") != container.name:
        raise _Absent("there is no container of that name")
    if not number.isdecimal() or number == "0":
        raise _Absent("does not run")
    return int(number)


def _has_ended(process: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout))


def _wait_for_end(process: int) -> None:
    _has_ended(process, None)


def _wait_for_another(path: Path, own: os.stat_result, mounts: int) -> None:
    poll = select.poll()
    poll.register(mounts, select.POLLPRI)
    while _is_same(path, own):
        poll.poll()


def _is_same(path: Path, own: os.stat_result) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), own)
    return False


def _bind(namespace: int, path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        path.touch(mode=0o444)
        _call("mount", f"/proc/self/fd/{namespace}".encode(), os.fsencode(path), None, _MS_BIND, None)
    except OSError as error:
        raise _refused(str(path), error) from error


def _remove(path: Path) -> None:
    """Remove the path, with what this program has left there."""
    try:
        while path.exists():
            try:
                _call("umount2", os.fsencode(path), _MNT_DETACH)
            except OSError as error:
                if error.errno != errno.EINVAL:  # not mounted
                    raise
                path.unlink()
    except OSError as error:
        raise _refused(str(path), error) from error


def _call(name: str, *arguments: bytes | int | None) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _refused(what: str, error: OSError) -> UserError:
    status = os.EX_NOPERM if error.errno in {errno.EPERM, errno.EACCES} else os.EX_OSERR
    return UserError(f"{what}: {error.strerror}", status)
