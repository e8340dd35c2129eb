"""Whether there may be a mangle table, which is not opened to find out: that would make it."""

import ctypes
import errno
from pathlib import Path
from typing import Final

import pytest

from mptcp_throttled.kernel.classes import iptables, mangle_table
from mptcp_throttled.kernel.classes.mangle_table import may_have_chain

GET_INFO: Final = 64


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


class Table:
    """A mangle table, which another program changes after each of the first `changes` answers."""

    def __init__(self, content: bytes, changes: int) -> None:
        self.content = content
        self.changes = changes

    def ask(self, _: object, __: int, option: int, value: ctypes.Structure | ctypes.Array[ctypes.c_char]) -> None:
        if option == GET_INFO:
            assert isinstance(value, mangle_table._Info)
            value.size = len(self.content)
            if self.changes:
                self.changes -= 1
                self.content += bytes(168)
            return
        assert isinstance(value, ctypes.Array)
        if len(value) != 40 + len(self.content):
            raise OSError(errno.EAGAIN, "has changed")
        ctypes.memmove(ctypes.byref(value, 40), self.content, len(self.content))


@pytest.mark.parametrize("changes", [0, 3])
def test_chain_is_looked_up_in_the_table_as_it_is_in_the_end(monkeypatch: pytest.MonkeyPatch, changes: int) -> None:
    table = Table(bytes(64) + b"ERROR\0" + b"MPTCP-THROTTLE\0" + bytes(64), changes)
    monkeypatch.setattr(mangle_table, "_ask", table.ask)
    assert may_have_chain(4, "MPTCP-THROTTLE")
    assert not may_have_chain(4, "MPTCP")


def test_table_that_keeps_changing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mangle_table, "_ask", Table(bytes(64), 1000).ask)
    with pytest.raises(OSError, match="has changed") as error:
        may_have_chain(6, "MPTCP-THROTTLE")
    assert error.value.errno == errno.EAGAIN
