from collections.abc import Iterator

import pytest
from bench import Bench, bench


@pytest.fixture
def work() -> Iterator[Bench]:
    with bench() as running:
        yield running
