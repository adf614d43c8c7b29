"""Copies and fingerprints of machines: what lets the search go back, and know where it has been.

Both walk any object of ``spark_ledger.protocol`` by its attributes, so they need no change when a
machine gains one. Values that never change (numbers, named tuples, metadata) are shared.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Generic, TypeVar

from spark_ledger.types import FragmentList, LedgerMetadata

T = TypeVar("T")

_SHARED = (int, float, str, bytes, bool, type(None), Enum, tuple, frozenset, range)


def _is_frozen(value: object) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def clone(value: T) -> T:
    """A copy that shares nothing which may change."""
    if isinstance(value, (*_SHARED, FragmentList, BaseException)) or _is_frozen(value):
        return value
    copied: object
    if isinstance(value, list):
        copied = [clone(item) for item in value]
    elif isinstance(value, dict):
        copied = {key: clone(item) for key, item in value.items()}
    elif isinstance(value, set):
        copied = set(value)
    else:
        assert type(value).__module__.startswith("spark_ledger.protocol"), type(value)
        copied = object.__new__(type(value))
        for name in _attributes(value):
            object.__setattr__(copied, name, clone(getattr(value, name)))
    return copied  # type: ignore[return-value]


def freeze(value: object) -> Hashable:
    """A hashable value that is equal for objects which behave alike.

    Errors count by their type: their texts follow from the rest.
    """
    if isinstance(value, LedgerMetadata):
        return (value.state, value.last_entry_id, value.length, tuple(value.fragments))
    if isinstance(value, BaseException):
        return type(value).__name__
    if isinstance(value, tuple):
        return (type(value).__name__, *map(freeze, value))
    if isinstance(value, _SHARED) or _is_frozen(value):
        return value
    if isinstance(value, list):
        return tuple(map(freeze, value))
    if isinstance(value, dict):
        return tuple((freeze(key), freeze(item)) for key, item in value.items())
    if isinstance(value, set):
        return frozenset(map(freeze, value))
    assert type(value).__module__.startswith("spark_ledger.protocol"), type(value)
    return (type(value).__name__, *(freeze(getattr(value, name)) for name in _attributes(value)))


def _attributes(value: object) -> list[str]:
    slots = getattr(type(value), "__slots__", None)
    return list(slots) if slots is not None else list(vars(value))


class Interned(Generic[T]):
    """Small numbers for values: equal keys, equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[T] = []

    def number(self, key: Hashable, value: T) -> int:
        """The number of a value; it is kept if its key is new."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(value)
        return found

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)
