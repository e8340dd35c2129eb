import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from mptcp_lab.preloaded import Preloaded
from mptcp_lab.services import Services

# Their failed assertions show the values, as those of tests do.
pytest.register_assert_rewrite("proxy_world", "page_in_browser", "second_interface", "foreign_program")

# A shell lets its background jobs ignore SIGINT, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine every example may be slow.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _preloaded() -> Iterator[None]:
    """Nearly every test starts the services. Those of units, images and packages start them as an operator would."""
    Services.preloaded = Preloaded()
    yield
    Services.preloaded.close()
    Services.preloaded = None
