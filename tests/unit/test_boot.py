"""The identifier of a boot stays the same until the run directory is empty again."""

from pathlib import Path

from mptcp_throttled.accounting.boot import boot_identifier


def test_next_instance_finds_the_same_identifier_until_a_boot(tmp_path: Path) -> None:
    before = boot_identifier(tmp_path)
    assert boot_identifier(tmp_path) == before
    (tmp_path / "boot").unlink()
    assert boot_identifier(tmp_path) != before


def test_directory_that_cannot_be_written_gives_every_instance_another(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert boot_identifier(missing) != boot_identifier(missing)


def test_empty_file_of_a_killed_instance_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "boot").touch()
    assert boot_identifier(tmp_path) == boot_identifier(tmp_path) != ""
