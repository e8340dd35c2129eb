"""Programs that a process forks which has loaded them: each is as if it had been started by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from polling import eventually

from mptcp_lab import namespaces
from mptcp_lab.lab_errors import LabError
from mptcp_lab.services import Services

if TYPE_CHECKING:
    from mptcp_lab.host import Host

EX_CONFIG = 78


def test_service_has_its_own_session_network_files_and_name(host: Host) -> None:
    with Services(host) as services:
        assert services.daemon is not None
        pid = services.daemon.pid
        process = Path(f"/proc/{pid}")
        assert os.getsid(pid) == pid
        assert (process / "ns/net").stat().st_ino == namespaces.path(host.namespace).stat().st_ino
        assert (process / "cwd").readlink() == host.directory
        assert (process / "fd/0").readlink() == Path(os.devnull)
        assert {(process / f"fd/{number}").readlink() for number in (1, 2)} == {services.daemon.log}
        assert (process / "comm").read_text() == "mptcp-throttled\n"
    assert services.exit_statuses == (0, 0)


def test_exit_status_is_that_of_the_program_or_its_signal(host: Host) -> None:
    services = Services(host, name="killed")
    sniffer = services.start_sniffer()
    eventually(services.captures, "capturing")
    assert sniffer.exit_status is None
    sniffer.kill()
    assert sniffer.exit_status == -signal.SIGKILL
    services.config.write_text("none: of its settings\n")
    assert services.start_sniffer().wait(10) == EX_CONFIG
    assert "allowed" in sniffer.log_text()


def test_cli_has_its_own_output_errors_and_exit_status(host: Host) -> None:
    services = Services(host, name="cli")
    assert Services.preloaded is not None
    assert services.cli("check-config").stderr == ""
    refused = services.cli("status", check=False)
    assert (refused.returncode, refused.stdout) == (os.EX_UNAVAILABLE, "")
    assert "no service answers" in refused.stderr
    with pytest.raises(LabError, match=r"exit status 69: .*no service answers"):
        services.cli("status")
