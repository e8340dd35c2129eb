"""What is no text file is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mptcp_throttle.config.text_file import read_text_file


def test_directory_is_refused_and_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        with pytest.raises(ValueError, match="cannot be read: Is a directory"):
            read_text_file(tmp_path, 1 << 20)
    assert len(os.listdir("/proc/self/fd")) == before
