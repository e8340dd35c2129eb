"""`mptcp-throttle-namespace` by hand, with a `/run` of its own."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from proxy_world import EXECUTABLES

from mptcp_lab.process import Process, run, start_process
from mptcp_throttle.network_namespace import KEPT_AT

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

CONFIG: Final = """\
proxy: {interface: eth0, ports: [8080], namespace: /run/netns/squid}
"""
NETWORK: Final = """\
name: lte
subnets: [10.0.0.0/8]
preference: 1
"""
BOOT: Final = "mount -t tmpfs tmpfs /run && ip netns add squid && exec sleep infinity"


class Beside:
    """Mounts of a process, in which there is the network namespace `squid`."""

    def __init__(self, process: Process, directory: Path) -> None:
        self._enter = ("nsenter", f"--target={process.pid}", "--mount")
        self.directory = directory
        process.wait_until(lambda: self.has("squid"), "ready")

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        return run([*self._enter, *argv], check=False)

    def has(self, namespace: str) -> bool:
        return self.run("ip", "netns", "exec", namespace, "true").returncode == 0

    @property
    def follower(self) -> tuple[str | Path, ...]:
        return EXECUTABLES / "mptcp-throttle-namespace", "--config", self.directory / "mptcp-throttle.yaml"

    @contextmanager
    def following(self) -> Iterator[Process]:
        process = start_process("follower", [*self._enter, *self.follower], self.directory / "follower.log")
        try:
            process.wait_until(lambda: "its network namespace is at" in process.log_text(), "keeping the namespace")
            yield process
        finally:
            process.stop()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    (tmp_path / "networks.d").mkdir()
    (tmp_path / "networks.d/lte.yaml").write_text(NETWORK)
    (tmp_path / "mptcp-throttle.yaml").write_text(CONFIG)
    mounts = start_process("mounts", ["unshare", "--mount", "sh", "-ec", BOOT], tmp_path / "mounts.log")
    try:
        yield Beside(mounts, tmp_path)
    finally:
        mounts.kill()


def test_second_instance_is_refused_and_leaves_the_namespace_kept(beside: Beside) -> None:
    with beside.following() as first:
        second = beside.run(*beside.follower)
        assert second.returncode == os.EX_TEMPFAIL
        assert second.stderr.endswith(": mptcp-throttle-namespace is running already\n")
        assert beside.has(KEPT_AT.name)
        assert first.exit_status is None
    assert not beside.has(KEPT_AT.name)


def test_invalid_network_file_is_no_concern_of_it(beside: Beside) -> None:
    (beside.directory / "networks.d/lte.yaml").write_text("name: [")
    with beside.following():
        assert beside.has(KEPT_AT.name)
