"""Whether there may be a mangle table, which is not opened to find out: that would make it."""

from pathlib import Path

import pytest

from mptcp_throttled.kernel.classes import iptables


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /proc/net/ip_tables_names; it does not exist."""
    file = tmp_path / "ip_tables_names"
    monkeypatch.setattr(iptables, "_TABLE_NAMES", {4: file})
    return file


def test_table_is_looked_up_among_the_names_of_tables(names: Path) -> None:
    names.write_text("nat\n")
    assert not iptables._may_have_table(4)
    names.write_text("filter\nmangle\n")
    assert iptables._may_have_table(4)


@pytest.mark.usefixtures("names")
def test_kernel_without_iptables_has_no_table() -> None:
    assert not iptables._may_have_table(4)


@pytest.mark.parametrize(("loaded", "may_have"), [("", True), ("ip_tables", False), ("ip_tables iptable_mangle", True)])
def test_modules_tell_where_the_names_may_not_be_read(
    names: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: str, may_have: bool
) -> None:
    names.mkdir()  # reading it is an error, for root too
    monkeypatch.setattr(iptables, "_LOADED_MODULES", tmp_path)
    for module in loaded.split():
        (tmp_path / module).mkdir()
    assert iptables._may_have_table(4) == may_have
