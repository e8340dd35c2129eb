from pathlib import Path

import pytest

from mptcp_throttled.lifecycle.port_record import PortRecord


def test_port_record_is_read_by_the_next_instance(tmp_path: Path) -> None:
    assert PortRecord(tmp_path).load() == frozenset()
    PortRecord(tmp_path).write({8080, 3128})
    assert PortRecord(tmp_path).load() == {8080, 3128}
    PortRecord(tmp_path).write(())
    assert PortRecord(tmp_path).load() == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "ports": [1]}',
        '{"version": 1, "ports": ["x"]}',
        '{"version": 1, "ports": [8080, 65536]}',
    ],
)
def test_malformed_port_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ports.json").write_text(text)
    assert PortRecord(tmp_path).load() == frozenset()
