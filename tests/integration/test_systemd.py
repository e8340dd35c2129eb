"""The systemd units, as far as systemd itself can judge them without running them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mptcp_lab.process import run
from mptcp_throttle_web import main

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNITS = sorted(unit.name for unit in SYSTEMD.glob("*.service"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system with Debian's units, ours, and programs where ours look for them."""
    shutil.copytree("/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    shutil.copytree(SYSTEMD, tmp_path / "etc/systemd/system")
    names = ("mptcp-sniffer", "mptcp-throttled", "mptcp-throttle", "mptcp-throttle-web", "mptcp-throttle-namespace")
    programs = [f"usr/lib/mptcp-throttle/bin/{name}" for name in names]
    for program in (*programs, "usr/bin/mptcpize", "usr/sbin/squid", "bin/kill"):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    (tmp_path / "lib").symlink_to("usr/lib")
    return tmp_path


def test_units_are_three_services_a_clean_up_and_a_namespace() -> None:
    assert UNITS == [
        "mptcp-sniffer.service",
        "mptcp-throttle-namespace.service",
        "mptcp-throttle-web.service",
        "mptcp-throttled-cleanup.service",
        "mptcp-throttled.service",
    ]


def test_clean_up_has_the_rights_of_the_daemon() -> None:
    daemon, cleanup = (rights(f"mptcp-throttled{name}.service") for name in ("", "-cleanup"))
    assert len(daemon) > 30
    # It writes no operator state, and asks nothing of the clock.
    state = {"StateDirectory=mptcp-throttle", "StateDirectoryMode=0711"}
    assert daemon - cleanup == {*state, "SystemCallFilter=@chown bpf adjtimex clock_adjtime"}
    assert cleanup - daemon == {"ProtectClock=yes", "SystemCallFilter=@chown bpf"}


def rights(unit: str) -> set[str]:
    """The settings from `User=` on."""
    lines = (SYSTEMD / unit).read_text().partition("\nUser=")[2].partition("[Install]")[0].splitlines()
    return {line for line in lines if "=" in line and not line.startswith("#")}


@pytest.mark.parametrize("unit", [*UNITS, "squid.service"])
def test_units_pass_systemd_analyze_verify(root: Path, unit: str) -> None:
    verdict = run(["systemd-analyze", "verify", f"--root={root}", "--man=no", unit])
    assert [line for line in verdict.stderr.splitlines() if unit in line] == []


def test_verify_finds_a_mistake_in_a_unit(root: Path) -> None:
    path = root / "etc/systemd/system" / UNITS[0]
    path.write_text(path.read_text().replace("ProtectHome=yes", "ProtectHome=perhaps"))
    verdict = run(["systemd-analyze", "verify", f"--root={root}", "--man=no", UNITS[0]], check=False)
    assert f"{UNITS[0]}:" in verdict.stderr


def test_squid_is_started_through_mptcpize(root: Path) -> None:
    lines = run(["systemd-analyze", "cat-config", f"--root={root}", "systemd/system/squid.service"]).stdout.splitlines()
    starts = [line for line in lines if line.startswith("ExecStart=")]
    assert starts[-2:] == ["ExecStart=", "ExecStart=/usr/bin/mptcpize run /usr/sbin/squid -N -sYC"]


@pytest.mark.parametrize("unit", UNITS)
def test_unit_is_little_exposed_bounds_memory_and_dumps_no_core(root: Path, unit: str) -> None:
    report = run(["systemd-analyze", "security", "--offline=yes", f"--root={root}", "--no-pager", unit]).stdout
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", report)
    assert level is not None
    # Without ProtectClock=, whose filter also forbids to ask whether the clock is synchronised.
    daemon = {"mptcp-throttled.service": 2.2}
    others = {"mptcp-throttle-web.service": 1.0, "mptcp-throttle-namespace.service": 5.5}
    assert float(level[1]) <= {**daemon, **others}.get(unit, 2.0)
    settings = (SYSTEMD / unit).read_text().splitlines()
    assert "LimitCORE=0" in settings
    assert ("MemoryMax=256M" if unit in others else "MemoryMax=1G") in settings


def test_page_may_open_more_files_than_it_accepts_at_once() -> None:
    limits = re.findall(r"^LimitNOFILE=(\d+)$", (SYSTEMD / "mptcp-throttle-web.service").read_text(), re.MULTILINE)
    # Those that are accepted have a file for four turns of the event loop until others have given way to them.
    listeners = main._GROUP_CONNECTIONS, main._TCP_CONNECTIONS
    assert int(limits[0]) >= 2 * sum(most + 4 * main._QUEUED_CONNECTIONS for most in listeners)


@pytest.mark.parametrize("directory", ["sysusers.d", "tmpfiles.d"])
def test_users_and_directories_are_made_as_described(tmp_path: Path, directory: str) -> None:
    (tmp_path / "etc").mkdir()
    for name in ("sysusers", "tmpfiles") if directory == "tmpfiles.d" else ("sysusers",):
        arguments = ["--create"] if name == "tmpfiles" else []
        run([f"systemd-{name}", f"--root={tmp_path}", *arguments, SYSTEMD / f"{name}.d/mptcp-throttle.conf"])
    groups = {line.split(":")[0] for line in (tmp_path / "etc/group").read_text().splitlines()}
    users = {line.split(":")[0] for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    assert groups == {"mptcp-throttle", "mptcp-xtables", "mptcp-sniffer", "mptcp-throttled"}
    assert users == {"mptcp-sniffer", "mptcp-throttled", "mptcp-throttle-web"}
    if directory == "tmpfiles.d":
        for path, mode in (("", 0o755), ("/sniffer", 0o2750), ("/daemon", 0o2750), ("/web", 0o2750)):
            assert (tmp_path / f"run/mptcp-throttle{path}").stat().st_mode & 0o7777 == mode
        assert (tmp_path / "run/xtables.lock").stat().st_mode & 0o7777 == 0o660
