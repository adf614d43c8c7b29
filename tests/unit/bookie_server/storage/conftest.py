"""Property tests here touch the disk: how long one example takes says nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("storage", deadline=None)
settings.load_profile("storage")
