"""Which bookies get new data, and which replica a reader asks first (rule P19).

Pure: chance comes in as the caller's ``shuffle``, what is known of bookies as plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from spark_ledger.types import BookieId, BookieInfo, BookieState, ReplicaHint


def choose_bookies(
    candidates: Sequence[BookieInfo],
    count: int,
    *,
    exclude: Collection[BookieId],
    load: Mapping[BookieId, int],
    shuffle: Callable[[list[BookieInfo]], None],
) -> tuple[BookieId, ...] | None:
    """``count`` distinct writable bookies outside ``exclude``, or None when there are too few.

    The least loaded come first; ``load`` is any number that grows with the work a client has given
    a bookie (open ledgers, bytes), 0 for one it does not name. ``shuffle`` decides between equals,
    so that clients which know nothing of each other do not all choose the same bookies.
    """
    assert count >= 0, "A negative number of bookies cannot be chosen."
    usable = [
        bookie
        for bookie in candidates
        if bookie.state is BookieState.WRITABLE and bookie.bookie_id not in exclude
    ]
    assert len({bookie.bookie_id for bookie in usable}) == len(usable), "A bookie is listed once."
    if len(usable) < count:
        return None
    shuffle(usable)
    usable.sort(key=lambda bookie: load.get(bookie.bookie_id, 0))  # stable: equals stay shuffled
    return tuple(bookie.bookie_id for bookie in usable[:count])


def shortage(registered: Sequence[BookieInfo], count: int, *, silent: Collection[BookieId]) -> str:
    """Why ``choose_bookies`` found no ``count`` bookies, and what to do. ``silent`` failed an add
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
