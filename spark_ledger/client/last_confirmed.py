"""What bookies say of the last add confirmed of a ledger: asked once, or held until it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Final

from spark_ledger.client.context import ClientContext
from spark_ledger.client.lane_reader import verify_chunk
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits.client import (
    BUSY_PAUSE_S,
    BUSY_PAUSE_S_MAX,
    LAC_DISPUTE_S,
    TAIL_PAUSE_S,
    TAIL_PAUSE_S_MAX,
)
from spark_ledger.protocol.events import LastConfirmedAnswer, ReadEntries
from spark_ledger.protocol.last_confirmed import LastConfirmedRead, LongPoll, Proof
from spark_ledger.tasks import cancel
from spark_ledger.transport.base import LastConfirmed
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerMetadata, Versioned
from spark_ledger.wire.frame import Digest

PROOF_TRIES: Final = 3
"""How often an entry is read for what it proves: a connection may break, an answer be damaged on
its way. A bookie that lies costs a reader no more than this."""

PROOF_PAUSE_S: Final = 0.1
"""Before the second of these tries; twice as long before the third."""

_TRIED_AGAIN: Final = frozenset(
    {
        BookieStatus.TIMEOUT,
        BookieStatus.UNAVAILABLE,
        BookieStatus.TOO_MANY_REQUESTS,
        BookieStatus.IO_ERROR,
    }
)


@asynccontextmanager
async def cancelled_at_exit(*tasks: asyncio.Task[object]) -> AsyncIterator[None]:
    """Owns questions of which the first answers may suffice: no task outlives the block.

    Not a TaskGroup, because that waits for all of its tasks, and wraps an error in a group where
    the caller is promised the error itself.
    """
    try:
        yield
    finally:
        await cancel(*tasks)


async def unless_busy(
    context: ClientContext, ask: Callable[[], Awaitable[LastConfirmed]], busy_wait_s: float
) -> LastConfirmed:
    """A bookie's answer. One that says that it is busy is asked again, later and later."""
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + busy_wait_s, BUSY_PAUSE_S
    while True:
        reply = await ask()
        wait_s = pause_s * context.random.uniform(0.5, 1.5)
        if reply.status is not BookieStatus.TOO_MANY_REQUESTS or loop.time() + wait_s > deadline:
            return reply
        await asyncio.sleep(wait_s)
        pause_s = min(2 * pause_s, BUSY_PAUSE_S_MAX)


