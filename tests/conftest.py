"""Profiles of Hypothesis: the usual one, and `--hypothesis-profile=thorough` for a long search."""

from hypothesis import HealthCheck, settings

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("usual", deadline=None, suppress_health_check=_CHECKS)
settings.register_profile("thorough", deadline=None, max_examples=5000, suppress_health_check=_CHECKS)
settings.load_profile("usual")
