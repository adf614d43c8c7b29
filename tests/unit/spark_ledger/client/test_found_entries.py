"""FoundEntries: which lane of a recovery may read on while others store or are behind."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client import found_entries
from spark_ledger.client.found_entries import Found, FoundEntries
from spark_ledger.protocol.quorum import lanes
from spark_ledger.tasks import cancel
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)
from spark_ledger.wire.frame import Crc32cDigest

QUORUMS = Quorums(3, 2, 2)
BOOKIES = (BookieId("a"), BookieId("b"), BookieId("c"))
METADATA = LedgerMetadata(LedgerId(7), QUORUMS, (Fragment(EntryId(0), BOOKIES),))


def add(found: FoundEntries, *entry_ids: int) -> None:
    found.add([Found(entry_id, b"%40d" % entry_id, entry_id) for entry_id in entry_ids])


async def free_lanes(waits: dict[int, asyncio.Task[None]]) -> set[int]:
    for _ in range(3):
        await asyncio.sleep(0)
    return {lane for lane, wait in waits.items() if wait.done()}


def test_lane_that_has_come_least_far_waits_for_bookies_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others would fill the memory, and were it to wait for them nobody would go on."""
    monkeypatch.setattr(found_entries, "RECOVERY_BYTES_MAX", 100)

    async def test() -> None:
        found = FoundEntries(METADATA, Crc32cDigest(), 4)
        waits: dict[int, asyncio.Task[None]] = {}

        async def free() -> set[int]:
            """Which lanes may read now; those that may not go on waiting, as a recovery's reads."""
            for lane in lanes(QUORUMS):
                if lane.residue not in waits:
                    waits[lane.residue] = asyncio.create_task(found.wait_for_room(lane))
            done = await free_lanes(waits)
            for residue in done:
                del waits[residue]
            return done

        assert await free() == {0, 1, 2}
        add(found, 6, 9, 12)
        assert found.length == 0, "none of them is in order"
        assert await free() == {2}, "entry 5 is of lane 2"
        add(found, 5)
        assert found.length == 6
        assert await free() == {1}, "entry 7 is of lane 1"
        add(found, 7, 10)
        assert found.length == 7
        assert await free() == set(), "5, 6 and 7 are not stored"
        found.release(4)
        assert await free() == set()
        found.release(7)
        assert await free() == {2}, "9, 10 and 12 wait for entry 8"
        add(found, 8)
        assert await free() == set(), "8, 9 and 10 are not stored"
        found.release(9)
        assert await free() == {0, 1, 2}
        assert found.length == 10
        (run,) = found.runs(1, 10, 10)
        assert run.frames == b"%40d" % 10
        await cancel(*waits.values())

    asyncio.run(test())
