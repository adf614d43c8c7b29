"""The percentiles that benchmarks print."""

from __future__ import annotations

from collections.abc import Sequence


def p99_ms(latencies_s: Sequence[float]) -> float:
    """The 99th percentile of seconds, in milliseconds; 0 of nothing."""
    ordered = sorted(latencies_s)
    return round(ordered[len(ordered) * 99 // 100] * 1000, 1) if ordered else 0.0
