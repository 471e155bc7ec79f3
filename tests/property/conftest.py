"""
Laws are checked with patience: a slow machine does not break them.
"""

from __future__ import annotations

from hypothesis import settings


settings.register_profile("patience", settings(), deadline=None)
settings.load_profile("patience")
