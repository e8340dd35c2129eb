from pathlib import Path

import pytest

from mptcp_throttle.ports import Ports
from mptcp_throttled.lifecycle.port_record import PortRecord

PORTS = Ports((range(3128, 3129), range(20000, 30000)))


def test_port_record_is_read_by_the_next_instance(tmp_path: Path) -> None:
    assert PortRecord(tmp_path).load() == Ports()
    PortRecord(tmp_path).write(PORTS)
    assert PortRecord(tmp_path).load() == PORTS
    PortRecord(tmp_path).write(Ports())
    assert PortRecord(tmp_path).load() == Ports()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "ports": [1]}',
        '{"version": 1, "ports": ["x"]}',
        '{"version": 1, "ports": [8080, 65536]}',
        '{"version": 1, "ports": ["8081-8080"]}',
    ],
)
def test_malformed_port_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ports.json").write_text(text)
    assert PortRecord(tmp_path).load() == Ports()
