"""A host of the lab: a network namespace, and programs that run in it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

from mptcp_lab import namespaces
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import PATIENCE, Process, check_status, run, start_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from mptcp_lab.preloaded import Preloaded

_CLI_SECONDS: Final = 30.0


class Host:
    """A host named `name`; its programs keep their files in `directory`."""

    def __init__(self, name: str, namespace: str, directory: Path) -> None:
        self.name = name
        self.namespace = namespace
        self.directory = directory
        self._processes: list[Process] = []
        directory.mkdir()

    def run(
        self, *argv: str | Path, check: bool = True, timeout: float = 30.0, machine_files: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises LabError if it fails and `check` holds.

        With `machine_files` it sees /sys as the machine does, cgroups included: ip-netns(8) mounts another.
        """
        return run([*self._enter(machine_files=machine_files), *argv], check=check, timeout=timeout)

    def start(self, name: str, *argv: str | Path, output: Path | None = None, machine_files: bool = False) -> Process:
        """Start a program in the background; it logs to `name`.log in the directory. `machine_files`: see `run`."""
        enter = self._enter(machine_files=machine_files)
        started = start_process(name, [*enter, *argv], self.directory / f"{name}.log", output)
        self._processes.append(started)
        return started

    def start_preloaded(self, preloaded: Preloaded, name: str, module: str, *arguments: str | Path) -> Process:
        """Start the program that is `main` of a module, as `start` with `machine_files`."""
        log = self.directory / f"{name}.log"
        child = preloaded.start(
            name,
            module,
            list(map(str, arguments)),
            namespace=self.namespace,
            environment=self._environment,
            log=log,
        )
        started = Process(name, log, child)
        self._processes.append(started)
        return started

    def run_cli(
        self, preloaded: Preloaded, *arguments: str | Path, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run `mptcp-throttle` to its end, as `run`."""
        command = " ".join(map(str, ("mptcp-throttle", *arguments)))
        try:
            result = preloaded.run_cli(
                list(map(str, arguments)),
                namespace=self.namespace,
                environment=self._environment,
                timeout=_CLI_SECONDS * PATIENCE,
            )
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{command}: did not end in {error.timeout:g} s") from error
        if check:
            check_status(command, result)
        return result

    def stop(self) -> None:
        """End all programs that were started, the last one first."""
        while self._processes:
            self._processes.pop().stop()

    def ip(self, lines: Iterable[str]) -> None:
        """Run ip(8) commands, given without the word `ip`, all in one process. Raises LabError at the first failure."""
        run(["ip", "-netns", self.namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")

    def tc(self, lines: Iterable[str]) -> None:
        """Run tc(8) commands, given without the word `tc`, all in one process. Raises LabError at the first failure."""
        run(["tc", "-netns", self.namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")

    def sysctl(self, settings: Mapping[str, str]) -> None:
        """Set kernel parameters of this namespace, by their path below /proc/sys. Raises LabError if one is refused."""
        # Not sysctl(8): procps is not part of a minimal Debian.
        script = 'set -e; while read -r path value; do echo "$value" > "/proc/sys/$path"; done'
        run([*self._enter(), "sh", "-c", script], stdin="".join(f"{k} {v}\n" for k, v in settings.items()))

    def listens(self, port: int, *, mptcp: bool = False) -> bool:
        """Whether a program listens on that TCP port; with `mptcp`, whether it accepts MPTCP there."""
        listeners = self.run("ss", "-Hln", "-M" if mptcp else "-t").stdout.splitlines()
        return any(line.split()[3].endswith(f":{port}") for line in listeners)

    def counter(self, name: str) -> int:
        """A counter of the kernel for this namespace, by its name in nstat(8). Raises ValueError if it has none."""
        *_, value, _ = self.run("nstat", "-asz", name).stdout.split()
        return int(value)

    def received_bytes(self, interface: str) -> int:
        """What an interface of the host has received, in bytes with its link headers."""
        return int(self.run("cat", f"/sys/class/net/{interface}/statistics/rx_bytes").stdout)

    @property
    def _environment(self) -> dict[str, str]:
        # The tables of iptables(8) belong to the namespace, its lock to the machine.
        return {"XTABLES_LOCKFILE": str(self.directory / "xtables.lock")}

    def _enter(self, *, machine_files: bool = False) -> list[str]:
        environment = ("env", *(f"{name}={value}" for name, value in self._environment.items()))
        if machine_files:
            return ["nsenter", f"--net={namespaces.path(self.namespace)}", *environment]
        return ["ip", "netns", "exec", self.namespace, *environment]
