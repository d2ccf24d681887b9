"""Hypothesis as the core's tests use it."""

from hypothesis import HealthCheck, settings

# No time limits: the machine may be busy, and an example that takes long is not wrong.
settings.register_profile("core", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("core")
