from hypothesis import HealthCheck, settings

# On a busy machine every example may be slow.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
