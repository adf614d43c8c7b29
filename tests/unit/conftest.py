"""Unit tests run outside of UTC: whoever takes local time for UTC, or UTC for local time, is seen.

Newfoundland is three and a half hours behind in winter, so whole hours are told from it too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

ZONE = "America/St_Johns"


@pytest.fixture(scope="module", autouse=True)
def _outside_utc() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = ZONE
    time.tzset()
    assert time.timezone == 12_600, "the time zone database is there"
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()
