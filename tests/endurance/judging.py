"""Whether what a cluster holds has grown, and whether what is left at the end is right. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tests.endurance.looking import Sample

SLACK = 1.3
"""Counts swing with workers that come and go, and with commits that are about to be sealed."""

FLOOR = 6
"""Small counts swing more than by a share: two tasks, their owners, a ledger of manifests."""

NODES_FLOOR = 60
"""Commits that wait to be sealed are nodes."""


def growth(samples: Sequence[Sample]) -> list[str]:
    """What was more in the last third than ever in the second one, by more than its swing."""
    third = len(samples) // 3
    if third < 2:
        return ["too few looks to judge growth: run it for longer"]
    middle, last = samples[third : 2 * third], samples[2 * third :]
    wrong = []
    for name, floor in (
        ("open", FLOOR),
        ("unnamed", FLOOR),
        ("owners", FLOOR),
        ("other_nodes", NODES_FLOOR),
    ):
        before = max(getattr(sample, name) for sample in middle)
        after = max(getattr(sample, name) for sample in last)
        if after > before * SLACK + floor:
            wrong.append(f"{name} grew from {before} to {after}")
    return wrong


def leftovers(end: Sample) -> list[str]:
    """What is left after the query has stopped, and after the graces of the keeper."""
    wrong = []
    if end.open:
        wrong.append(f"{end.open} ledgers are still open")
    if end.unnamed:
        wrong.append(f"{end.unnamed} ledgers are still unnamed")
    return wrong


def rows(numbers: Sequence[int]) -> list[str]:
    """The stream holds each number from 0 on once."""
    if sorted(numbers) == list(range(len(numbers))):
        return []
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
    twice = len(numbers) - len(set(numbers))
    return [f"{len(missing)} numbers are missing (such as {missing[:5]}), {twice} are there twice"]
