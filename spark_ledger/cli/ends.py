"""Where an open ledger ends, for commands that look at it without a client.

What a bookie says of it is a hint, and may be a lie. So it counts as far as a reader would believe
it (rule P5), and a bookie that says what cannot be is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Final

from spark_ledger.client.lane_reader import wanted_run
from spark_ledger.protocol.events import ReadEntries
from spark_ledger.protocol.last_confirmed import Claims, Proof
from spark_ledger.transport.base import LastConfirmed, Transport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerMetadata
from spark_ledger.wire.frame import derive_keys, digest_for, frame_last_add_confirmed, open_run

ENTRIES_AHEAD_MAX: Final = 2**26
"""A bookie that names an entry so far behind all that the others hold lies, or was told a lie: no
writer adds as much between two answers."""


async def believed_end(
    transport: Transport,
    ledger: LedgerMetadata,
    said: Mapping[BookieId, LastConfirmed],
    timeout_s: float,
    tell: Callable[[BookieId, str], object],
) -> EntryId:
    """The last entry of an open ledger that is confirmed, as far as can be known without the
    writer, from what the bookies of its last fragment ``said``.

    Where too few have answered to agree, an entry is read for what it proves. ``tell`` hears of
    a bookie that says what cannot be.
    """
    bookies = ledger.last_fragment.bookies
    floor = EntryId(ledger.last_fragment.first_entry - 1)
    claims = Claims(ledger.quorums)
    for index, bookie_id in enumerate(bookies):
        answer = said.get(bookie_id, LastConfirmed(BookieStatus.UNAVAILABLE))
        if answer.status is BookieStatus.OK and _is_absurd(bookie_id, said, floor):
            tell(
                bookie_id,
                f"it says that ledger {ledger.ledger_id} goes on to entry "
                f"{max(answer.last_add_confirmed, answer.last_entry)}, which cannot be",
            )
            answer = LastConfirmed(BookieStatus.IO_ERROR)
        claims.take(index, answer.status, answer.last_add_confirmed, answer.last_entry)
    for proof in claims.proofs(bookies):
        proved = await _proved(transport, ledger, proof, timeout_s)
        if proved is not None:
            claims.prove(proved)
    return max(floor, claims.believed)


def _is_absurd(bookie_id: BookieId, said: Mapping[BookieId, LastConfirmed], floor: EntryId) -> bool:
    """Whether a bookie names an entry far behind all that others hold; if no other one holds any,
    far behind all that it holds itself: one that denies has lost its copies, perhaps."""
    answer = said[bookie_id]
    others = [
        each.last_entry
        for name, each in said.items()
        if name != bookie_id and each.status is BookieStatus.OK
    ]
    known = max([floor, *(others or [answer.last_entry])])
    return max(answer.last_add_confirmed, answer.last_entry) > known + ENTRIES_AHEAD_MAX


async def _proved(
    transport: Transport, ledger: LedgerMetadata, proof: Proof, timeout_s: float
) -> EntryId | None:
    """The last add confirmed that an entry carries; None if it cannot be had. Of a ledger with a
    password nobody here can verify it, and it is taken as it is."""
    entry_id, bookie_id = proof.entry_id, proof.bookie_id
    wanted = ReadEntries(proof.bookie_index, 0, bookie_id, entry_id, entry_id, 1, fence=False)
    chunks = transport.read(bookie_id, ledger.ledger_id, entry_id, entry_id, timeout_s=timeout_s)
    try:
        async with asyncio.timeout(timeout_s), aclosing(chunks):
            async for chunk in chunks:
                run, _ = wanted_run(ledger.ledger_id, wanted, entry_id, chunk)
                if run is None:
                    return None
                carried = frame_last_add_confirmed(run)
                if not ledger.has_password:
                    _, digest_key = derive_keys(b"", ledger.ledger_id, ledger.incarnation)
                    _, error = open_run(digest_for(ledger.digest_type, digest_key), run)
                    if error is not None:
                        return None
                return carried if carried < entry_id else None
    except TimeoutError:
        pass
    return None
