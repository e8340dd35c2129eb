"""Disks that are full while the services run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from polling import eventually
from proxy_world import Hosts, ProxyWorld, configured

from mptcp_lab.process import run


@contextmanager
def small_disks(*directories: Path) -> Iterator[None]:
    """A disk of 1 MiB for each of these directories."""
    for directory in directories:
        directory.mkdir(exist_ok=True)
        run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory])
    try:
        yield
    finally:
        for directory in directories:
            run(["umount", "--lazy", directory])


def fill(directory: Path) -> Path:
    """Leave no space; the file that takes it."""
    file = directory / "ballast"
    run(["dd", "if=/dev/zero", f"of={file}", "bs=4k"], check=False)
    with pytest.raises(OSError, match="No space left"):
        (directory / "more").write_text("x" * 5000)
    return file


@pytest.fixture
def world(hosts: Hosts) -> Iterator[ProxyWorld]:
    with configured(hosts) as configured_world:
        directory = configured_world.services.directory
        with small_disks(directory / "run", directory / "state"):
            configured_world.services.start_sniffer()
            configured_world.start_daemon()
            yield configured_world
            configured_world.services.stop()


def test_rate_that_cannot_be_stored_is_refused_in_one_line(world: ProxyWorld) -> None:
    ballast = fill(world.services.directory / "state")
    refused = world.services.cli("set-rate", "ethernet", "2mbit", check=False)
    assert refused.returncode != 0
    assert "No space left on device" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    (capped,) = world.begin_capped()
    assert capped.rate == 1_000_000
    ballast.unlink()
    world.services.cli("set-rate", "ethernet", "2mbit")
    eventually(lambda: [subflow.rate for subflow in world.capped()] == [2_000_000], "the rate set by hand")


def test_qdisc_that_cannot_be_recorded_is_not_replaced(world: ProxyWorld) -> None:
    before = world.qdisc()
    ballast = fill(world.services.directory / "run" / "daemon")
    world.download()
    eventually(lambda: any("ENOSPC" in line for line in world.errors()), "the full disk reported")
    assert world.qdisc() == before
    assert world.capped() == []
    ballast.unlink()
    world.wait_capped()
    eventually(lambda: world.errors() == [], "no error is left")
