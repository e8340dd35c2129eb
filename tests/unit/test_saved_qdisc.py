"""What is on record of an interface's own qdiscs, by interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_throttled.kernel.saved_qdisc import SavedQdiscs, SavedQdiscStore
from mptcp_throttled.kernel.tc import Qdisc

RECORDED = SavedQdiscs((Qdisc("pfifo", 0x50000, 0xFFFFFFFF, bytes(4)),), restoring=True)


def test_what_is_recorded_is_loaded_until_it_is_forgotten(tmp_path: Path) -> None:
    records = SavedQdiscStore(tmp_path)
    records.write(2, RECORDED)
    assert (records.indices(), records.load(2)) == ([2], RECORDED)
    records.forget(2)
    assert (records.indices(), records.load(2)) == ([], None)


def test_a_record_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "original-qdisc-2.json").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        SavedQdiscStore(tmp_path).load(2)


def test_a_record_is_not_written_through_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("theirs")
    (tmp_path / "original-qdisc-2.new").symlink_to(secret)
    SavedQdiscStore(tmp_path).write(2, RECORDED)
    assert (secret.read_text(), SavedQdiscStore(tmp_path).load(2)) == ("theirs", RECORDED)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 99}', "[1]", '{"version": 1, "restoring": true, "qdiscs": [{}]}']
)
def test_a_record_that_cannot_be_used_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "original-qdisc-2.json").write_text(text, encoding="ascii")
    assert SavedQdiscStore(tmp_path).load(2) is None
