"""The records of saved qdiscs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_throttled.kernel.htb.saved import SavedQdiscs, SavedQdiscStore
from mptcp_throttled.kernel.tc import Qdisc

RECORDED = SavedQdiscs((Qdisc("pfifo", 0x50000, 0xFFFFFFFF, bytes(4)),), restoring=True)


def test_saved_qdisc_is_loaded_until_forgotten(tmp_path: Path) -> None:
    records = SavedQdiscStore(tmp_path)
    records.write(2, RECORDED)
    assert (records.indices(), records.load(2)) == ([2], RECORDED)
    records.forget(2)
    assert (records.indices(), records.load(2)) == ([], None)


def test_saved_qdisc_load_raises_if_the_record_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "original-qdisc-2.json").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        SavedQdiscStore(tmp_path).load(2)


def test_saved_qdisc_write_does_not_follow_a_symlink(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "original-qdisc-2.new").symlink_to(secret)
    SavedQdiscStore(tmp_path).write(2, RECORDED)
    assert (secret.read_text(), SavedQdiscStore(tmp_path).load(2)) == ("secret", RECORDED)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 99}', "[1]", '{"version": 1, "restoring": true, "qdiscs": [{}]}']
)
def test_saved_qdisc_load_ignores_a_malformed_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "original-qdisc-2.json").write_text(text, encoding="ascii")
    assert SavedQdiscStore(tmp_path).load(2) is None
