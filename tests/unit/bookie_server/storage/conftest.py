"""What all tests of a bookie's storage run with."""

from __future__ import annotations

import pytest

from bookie_server.storage.ledgers import directory_store


@pytest.fixture(autouse=True)
def _pages_end_with_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine stands still meanwhile: else a page ends at a quarter of a second.
    What follows then is tested where pages are asked for (``test_reads.py``)."""
    monkeypatch.setattr(directory_store, "BOOKIE_READ_QUICK_S", 3600.0)
