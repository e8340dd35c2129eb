"""Our units under a real systemd: the first process of a PID namespace, in the proxy's network, with its own mounts."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foreign_program import is_removed, mount_of_cgroup2
from polling import eventually
from proxy_world import EXECUTABLES

from mptcp_lab.process import run
from mptcp_lab.services import Services
from mptcp_throttle.config.schema import Sockets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mptcp_lab.host import Host

REPOSITORY: Final = Path(__file__).parents[2]
SYSTEMD: Final = REPOSITORY / "systemd"
DAEMON: Final = "mptcp-throttled"
CLEAN_UP: Final = "mptcp-throttled-cleanup"
NAMESPACE: Final = "mptcp-throttle-namespace"
TARGETS: Final = ("basic.target", "sysinit.target", "shutdown.target")

# $1: the directory with users and units; $2: a name for the cgroup.
BOOT: Final = """\
set -e
cgroup2=$(findmnt --noheadings --output TARGET --types cgroup2 | head -n 1)
mkdir -p "$cgroup2/$2"
echo $$ >"$cgroup2/$2/cgroup.procs"
exec unshare --mount --pid --fork --kill-child=SIGKILL --mount-proc --uts --ipc sh -ec '
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
umount --recursive --lazy /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for file in /etc/passwd /etc/group; do mount --bind "$1$file" "$file"; done
systemd-tmpfiles --create "$1/tmpfiles.conf"
export container=lab SYSTEMD_UNIT_PATH="$1/units"
exec /lib/systemd/systemd --unit=basic.target --log-target=console --show-status=no
' sh "$1"
"""


class Booted(Services):
    """Our units in a systemd of their own. The services log to `mptcp-*.log` of the host."""

    def __init__(self, proxy: Host, name: str, daemon: Mapping[str, object] | None = None) -> None:
        super().__init__(proxy, name=name, daemon=daemon)
        self.root = self.directory / "root"
        self._name = f"{proxy.namespace}-{name}"
        (self.root / "etc").mkdir(parents=True)
        run(["systemd-sysusers", f"--root={self.root}", SYSTEMD / "sysusers.d" / "mptcp-throttle.conf"])
        (self.root / "tmpfiles.conf").write_text((SYSTEMD / "tmpfiles.d" / "mptcp-throttle.conf").read_text())
        text = self.config.read_text().replace("socket_group: root", "socket_group: mptcp-throttle")
        text = text.replace(str(self.directory / "run"), "/run/mptcp-throttle")
        self.config.write_text(text.replace(str(self.directory / "state"), "/var/lib/mptcp-throttle"))
        units = self.root / "units"
        units.mkdir()
        for target in TARGETS:
            (units / target).write_text("[Unit]\n")
        for unit in SYSTEMD.glob("*.service"):
            (units / unit.name).write_text(self._adapted(unit))
        self._systemd = proxy.start("systemd", "sh", "-c", BOOT, "sh", self.root, self._name, machine_files=True)
        self._systemd.wait_until(self._is_running, "running")

    def _adapted(self, unit: Path) -> str:
        """A unit with the programs, files and logs of this test, which are below directories that ours hide."""
        log = self.proxy.directory / f"{unit.name.removesuffix('.service')}.log"
        text = re.sub(
            r"/usr/lib/mptcp-throttle/bin/(\S+)", rf"{EXECUTABLES}/\1 --config {self.config}", unit.read_text()
        )
        added = [f"StandardError=append:{log}", f"Environment=PYTHONPATH={os.environ.get('PYTHONPATH', '')}"]
        if unit.stem != NAMESPACE:  # which must have no mounts of its own
            added.append(f"BindReadOnlyPaths={self.directory} {REPOSITORY} {EXECUTABLES.parent}")
        text = text.replace("ProtectHome=yes", "ProtectHome=no")
        return text.replace("[Service]\n", "\n".join(("[Service]", *added, "")), 1)

    @property
    def enter(self) -> tuple[str, ...]:
        """What begins the command line of a program that runs beside systemd."""
        return "nsenter", f"--target={self._init}", "--mount", "--pid"

    @property
    def _init(self) -> int:
        """The process id of systemd."""
        children = Path(f"/proc/{self._systemd.pid}/task/{self._systemd.pid}/children")
        return int(children.read_text(encoding="ascii").split()[0])

    @property
    def sockets(self) -> Sockets:
        return Sockets.below(Path(f"/proc/{self._init}/root/run/mptcp-throttle"))

    def systemctl(self, *arguments: str) -> str:
        """What systemctl(1) prints."""
        return run([*self.enter, "systemctl", *arguments], check=False).stdout.strip()

    def _is_running(self) -> bool:
        with suppress(IndexError, FileNotFoundError):
            return self.systemctl("is-system-running") == "running"
        return False

    def stop_daemon(self) -> None:
        self.systemctl("stop", CLEAN_UP)

    def stop(self) -> None:
        self.systemctl("stop", CLEAN_UP, "mptcp-sniffer")
        self._systemd.kill()
        eventually(lambda: is_removed(mount_of_cgroup2() / self._name), "the cgroup removed")

    def configure_unit(self, name: str, line: str) -> None:
        """Add a line to the section [Service] of a unit."""
        directory = self.root / "units" / f"{name}.service.d"
        directory.mkdir()
        (directory / "test.conf").write_text(f"[Service]\n{line}\n")
        self.systemctl("daemon-reload")

    def runs_again(self, before: str) -> bool:
        """Whether the daemon serves, as another process than `before`."""
        return self.shown("MainPID") not in {"0", before} and self.answers(self.sockets.daemon)

    def remove_units(self) -> None:
        """As an operator who deletes the services before stopping them."""
        for unit in SYSTEMD.glob("*.service"):
            (self.root / "units" / unit.name).unlink()
        self.systemctl("daemon-reload")

    def shown(self, name: str) -> str:
        """A property of the daemon's unit."""
        return self.systemctl("show", f"--property={name}", "--value", DAEMON)

    @property
    def kept_links(self) -> int:
        """How many programs systemd keeps attached."""
        descriptors = Path(f"/proc/{self._init}/fd")
        return [os.readlink(descriptor) for descriptor in descriptors.iterdir()].count("anon_inode:bpf_link")

    def log_of(self, name: str) -> str:
        return (self.proxy.directory / f"{name}.log").read_text(encoding="utf-8")
