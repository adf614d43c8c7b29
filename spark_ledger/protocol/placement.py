"""Which bookies get new data first (rule P22), and which replica a reader asks first (rule P19).

Pure: chance comes in as the caller's ``shuffle``, what is known of bookies as plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from spark_ledger.limits.client import PLACEMENT_WEIGHT_MAX, PLACEMENT_WEIGHT_MIN
from spark_ledger.types import BookieId, BookieInfo, BookieState, ReplicaHint


def preferred(
    candidates: Sequence[BookieInfo],
    *,
    exclude: Collection[BookieId],
    load: Mapping[BookieId, int],
    shuffle: Callable[[list[BookieInfo]], None],
) -> list[BookieInfo]:
    """The writable bookies outside ``exclude``, those that should get new data first (rule P22).

    ``load`` is any number that grows with the work a client has given a bookie (open ledgers,
    bytes), 0 for one it does not name; it is divided by the bookie's weight, so that a bookie with
    twice the space gets twice the ledgers. ``shuffle`` decides between equals, so that clients
    which know nothing of each other do not all choose the same bookies.
    """
    usable = [
        bookie
        for bookie in candidates
        if bookie.state is BookieState.WRITABLE and bookie.bookie_id not in exclude
    ]
    assert len({bookie.bookie_id for bookie in usable}) == len(usable), "A bookie is listed once."
    shuffle(usable)
    weights = _weights(usable)
    chance = {bookie.bookie_id: turn / len(usable) for turn, bookie in enumerate(usable)}

    def burden(bookie: BookieInfo) -> float:
        name = bookie.bookie_id
        return (load.get(name, 0) + chance[name]) / weights[name]

    return sorted(usable, key=burden)


def _weights(bookies: Sequence[BookieInfo]) -> dict[BookieId, float]:
    """Free space in parts of what the bookie in the middle has, within bounds. Who does not say how
    much it has counts as that one (rule P22)."""
    known = sorted(bookie.free_bytes for bookie in bookies if bookie.free_bytes > 0)
    middle = known[len(known) // 2] if known else 1
    return {
        bookie.bookie_id: min(
            max((bookie.free_bytes or middle) / middle, PLACEMENT_WEIGHT_MIN), PLACEMENT_WEIGHT_MAX
        )
        for bookie in bookies
    }


def shortage(registered: Sequence[BookieInfo], count: int, *, silent: Collection[BookieId]) -> str:
    """Why there were no ``count`` bookies, and what to do. ``silent`` failed an add
    lately and did not answer when they were asked again."""
    named = [f"{b.bookie_id} (did not answer)" for b in registered if b.bookie_id in silent]
    named += [
        f"{b.bookie_id} (read-only, {b.reason or 'as its disks are full or failing'})"
        for b in registered
        if b.state is not BookieState.WRITABLE and b.bookie_id not in silent
    ]
    number = len(registered)
    known = f"{number} {'is' if number == 1 else 'are'} registered"
    if not named:
        return f"needs {count} writable bookies; {known}. Start more bookies"
    return (
        f"needs {count} writable bookies; {known}, of which {len(named)} cannot be used now: "
        f"{', '.join(named)}. Bring them back or start others"
    )


def read_order(
    indexes: Sequence[int],
    bookies: Sequence[BookieId],
    hint: ReplicaHint,
    *,
    slow: Collection[BookieId],
    gone: Collection[BookieId],
    distances: Mapping[BookieId, int] | None = None,
) -> list[int]:
    """The indexes of a lane in the order in which a reader should ask them.

    A number as ``hint`` rotates the indexes, so that readers of different ranges share the
    replicas: pass the range's first entry, or any number that differs between readers. With names
    as ``hint`` the first that holds the lane is asked first; bookies without a name stand behind.
    Nearer bookies (``distances``) come before others. Those that were overtaken by a speculative
    read (``slow``) stand behind the others, unregistered ones (``gone``) last: they are still
    asked, because a registration may lag behind the bookie, and an entry is missing only if every
    replica says so (rule P19).
    """
    assert indexes, "Every lane has a replica."
    turn = hint % len(indexes) if isinstance(hint, int) else 0
    rotated = [*indexes[turn:], *indexes[:turn]]
    named = () if isinstance(hint, int) else hint

    def preference(bookie_index: int) -> tuple[bool, bool, int, int]:
        bookie = bookies[bookie_index]
        rank = named.index(bookie) if bookie in named else len(named)
        return bookie in gone, bookie in slow, (distances or {}).get(bookie, 0), rank

    return sorted(rotated, key=preference)
