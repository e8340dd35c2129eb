"""Docker, podman and LXC on the proxy host, in namespaces of their own, with a Squid in a container.

Nothing of them is written to this machine: /run and /var/lib are theirs alone, and all that they start ends with their
first process. No image is needed: the container has this machine's programs, read-only.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foreign_program import is_removed, mount_of_cgroup2
from namespace_containers import NAT
from polling import eventually

from mptcp_lab.host import Host
from mptcp_lab.process import run
from mptcp_lab.proxy_server import Site
from mptcp_lab.squid import PORT, SQUID

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from mptcp_lab.process import Process
    from mptcp_lab.topology import Lab

_KEPT_AT: Final = "run/netns/mptcp-throttle"
_PROGRAMS: Final = ("/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc")
# $1: a cgroup
_ENTER: Final = """\
mkdir "$1" && echo $$ > "$1/cgroup.procs" &&
exec unshare --mount --pid --fork --kill-child=SIGKILL --cgroup --propagation private sh -ec "$BOOT"
"""
_BOOT: Final = """\
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
exec sleep infinity
"""
# This machine may forbid to raise limits.
_CONTAINERS_CONF: Final = """\
[containers]
pids_limit = 0
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE_CONF: Final = """\
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""
_PODMAN_FILES: Final = {"CONTAINERS_CONF": _CONTAINERS_CONF, "CONTAINERS_STORAGE_CONF": _STORAGE_CONF}
"""The texts of podman's files, by the environment variables that name them."""
_LXC_CONF: Final = """\
lxc.uts.name = {name}
lxc.rootfs.path = dir:/var/lib/lxc/{name}/rootfs
lxc.net.0.type = veth
lxc.net.0.link = lxcbr0
lxc.net.0.flags = up
lxc.net.0.name = eth0
lxc.net.0.ipv4.address = {net}.2/24
lxc.net.0.ipv4.gateway = {net}.1
lxc.mount.auto = proc:mixed sys:ro
lxc.apparmor.profile = unconfined
lxc.environment = PATH=/usr/sbin:/usr/bin
lxc.mount.entry = tmpfs dev/shm tmpfs create=dir 0 0
"""
_LXC_OUTER: Final = """\
lxc.mount.entry = tmpfs run tmpfs create=dir 0 0
lxc.mount.entry = tmpfs var/lib tmpfs create=dir 0 0
lxc.pty.max = 8
lxc.init.cmd = sleep infinity"""
_LXC_NETWORK: Final = f"""\
ip link add lxcbr0 type bridge
ip address add {{net}}.1/24 dev lxcbr0
ip link set lxcbr0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
{" ".join(NAT)} -A PREROUTING -i eth0 -p tcp --dport {PORT} -j DNAT --to-destination {{net}}.2:{PORT}
{" ".join(NAT)} -A POSTROUTING -s {{net}}.2/32 -o eth0 -j MASQUERADE
"""
# As docs/howto/containers.md has it.
_GIVE_PATH: Final = """\
outer=$(lxc-info --pid --no-humanize --name=outer)
inner=$(lxc-attach --name=outer -- lxc-info --pid --no-humanize --name=squid)
mkdir -p /run/netns && touch /run/netns/squid
mount --bind /proc/$outer/root/proc/$inner/ns/net /run/netns/squid
"""


