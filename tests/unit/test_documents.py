"""What the documents say and the programs do."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import mptcp_sniffer.main
import mptcp_throttle.cli
import mptcp_throttled.main
from mptcp_throttle.errors import EXIT_STATUSES

REPOSITORY = Path(__file__).parents[2]


def test_the_exit_statuses_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (REPOSITORY / "docs/services.md").read_text(), re.MULTILINE)
    assert {int(status): meaning for status, meaning in rows} == EXIT_STATUSES


@pytest.mark.parametrize("program", [mptcp_throttle.cli.main, mptcp_sniffer.main.main, mptcp_throttled.main.main])
def test_every_program_lists_the_exit_statuses(
    program: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program(["--help"])
    listed = capsys.readouterr().out
    for status, meaning in EXIT_STATUSES.items():
        assert f"\n  {status:3}  {meaning}\n" in listed


def test_the_install_commands_of_the_readme_install_every_file(tmp_path: Path) -> None:
    commands = re.findall(r"^install .*$", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    for command in commands:
        subprocess.run(["sh", "-c", command.replace(" /etc/", f" {tmp_path}/")], cwd=REPOSITORY, check=True)
    installed = {
        "systemd/*.service": "systemd/system",
        "systemd/squid.service.d/*": "systemd/system/squid.service.d",
        "systemd/sysusers.d/*": "sysusers.d",
        "systemd/tmpfiles.d/*": "tmpfiles.d",
        "systemd/sysctl.d/*": "sysctl.d",
        "config/*.yaml": "mptcp-throttle",
        "config/networks.d/*": "mptcp-throttle/networks.d",
    }
    expected = {
        tmp_path / directory / file.name: file.read_bytes()
        for pattern, directory in installed.items()
        for file in REPOSITORY.glob(pattern)
    }
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == expected
    ours = {file for root in ("config", "systemd") for file in (REPOSITORY / root).rglob("*") if file.is_file()}
    examples = {file for file in ours if file.is_relative_to(REPOSITORY / "config/examples")}
    assert len(expected) == len(ours - examples)


def test_every_invariant_names_tests_that_exist() -> None:
    document = (REPOSITORY / "docs/invariants.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", document, flags=re.MULTILINE)[1:]
    assert [section.partition(":")[0] for section in sections] == [f"I{number}" for number in range(1, 8)]
    for section in sections:
        named = re.findall(r"`([IU])/(test_\w+\.py)::(test_\w+)`", section)
        assert named
        assert len(named) == section.count(".py::")
        for kind, file, test in named:
            path = REPOSITORY / "tests" / {"I": "integration", "U": "unit"}[kind] / file
            assert f"\ndef {test}(" in path.read_text(encoding="utf-8"), f"{path}::{test}"
