from collections.abc import Iterator

import pytest
from bench import Bench, bench


@pytest.fixture
def work(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """With an indirect parameter, that is the back end that marks packets."""
    with bench(daemon={"marks": getattr(request, "param", "auto")}) as running:
        yield running
