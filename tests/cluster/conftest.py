"""Random tests have no deadline: on a busy machine it would fail tests that find nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("without a deadline", settings(), deadline=None)
settings.load_profile("without a deadline")
