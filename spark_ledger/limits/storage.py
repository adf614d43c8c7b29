"""Bounds of a bookie's space: how much one step of deletion and compaction takes."""

from __future__ import annotations

from typing import Final

DELETED_ROWS_AT_ONCE: Final = 10_000
"""Rows that one index transaction deletes: about 50 ms, for which a flush waits."""

DELETED_LEDGERS_AT_ONCE: Final = 1_000
"""Ledgers of one such transaction: most have few rows, and each has a record and a proof."""
