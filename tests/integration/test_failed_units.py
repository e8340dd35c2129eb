"""`mptcp-throttle doctor` says why our units have failed: with systemd itself, its journal, our units and users.

systemd is the first process of namespaces of its own, in the proxy's network. It writes nothing to the machine: what it
would change is mounted over, and /proc/sys is read-only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from foreign_program import is_removed, mount_of_cgroup2
from polling import eventually
from proxy_world import EXECUTABLES, Hosts

from mptcp_lab.process import Process, run
from mptcp_throttle.systemd_unit import SERVICES
from mptcp_throttled.vocabulary.events import EventKind

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from mptcp_throttle.rpc import Json

REPOSITORY: Final = Path(__file__).parents[2]
CONFIG: Final = "/run/lab/mptcp-throttle.yaml"
NETWORK_FILE: Final = "/run/lab/networks.d/lte.yaml"

TARGET: Final = """\
[Unit]
DefaultDependencies=no
Requires=systemd-journald.socket
After=systemd-journald.socket
"""

# The repository may be where our units cannot look. The targets of a whole machine are not needed.
DROP_IN: Final = """\
[Unit]
DefaultDependencies=no
[Service]
BindReadOnlyPaths={repository}
Environment=PYTHONPATH={modules}
ProtectHome=no
{how}=
{how}={command}
"""
COMMANDS: Final = {
    "mptcp-sniffer": ("ExecStart", f"{EXECUTABLES / 'mptcp-sniffer'} --config {CONFIG}"),
    "mptcp-throttled": ("ExecStart", f"{EXECUTABLES / 'mptcp-throttled'} --config {CONFIG}"),
    "mptcp-throttled-cleanup": ("ExecStop", f"{EXECUTABLES / 'mptcp-throttled'} --config {CONFIG} --cleanup"),
}

# $1: our cgroup; $2: a directory with the files of our users; $3: one with units; $4: the repository.
ENTER: Final = """\
mkdir "$1" && echo $$ > "$1/cgroup.procs" &&
exec unshare --mount --pid --fork --kill-child --uts --ipc --cgroup --propagation private sh -ec "$BOOT" sh "$@"
"""
BOOT: Final = """\
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -t sysfs sysfs /sys
mount -t cgroup2 none /sys/fs/cgroup
for directory in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs $directory; done
for file in passwd group; do mount --bind "$2/etc/$file" "/etc/$file"; done
mount --bind /dev/null /dev/console
mkdir -p /run/systemd /run/lab
cp -r "$3" /run/systemd/system
cp -r "$4"/config/. /run/lab
systemd-tmpfiles --create "$4/systemd/tmpfiles.d/mptcp-throttle.conf"
exec env -i container=lab "PATH=$PATH" /lib/systemd/systemd --system --unit=lab.target --log-target=journal
"""


class Systemd:
    """A running systemd, the child of `process`."""

    def __init__(self, process: Process) -> None:
        self._children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        process.wait_until(lambda: self._children.read_text() != "", "in its namespaces")
        process.wait_until(lambda: self.shows("lab.target", "ActiveState") == "active", "booted")

    def run(self, *argv: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command beside it, as root. Raises LabError if it fails and `check` holds."""
        (first,) = self._children.read_text().split()
        enter = ("nsenter", f"--target={first}", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--net")
        return run([*enter, *argv], check=check)

    def shows(self, unit: str, name: str) -> str:
        """A property of a unit; empty while systemd does not answer."""
        return self.run("systemctl", "show", f"--property={name}", "--value", unit, check=False).stdout.strip()

    def doctor(self, *enter: str) -> dict[str, Json]:
        """What doctor finds, by subject, run by root or by the command `enter`."""
        program = (EXECUTABLES / "mptcp-throttle", "--config", CONFIG, "doctor", "--json")
        document = json.loads(self.run(*enter, *program, check=False).stdout)
        return {finding["subject"]: finding for finding in document["findings"]}


@pytest.fixture(scope="module")
def systemd(hosts: Hosts) -> Iterator[Systemd]:
    root, units = hosts.lab.directory / "root", hosts.lab.directory / "units"
    (root / "etc").mkdir(parents=True)
    run(["systemd-sysusers", f"--root={root}", REPOSITORY / "systemd/sysusers.d/mptcp-throttle.conf"])
    units.mkdir()
    (units / "lab.target").write_text(TARGET)
    for name, (how, command) in COMMANDS.items():
        (units / f"{name}.service").write_text((REPOSITORY / f"systemd/{name}.service").read_text())
        (units / f"{name}.service.d").mkdir()
        modules = os.environ.get("PYTHONPATH", "")
        drop_in = DROP_IN.format(how=how, command=command, repository=REPOSITORY, modules=modules)
        (units / f"{name}.service.d" / "lab.conf").write_text(drop_in)
    cgroup = mount_of_cgroup2() / f"{hosts.lab.proxy.namespace}-systemd"
    arguments = ("env", f"BOOT={BOOT}", "sh", "-c", ENTER, "sh", cgroup, root, units, REPOSITORY)
    process = hosts.lab.proxy.start("systemd", *arguments, machine_files=True)
    try:
        yield Systemd(process)
    finally:
        process.kill()
        eventually(lambda: is_removed(cgroup), "the cgroup empty")


def test_doctor_names_the_last_line_of_units_that_cannot_read_their_files(systemd: Systemd) -> None:
    systemd.run("chmod", "600", NETWORK_FILE)
    systemd.run("systemctl", "start", *SERVICES, check=False)
    found = systemd.doctor()
    for name in SERVICES:
        assert found[f"{name}.service"]["problem"] == (
            "has failed: exit status 78 (the configuration is invalid);"
            f" its last line: {NETWORK_FILE}: cannot be read: Permission denied"
        )
        why = f"user {name} cannot read {NETWORK_FILE} (-rw------- root:root)"
        assert found[f"configuration for {name}"]["problem"] == why
        assert (found[f"{name}.service"]["harm"], found[f"configuration for {name}"]["harm"]) == (True, True)


def test_doctor_finds_no_problem_in_units_that_run_and_counts_restarts(systemd: Systemd) -> None:
    systemd.run("chmod", "644", NETWORK_FILE)
    systemd.run("systemctl", "reset-failed")
    systemd.run("systemctl", "start", *SERVICES)
    found = systemd.doctor()
    for name in SERVICES:
        for subject in (name, f"{name}.service", f"configuration for {name}"):
            assert (found[subject]["problem"], found[subject]["unchecked"]) == (None, None)
    systemd.run("systemctl", "kill", "--signal=KILL", "mptcp-sniffer")
    restarted = {"NRestarts": "1", "ActiveState": "active"}
    eventually(lambda: all(systemd.shows("mptcp-sniffer", k) == v for k, v in restarted.items()), "restarted")
    unit = systemd.doctor()["mptcp-sniffer.service"]
    assert (unit["problem"], unit["harm"]) == ("has failed before; restarts since then: 1", False)
    assert unit["remedy"].endswith("; `systemctl reset-failed mptcp-sniffer.service` resets the count")
    systemd.run("systemctl", "reset-failed", "mptcp-sniffer.service")
    assert systemd.doctor()["mptcp-sniffer.service"]["problem"] is None


def test_doctor_names_the_last_line_of_a_clean_up_that_has_failed(systemd: Systemd) -> None:
    directory = "/run/mptcp-throttle/daemon"
    systemd.run("systemctl", "start", "mptcp-throttled")
    systemd.run("chmod", "0", directory)
    systemd.run("systemctl", "stop", "mptcp-throttled")
    eventually(lambda: systemd.shows("mptcp-throttled-cleanup", "ActiveState") == "failed", "tried to clean up")
    unit = systemd.doctor()["mptcp-throttled-cleanup.service"]
    systemd.run("chmod", "2750", directory)
    line = f"{directory}/mptcp-throttled.lock: cannot be opened: Permission denied"
    assert (unit["problem"], unit["harm"]) == (f"has failed: exit-code; its last line: {line}", False)


def test_doctor_says_that_its_user_may_not_ask_systemd(systemd: Systemd) -> None:
    found = systemd.doctor("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    for name in SERVICES:
        assert str(found[f"{name}.service"]["unchecked"]).startswith("systemctl: Failed to connect to bus")
        assert found[f"{name}.service"]["problem"] is None


def test_journal_has_the_fields_of_an_event_and_its_line_once(systemd: Systemd) -> None:
    systemd.run("systemctl", "reset-failed")
    systemd.run("systemctl", "restart", *SERVICES)
    invocation = systemd.shows("mptcp-throttled", "InvocationID")

    def lines() -> list[dict[str, str]]:
        command = ("journalctl", "--no-pager", "--output=json", f"_SYSTEMD_INVOCATION_ID={invocation}")
        return [json.loads(line) for line in systemd.run(*command).stdout.splitlines()]

    def started() -> list[dict[str, str]]:
        return [line for line in lines() if line["MESSAGE"].startswith("throttling on ")]

    eventually(lambda: bool(started()), "the line in the journal")
    (line,) = started()
    expected = {**EventKind.DAEMON_STARTED.fields, "PRIORITY": "6", "SYSLOG_IDENTIFIER": "mptcp-throttled"}
    assert {name: line.get(name) for name in expected} == expected
    assert (line["_SYSTEMD_UNIT"], line["_TRANSPORT"]) == ("mptcp-throttled.service", "journal")
    # What has no fields comes over stderr, with its priority, too.
    others = [each for each in lines() if each["_TRANSPORT"] == "stdout"]
    assert {(each["PRIORITY"], each["MESSAGE"]) for each in others} >= {("6", "following the sniffer: 0 connections")}
    assert not any(each["MESSAGE"].startswith(("<", "INFO", "WARNING", "ERROR")) for each in lines())