async def read_last_confirmed(
    context: ClientContext, metadata: LedgerMetadata, access_key: bytes, digest: Digest
) -> EntryId:
    """The last add confirmed of a ledger that is not closed, without fencing it.

    Raises BookieUnavailableError if too few bookies answer.
    """
    loop, timeout_s = asyncio.get_running_loop(), context.config.read_timeout_s
    round_ = LastConfirmedRead(metadata, fence=False)

    async def ask(bookie_index: int, bookie_id: BookieId) -> LastConfirmedAnswer:
        reply = await unless_busy(
            context,
            lambda: context.transport.read_last_confirmed(
                bookie_id, metadata.ledger_id, access_key=access_key, timeout_s=timeout_s
            ),
            timeout_s,
        )
        return LastConfirmedAnswer(
            bookie_index, reply.status, reply.last_add_confirmed, reply.message, reply.last_entry
        )

    bookies = metadata.last_fragment.bookies
    tasks = [loop.create_task(ask(index, bookie)) for index, bookie in enumerate(bookies)]
    waiting, dispute_ends = set(tasks), None
    async with cancelled_at_exit(*tasks):
        while round_.result is None and round_.error is None:
            left_s = None if dispute_ends is None else max(0.0, dispute_ends - loop.time())
            done, waiting = await asyncio.wait(
                waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                round_.give_up()
            for task in tasks:
                if task in done:
                    round_.answer(task.result())
            if round_.is_covered and dispute_ends is None:
                dispute_ends = loop.time() + LAC_DISPUTE_S
    if round_.error is None:
        await Prover(context, metadata, access_key, digest).prove(round_)
    if round_.error is not None:
        raise round_.error
    assert round_.result is not None, "A round that is over has a result or an error."
    return round_.result


async def read_newest_confirmed(
    context: ClientContext, ledger: Versioned[LedgerMetadata], access_key: bytes, digest: Digest
) -> tuple[Versioned[LedgerMetadata], EntryId]:
    """The last add confirmed of a ledger, and the metadata which it was read with.

    Its writer may replace bookies that have ended while they are asked: then others are.

    Raises BookieUnavailableError if too few of the newest fragment's bookies answer,
    NoSuchLedgerError, MetadataUnavailableError.
    """
    while not ledger.value.is_closed:
        try:
            confirmed = await read_last_confirmed(context, ledger.value, access_key, digest)
        except BookieUnavailableError:
            known, ledger = ledger, await context.ledgers.read_latest(ledger.value.ledger_id)
            if ledger.version == known.version:
                raise
        else:
            return ledger, confirmed
    return ledger, ledger.value.last_entry_id


class Prover:
    """Reads the entries that prove what too few bookies say (rule P5)."""

    def __init__(
        self, context: ClientContext, metadata: LedgerMetadata, access_key: bytes, digest: Digest
    ) -> None:
        self._context = context
        self._ledger_id = metadata.ledger_id
        self._access_key = access_key
        self._digest = digest

    async def prove(self, round_: LastConfirmedRead | LongPoll) -> None:
        """Read one entry after the other, as long as there are any that may prove more."""
        tried: set[Proof] = set()
        unread: list[int] = []
        while True:
            # What may prove more changes with each that is read, and with each that cannot be.
            untried = [proof for proof in round_.proofs if proof not in tried]
            if untried:
                tried.add(untried[0])
                proved = await self._try(untried[0])
                if proved is not None:
                    round_.prove(proved)
                else:
                    unread.append(untried[0].bookie_index)
            elif unread:
                # Only now: another one may have proved what this one says.
                round_.fail(unread.pop())
            else:
                return

    async def _try(self, proof: Proof) -> EntryId | None:
        """What an entry proves, read more than once if need be. None if it cannot be had: the
        bookie lies or its copy is damaged, and neither is an answer."""
        tries = 0
        while True:
            proved, status = await self._read(proof)
            tries += 1
            if proved is not None or status not in _TRIED_AGAIN or tries == PROOF_TRIES:
                return proved
            await asyncio.sleep(tries * PROOF_PAUSE_S)

    async def _read(self, proof: Proof) -> tuple[EntryId | None, BookieStatus]:
        """What the entry proves, or why it cannot be had."""
        entry_id = proof.entry_id
        wanted = ReadEntries(
            proof.bookie_index, 0, proof.bookie_id, entry_id, entry_id, 1, fence=False
        )
        async with aclosing(
            self._context.transport.read(
                proof.bookie_id,
                self._ledger_id,
                entry_id,
                entry_id,
                access_key=self._access_key,
                timeout_s=LAC_DISPUTE_S,
            )
        ) as chunks:
            # The first chunk is the entry, or it is not: a liar could send more for ever.
            chunk = await anext(chunks, None)
        if chunk is None:
            return None, BookieStatus.IO_ERROR
        entries, ended = verify_chunk(self._ledger_id, self._digest, wanted, entry_id, chunk)
        if entries:
            return EntryId(entries[0].last_add_confirmed), BookieStatus.OK
        return None, BookieStatus.IO_ERROR if ended is None else ended.status


_NO_NEWS: Final = frozenset(
    {
        BookieStatus.NO_SUCH_LEDGER,
        BookieStatus.TOO_MANY_REQUESTS,
        BookieStatus.TIMEOUT,
        BookieStatus.UNAVAILABLE,
    }
)


class PollMemory:
    """What a reader remembers from one round of long polls to the next."""

    def __init__(self) -> None:
        self.refused: dict[BookieId, tuple[float, float]] = {}
        """Of bookies that had no room for a long poll: no other one before the first time, and no
        question that does not wait before the second."""
        self._pause_s = TAIL_PAUSE_S

    def pause_s(self, *, is_empty: bool, is_fenced: bool) -> float:
        """How long to wait behind a round that has come to nothing at once; it grows while that is
        because bookies are fenced."""
        pause_s = self._pause_s if is_empty and is_fenced else TAIL_PAUSE_S
        self._pause_s = min(2 * pause_s, TAIL_PAUSE_S_MAX) if is_empty else TAIL_PAUSE_S
        return pause_s


def _is_at_once(took_s: float, is_fenced: bool) -> bool:
    """Whether a round that took so long was held by nobody: the answers of fenced bookies are given
    at once, and may be a while on their way."""
    return took_s < (TAIL_PAUSE_S_MAX if is_fenced else TAIL_PAUSE_S)


def _is_news(reply: LastConfirmed, known: EntryId) -> bool:
    """Whether a bookie would have told this to one that waits."""
    if reply.status is BookieStatus.OK:
        return reply.fenced or reply.last_add_confirmed > known
    return reply.status not in _NO_NEWS


async def wait_for_newer(
    context: ClientContext,
    metadata: LedgerMetadata,
    access_key: bytes,
    digest: Digest,
    known: EntryId,
    wait_s: float,
    memory: PollMemory | None = None,
) -> EntryId:
    """Ask all bookies of the last fragment to tell of a newer LAC; the newest that is believed.

    ``memory`` is what is remembered from one round to the next."""
    loop, ledger_id = asyncio.get_running_loop(), metadata.ledger_id
    began, timeout_s = loop.time(), context.config.read_timeout_s
    round_, memory = LongPoll(metadata, known), memory or PollMemory()
    refusals = memory.refused

    async def poll(bookie_id: BookieId) -> LastConfirmed:
        """A bookie's answer, held until it knows more. It may have no room for another that waits;
        what it knows now it says all the same, and it is busy only if that is nothing new. However
        much news there is, it is then asked ten times a second at most, and to wait every 2 s."""
        asked = partial(
            context.transport.read_last_confirmed,
            bookie_id,
            ledger_id,
            wait_above=known,
            access_key=access_key,
            timeout_s=timeout_s,
        )
        polls_at, asks_at = refusals.get(bookie_id, (began, began))
        if loop.time() >= polls_at:
            reply = await asked(wait_s=max(0.0, began + wait_s - loop.time()))
            if reply.status is not BookieStatus.TOO_MANY_REQUESTS:
                return reply
            polls_at = loop.time() + BUSY_PAUSE_S_MAX
            refusals[bookie_id] = polls_at, asks_at
        await asyncio.sleep(max(0.0, min(asks_at, began + wait_s) - loop.time()))
        refusals[bookie_id] = polls_at, loop.time() + BUSY_PAUSE_S
        told = await asked()
        return told if _is_news(told, known) else LastConfirmed(BookieStatus.TOO_MANY_REQUESTS)

    async def ask(bookie_index: int, bookie_id: BookieId) -> tuple[int, LastConfirmed]:
        return bookie_index, await unless_busy(context, lambda: poll(bookie_id), wait_s)

    bookies = metadata.last_fragment.bookies
    tasks = [loop.create_task(ask(index, bookie)) for index, bookie in enumerate(bookies)]
    waiting, dispute_ends, is_over, is_fenced = set(tasks), None, False, False
    async with cancelled_at_exit(*tasks):
        while waiting and not is_over:
            left_s = None if dispute_ends is None else max(0.0, dispute_ends - loop.time())
            done, waiting = await asyncio.wait(
                waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in tasks:
                if task in done and not is_over:
                    index, reply = task.result()
                    is_fenced = is_fenced or reply.fenced
                    is_over = round_.answer(
                        index, reply.status, reply.last_add_confirmed, reply.last_entry
                    )
            if not done:
                break
            if dispute_ends is None and round_.proofs:
                dispute_ends = loop.time() + LAC_DISPUTE_S
    await Prover(context, metadata, access_key, digest).prove(round_)
    is_empty = round_.newest == known and _is_at_once(loop.time() - began, is_fenced)
    pause_s = memory.pause_s(is_empty=is_empty, is_fenced=is_fenced)
    if is_empty:
        await asyncio.sleep(min(pause_s, wait_s))
    return round_.newest
