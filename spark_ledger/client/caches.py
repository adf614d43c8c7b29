"""What the caches of this process hold, by name, with their bounds: for gauges.

Each cache says so once, when it is made, and is forgotten with its owner.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class CacheSize(NamedTuple):
    """All caches of one name."""

    name: str
    caches: int
    size_bytes: int
    """What they hold together, about."""
    bytes_max: int
    """The sum of their bounds."""


class _Watched(NamedTuple):
    name: str
    size: Callable[[object], int]
    bytes_max: int


_LOCK = threading.Lock()
_CACHES: WeakKeyDictionary[object, _Watched] = WeakKeyDictionary()


def watch_cache(name: str, owner: T, size: Callable[[T], int], bytes_max: int) -> None:
    """Count a cache from now on. ``size`` gets the owner, so that it keeps none alive."""
    with _LOCK:
        _CACHES[owner] = _Watched(name, size, bytes_max)  # type: ignore[arg-type]


def cache_sizes() -> list[CacheSize]:
    """What the caches of this process hold now, by name. From any thread."""
    with _LOCK:
        found = list(_CACHES.items())
    sums: dict[str, CacheSize] = {}
    for owner, watched in found:
        before = sums.get(watched.name, CacheSize(watched.name, 0, 0, 0))
        sums[watched.name] = CacheSize(
            watched.name,
            before.caches + 1,
            before.size_bytes + watched.size(owner),
            before.bytes_max + watched.bytes_max,
        )
    return [sums[name] for name in sorted(sums)]
