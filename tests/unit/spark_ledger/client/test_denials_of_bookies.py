"""Where a read of a replica ended: never before what the replica has brought already."""

from __future__ import annotations

import pytest

from spark_ledger.client.lane_reader import wanted_run
from spark_ledger.protocol.events import ReadEnded, ReadEntries
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId

COMMAND = ReadEntries(2, 1, BookieId("b2"), EntryId(4), EntryId(40), 3, fence=False)


@pytest.mark.parametrize(("named", "ended_at"), [(0, 10), (9, 10), (10, 10), (13, 13)])
def test_refusal_that_names_an_entry_of_before_ends_the_read_behind_what_came(
    named: int, ended_at: int
) -> None:
    """Entries 4 and 7 have come: a bookie that denies one of them later denies the next."""
    chunk = ReadChunk(BookieStatus.NO_SUCH_ENTRY, None, EntryId(named), "not held")
    run, ended = wanted_run(LedgerId(1), COMMAND, 10, chunk)
    assert run is None
    assert ended == ReadEnded(2, 1, BookieStatus.NO_SUCH_ENTRY, EntryId(ended_at), "not held")


@pytest.mark.parametrize("named", [0, 9, 10, 11, 13, 2**40])
def test_busy_bookie_is_asked_again_for_what_comes_next_whatever_it_names(named: int) -> None:
    """Entries that it leaves out would never be asked for."""
    chunk = ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, EntryId(named), "busy")
    run, ended = wanted_run(LedgerId(1), COMMAND, 10, chunk)
    assert run is None
    assert ended == ReadEnded(2, 1, BookieStatus.TOO_MANY_REQUESTS, EntryId(10), "busy")
