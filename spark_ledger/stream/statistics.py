"""What a commit says of the times and keys in a segment: bounds, and a filter of keys. Pure.

A filter is a Bloom filter whose number of bits is a power of two. Its halves laid over each other
are the filter of half the size, so the commit can make filters smaller without the keys (rule T28).
The hash of a key is stored in filters, so it never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from spark_ledger.limits.stream import KEY_FILTERS_BYTES_MAX, KEYS_FILTERED_MAX

Bounds: TypeAlias = tuple[int, int]
"""The smallest and the largest value, both included."""

KeyPart: TypeAlias = int | bytes
"""A value of a key column: numbers, dates and times as whole numbers, text as its bytes."""

_BITS_PER_KEY: Final = 8
_PROBES: Final = 4
"""With eight bits for each key one in forty absent keys is taken for present."""

_FILTER_BYTES_MIN: Final = 8
_FILTER_BYTES_MAX: Final = _BITS_PER_KEY * KEYS_FILTERED_MAX // 8
_FULL: Final = 0.75
"""The share of bits set from which on a filter is dropped: it says yes to one absent key in three,
and to more if it is folded again."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of a segment. None, or an empty filter: nothing is known, so anything may be in it (rule
    T28). ``times`` are microseconds since 1970, ``keys`` the values of the only key column if it
    has whole numbers, dates or times. Rows with null are in neither.

    Raises ValueError for bounds the wrong way round or a filter of a size that none has.
    """

    times: Bounds | None = None
    keys: Bounds | None = None
    key_filter: bytes = b""

    def __post_init__(self) -> None:
        for bounds in (self.times, self.keys):
            if bounds is not None and bounds[0] > bounds[1]:
                raise ValueError(f"smallest value {bounds[0]} above the largest, {bounds[1]}")
        size = len(self.key_filter)
        if size and (not _FILTER_BYTES_MIN <= size <= _FILTER_BYTES_MAX or size & (size - 1)):
            raise ValueError(f"a filter of {size} bytes")

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory, about."""
        return 350 + len(self.key_filter)

    def may_have_key(self, hashed: int) -> bool:
        """Whether a key of this hash may be in the segment."""
        bits = 8 * len(self.key_filter)
        return all(self.key_filter[bit >> 3] >> (bit & 7) & 1 for bit in _probes(hashed, bits))

    def with_filter(self, key_filter: bytes) -> Statistics:
        return replace(self, key_filter=key_filter)


class EntryFacts(NamedTuple):
    """Of an entry, before its segment is known. ``hashes`` None: too many keys to name them."""

    times: Bounds | None
    keys: Bounds | None
    hashes: frozenset[int] | None


NO_FACTS: Final = EntryFacts(None, None, frozenset())
"""Of no entry."""


def merged(one: EntryFacts, other: EntryFacts) -> EntryFacts:
    """Of the entries of both. It has no more hashes than go into a filter, so what is known of many
    entries takes no more memory than what is known of a few."""
    times, keys = _widest(one.times, other.times), _widest(one.keys, other.keys)
    if one.hashes is None or other.hashes is None:
        return EntryFacts(times, keys, None)
    hashes = one.hashes | other.hashes
    return EntryFacts(times, keys, hashes if len(hashes) <= KEYS_FILTERED_MAX else None)


def of_entries(facts: Iterable[EntryFacts]) -> Statistics | None:
    """The statistics of a segment of these entries; None if they say nothing."""
    times, keys, hashes = reduce(merged, facts, NO_FACTS)
    found = Statistics(times, keys, _filter_of(hashes) if hashes else b"")
    return None if found == Statistics() else found


def _widest(one: Bounds | None, other: Bounds | None) -> Bounds | None:
    """Bounds of both. An entry without bounds has nulls only, which no condition finds."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def key_hash(parts: Sequence[KeyPart]) -> int:
    """64 bits for a key: the value of each key column. Never changes, as filters are stored."""
    digest = blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else b"%d" % part
        digest.update(b"%d:" % len(data) + data)
    return int.from_bytes(digest.digest(), "big")


def _probes(hashed: int, bits: int) -> Iterator[int]:
    """The bits of a key. With half as many bits they are the same, less the highest digit."""
    step = hashed >> 32 | 1
    return ((hashed + nth * step) & (bits - 1) for nth in range(_PROBES))


def _filter_of(hashes: frozenset[int]) -> bytes:
    size = _FILTER_BYTES_MIN
    while 8 * size < _BITS_PER_KEY * len(hashes):
        size *= 2
    made = bytearray(size)
    for hashed in hashes:
        for bit in _probes(hashed, 8 * size):
            made[bit >> 3] |= 1 << (bit & 7)
    return bytes(made)


def folded(key_filter: bytes) -> bytes:
    """The filter of half the size; none if it would say yes to nearly all keys."""
    half = len(key_filter) // 2
    if half < _FILTER_BYTES_MIN:
        return b""
    low, high = (int.from_bytes(part, "big") for part in (key_filter[:half], key_filter[half:]))
    made = low | high
    return b"" if made.bit_count() > _FULL * 8 * half else made.to_bytes(half, "big")


def fitted(
    statistics: Sequence[Statistics | None], bytes_max: int = KEY_FILTERS_BYTES_MAX
) -> list[Statistics | None]:
    """The statistics of a commit's segments, with filters folded until all fit (rule T28)."""
    fitting = list(statistics)
    sizes = [len(each.key_filter) if each else 0 for each in fitting]
    while sum(sizes) > bytes_max:
        largest = max(sizes)
        for nth, each in enumerate(fitting):
            if each is not None and sizes[nth] == largest:
                fitting[nth] = each.with_filter(folded(each.key_filter))
                sizes[nth] = len(folded(each.key_filter))
    return [None if each == Statistics() else each for each in fitting]
