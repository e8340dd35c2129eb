import pytest
from hypothesis import HealthCheck, settings

# Their failed assertions show the values, as those of tests do.
pytest.register_assert_rewrite("proxy_world", "page_in_browser", "second_interface", "foreign_program")

# On a busy machine every example may be slow.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