class Machine:
    """Where an engine runs, until `process` is killed."""

    def __init__(self, lab: Lab, process: Process) -> None:
        self.lab = lab
        self.directory = lab.directory / "squid"
        self.directory.mkdir()
        for name, text in _PODMAN_FILES.items():
            (self.directory / name).write_text(text)
        self._inside: list[Host] = []
        self._children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        process.wait_until(self._is_booted, "booted")

    @property
    def _init(self) -> str:
        return self._children.read_text().split()[0]

    def _is_booted(self) -> bool:
        with suppress(IndexError, OSError):  # before, it has other children
            return Path(f"/proc/{self._init}/cmdline").read_text().startswith("sleep")
        return False

    @property
    def _enter(self) -> list[str]:
        variables = (f"{name}={self.directory / name}" for name in _PODMAN_FILES)
        return ["nsenter", f"--target={self._init}", "--mount", "--pid", "--net", "env", *variables]

    def run(self, *argv: str | Path, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command beside the engine."""
        return run([*self._enter, *argv], stdin=stdin, check=check)

    def start(self, name: str, *argv: str | Path) -> Process:
        """Start a program beside the engine."""
        return self.lab.proxy.start(name, *self._enter, *argv, machine_files=True)

    def inside(self) -> Host:
        """The host of the network namespace that `mptcp-throttle-namespace` keeps beside the engine."""
        host = _Inside(self.lab, Path(f"/proc/{self._init}/root") / _KEPT_AT)
        self._inside.append(host)
        return host

    def stop(self) -> None:
        """End what runs in that network namespace."""
        for host in self._inside:
            host.stop()

    def squid(self) -> list[str]:
        """The command that starts Squid; its files are in `directory`."""
        site = Site(self.directory / "squid.conf", "")
        site.config.write_text(SQUID.configuration(site))
        return [str(word) for word in SQUID.command(site)]


class _Inside(Host):
    def __init__(self, lab: Lab, path: Path) -> None:
        super().__init__("inside", str(path), lab.directory / "inside")

    def _enter(self, *, machine_files: bool = False) -> list[str]:  # noqa: ARG002
        return super()._enter(machine_files=True)


class Engine(ABC):
    """An engine, which runs the container `squid`, whose port the proxy host publishes."""

    source: str
    """The container, as `proxy.namespace` names it."""
    programs: tuple[str, ...]

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @abstractmethod
    def start(self) -> None:
        """Start the engine and the container."""

    @abstractmethod
    def end(self) -> None:
        """End the container."""

    @abstractmethod
    def start_again(self) -> None:
        """Start the container that has ended."""


class Docker(Engine):
    source = "docker:squid"
    programs = ("dockerd", "docker")

    def start(self) -> None:
        daemon = self._machine.start("dockerd", "dockerd", "--storage-driver=vfs", "--bip=172.18.0.1/24")
        daemon.wait_until(lambda: self._machine.run("docker", "info", check=False).returncode == 0, "answering", 30.0)
        self._machine.run("sh", "-ec", "tar --create --files-from=/dev/null | docker import - empty")
        self._machine.run("docker", *_run_options(self._machine), "empty", *self._machine.squid())

    def end(self) -> None:
        self._machine.run("docker", "kill", "squid")

    def start_again(self) -> None:
        self._machine.run("docker", "start", "squid")


class Podman(Engine):
    source = "podman:squid"
    programs = ("podman",)

    def start(self) -> None:
        self._machine.run("mkdir", "/var/lib/root")
        rootfs = ("--rootfs", "/var/lib/root")
        self._machine.run("podman", *_run_options(self._machine), *rootfs, *self._machine.squid())

    def end(self) -> None:
        self._machine.run("podman", "kill", "squid")

    def start_again(self) -> None:
        self._machine.run("podman", "start", "squid")


class Lxc(Engine):
    source = "lxc:squid"
    programs = ("lxc-start",)

    _outside: tuple[str, ...] = ()
    """How to run a program beside the container."""

    def start(self) -> None:
        self._add("squid", "172.19.0", self._inner())
        self._start()

    def end(self) -> None:
        self._machine.run(*self._outside, "lxc-stop", "--kill", "--name=squid")

    def start_again(self) -> None:
        self._start()

    def _start(self) -> None:
        self._machine.run(*self._outside, "lxc-start", "--name=squid")

    def _inner(self) -> list[str]:
        sysctls = (f"lxc.sysctl.{name} = {value}" for name, value in _sysctls(self._machine.lab).items())
        return [*sysctls, f"lxc.init.cmd = {' '.join(self._machine.squid())}"]

    def _add(self, name: str, net: str, settings: list[str]) -> None:
        mounts = {**dict.fromkeys(_PROGRAMS, "ro"), str(self._machine.directory): "rw"}
        lines = [f"lxc.mount.entry = {path} {path[1:]} none {how},bind,create=dir 0 0" for path, how in mounts.items()]
        make = f"mkdir -p /var/lib/lxc/{name}/rootfs && cat > /var/lib/lxc/{name}/config"
        text = "\n".join([_LXC_CONF.format(name=name, net=net), *lines, *settings, ""])
        self._machine.run(*self._outside, "sh", "-ec", make, stdin=text)
        self._machine.run(*self._outside, "sh", "-ec", _LXC_NETWORK.format(net=net))


class NestedLxc(Lxc):
    """The container is in a container, and its namespace has a path on the host of both."""

    source = "/run/netns/squid"

    def start(self) -> None:
        self._add("outer", "172.19.0", [_LXC_OUTER])
        self._machine.run("lxc-start", "--name=outer")
        self._outside = ("lxc-attach", "--name=outer", "--")
        self._add("squid", "172.20.0", self._inner())
        self._start()

    def end(self) -> None:
        self._machine.run("ip", "netns", "delete", "squid")
        super().end()

    def _start(self) -> None:
        super()._start()
        self._machine.run("sh", "-ec", _GIVE_PATH)


ENGINES: Final = (Docker, Podman, Lxc, NestedLxc)


def _run_options(machine: Machine) -> list[str]:
    volumes = [f"--volume={path}:{path}:ro" for path in _PROGRAMS]
    sysctls = [f"--sysctl={name}={value}" for name, value in _sysctls(machine.lab).items()]
    own = f"--volume={machine.directory}:{machine.directory}"
    return ["run", "--detach", "--name=squid", f"--publish={PORT}:{PORT}", *volumes, own, *sysctls]


def _sysctls(lab: Lab) -> dict[str, str]:
    """The kernel parameters of the proxy host that a container needs, too."""
    return {path.replace("/", "."): value for path, value in lab.description.hosts["proxy"].sysctls.items()}


def missing(engine: type[Engine]) -> str | None:
    """A program that is not installed; None if there is none."""
    return next((program for program in engine.programs if shutil.which(program) is None), None)


@contextmanager
def machine(lab: Lab) -> Iterator[Machine]:
    """Inside the block, an engine can run; at its end, all has ended."""
    cgroup = mount_of_cgroup2() / f"{lab.proxy.namespace}-engine"
    process = lab.proxy.start("engine", "env", f"BOOT={_BOOT}", "sh", "-c", _ENTER, "sh", cgroup, machine_files=True)
    with ExitStack() as stack:
        stack.callback(eventually, lambda: is_removed(cgroup), "the cgroup empty")
        stack.callback(process.kill)
        made = Machine(lab, process)
        stack.callback(made.stop)
        yield made
