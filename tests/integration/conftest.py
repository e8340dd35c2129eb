import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from bench import Bench, bench

collect_ignore = ["bench.py"]


@pytest.fixture
def work() -> Iterator[Bench]:
    with bench() as running:
        yield running
