"""The example role of Ansible: it gives a proxy its files as a whole, and a running daemon uses them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml
from proxy_world import EXECUTABLES

from mptcp_lab.process import run

if TYPE_CHECKING:
    import subprocess

    from proxy_world import ProxyWorld

EXAMPLE: Final = Path(__file__).parents[2] / "config/examples/ansible"


class ControlHost:
    """A copy of the example whose only proxy is the world's."""

    def __init__(self, world: ProxyWorld, directory: Path) -> None:
        self._world = world
        self.directory = directory / "ansible"
        shutil.copytree(EXAMPLE, self.directory)
        services = world.services
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_become": False,
            "mptcp_throttle_directory": str(services.directory),
            "mptcp_throttle_program": str(EXECUTABLES / "mptcp-throttle"),
            "mptcp_throttle_settings": yaml.safe_load(services.config.read_text(encoding="utf-8")),
        }
        self.inventory = self.directory / "inventory.json"
        self.inventory.write_text(json.dumps({"proxies": {"hosts": {"here": variables}}}), encoding="utf-8")
        networks = self.directory / "files/networks.d"
        shutil.rmtree(networks)
        shutil.copytree(services.directory / "networks.d", networks)
        shutil.rmtree(self.directory / "files/clients.d")
        (self.directory / "files/clients.d").mkdir()
        self.ethernet = networks / "ethernet.yaml"

    def play(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the playbook."""
        home = (f"HOME={self.directory}", f"ANSIBLE_LOCAL_TEMP={self.directory}/local", "LC_ALL=C.UTF-8")
        playbook = self.directory / "playbook.yaml"
        command: list[str | Path] = ["env", *home, "ansible-playbook", "-i", self.inventory, playbook, *options]
        return run(command, check=False, timeout=180)

    def change_cap(self, cap: str) -> None:
        text = self.ethernet.read_text(encoding="utf-8")
        self.ethernet.write_text(
            re.sub(r"^cap: .*$", f"cap: {cap}", text, count=1, flags=re.MULTILINE), encoding="utf-8"
        )


def configured_cap(world: ProxyWorld) -> str:
    (network,) = (each for each in world.services.status()["networks"] if each["name"] == "ethernet")
    return str(network["rates"]["downlink"]["cap"]["rate"])


def changed_tasks(played: subprocess.CompletedProcess[str]) -> int:
    (number,) = re.findall(r"^here +: ok=\d+ +changed=(\d+)", played.stdout, re.MULTILINE)
    return int(number)


@pytest.fixture
def control(world: ProxyWorld, tmp_path: Path) -> ControlHost:
    return ControlHost(world, tmp_path)


def test_role_gives_a_running_daemon_its_files_and_does_so_once(world: ProxyWorld, control: ControlHost) -> None:
    assert configured_cap(world) == "1mbit"
    control.change_cap("7mbit")
    first = control.play()
    assert first.returncode == 0, first.stdout
    assert changed_tasks(first) > 0
    assert configured_cap(world) == "7mbit"
    again = control.play()
    assert (again.returncode, changed_tasks(again)) == (0, 0), again.stdout
    left = {path.name for path in world.services.directory.iterdir()}
    assert not {name for name in left if name.endswith((".old", ".new"))}


def test_role_with_files_that_are_not_valid_changes_nothing(world: ProxyWorld, control: ControlHost) -> None:
    before = (world.services.directory / "networks.d/ethernet.yaml").read_text(encoding="utf-8")
    control.change_cap("fast")
    played = control.play()
    assert played.returncode != 0
    assert "cap: 'fast': is not a rate" in played.stdout
    assert (world.services.directory / "networks.d/ethernet.yaml").read_text(encoding="utf-8") == before
    assert configured_cap(world) == "1mbit"
    assert world.services.status()["daemon"]["config"]["problems"] == []


def test_role_only_says_what_it_would_change_when_asked_to(world: ProxyWorld, control: ControlHost) -> None:
    control.change_cap("7mbit")
    played = control.play("--check")
    assert played.returncode == 0, played.stdout
    assert configured_cap(world) == "1mbit"
    assert control.play().returncode == 0
    assert configured_cap(world) == "7mbit"
