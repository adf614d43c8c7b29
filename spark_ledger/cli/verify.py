"""Compares what bookies hold with what metadata name, byte for byte; see ``ledger cluster usage``.

Each copy of each closed ledger is read and compared with its checksum and with the other copies,
some thousand entries at a time. A ledger that changes meanwhile is left out. Of one with a password
only the ids are compared. Then each bookie lists what it holds, and that is compared with the lists
of the metadata. What no flush of a bookie has stored yet is not in its list.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from spark_ledger.cli.listing import HeldEntries
from spark_ledger.client.lane_reader import wanted_run
from spark_ledger.errors import ConfigurationError, CorruptionError, LedgerError, NotFoundError
from spark_ledger.keeper.unlisted import IDS_PER_PAGE
from spark_ledger.limits.bookie import BOOKIE_LEDGERS_PER_ANSWER
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.ledger_ids import next_counted
from spark_ledger.metadata.ledgers import LEDGERS_PATH, ledger_path
from spark_ledger.metadata.unsettled import one_page, pages
from spark_ledger.protocol.events import ReadEntries
from spark_ledger.protocol.quorum import in_write_set
from spark_ledger.transport.base import ListedEntries, Transport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId, LedgerMetadata, Versioned
from spark_ledger.wire.frame import derive_keys, digest_for, open_run

ANSWER_TIMEOUT_S: Final = 10.0
"""A bookie that does not answer within this counts as silent, and is asked no more."""

BUSY_PAUSE_S: Final = 0.1
BUSY_ATTEMPTS_MAX: Final = 300
"""A bookie that is busy decides nothing: it is asked again, for half a minute."""

QUESTIONS_AT_ONCE: Final = 8
"""To one bookie, whether it holds a ledger: it serves others as well."""

ENTRIES_AT_ONCE: Final = 10_000
"""Entries of one ledger that are compared at a time: their sums take two megabytes."""

LEDGERS_AT_ONCE: Final = 4
"""Ledgers whose copies are read at once: reads of others go on beside it."""

FAULTS_TOLD_MAX: Final = 100
"""Faults that are told one by one; all are counted."""

SHORT_ANSWERS_MAX: Final = 100
"""A bookie that lists its ledgers fills each answer but the last, or the last few while others are
made. One id in each would have the command ask for ever."""

NEVER_GIVEN_MAX: Final = 100_000
"""Ledgers that a bookie may list though no id was given from theirs on: after ZooKeeper was
restored from a backup there are some."""

_OF_THE_LEDGER: Final = (BookieStatus.IO_ERROR, BookieStatus.UNAUTHORIZED)
"""What a bookie answers that cannot read one entry, or has a ledger under another key. All else but
a denial says nothing of what it holds."""


@dataclass(slots=True)
class BookieCopies:
    """What one bookie holds."""

    silent: str = ""
    """Why it was not asked to the end; empty if it was."""
    ledgers: int = 0
    """Of the metadata, closed, with entries on it."""
    entries: int = 0
    user_bytes: int = 0
    """Read, and the same as in the other copies."""
    missing: int = 0
    """Entries that the metadata place here, and that are not."""
    damaged: int = 0
    """Entries that cannot be read, or differ from their checksum or from another copy."""
    beyond: int = 0
    """Entries of named ledgers that nobody needs: behind the end, or of a bookie that was replaced
    meanwhile. They go with their ledger."""
    left_ledgers: int = 0
    """Ledgers that the metadata do not name: the next collections take them."""


@dataclass(slots=True)
class Verified:
    """How a comparison went."""

    bookies: dict[BookieId, BookieCopies] = field(default_factory=dict)
    closed: int = 0
    open: int = 0
    """Not compared: their end is not known."""
    locked: int = 0
    """With a password: their bytes were not compared."""
    changed: int = 0
    """Deleted or changed meanwhile."""
    unknown: int = 0
    """Their nodes are damaged or of a later format: nobody can say what has to be there."""
    named_bytes: int = 0
    """User bytes of closed ledgers times their copies, as the metadata say."""
    faults: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Whether every copy is there, to the byte, and nothing else is."""
        return not (self.faults or self.unknown) and not any(
            each.silent or each.missing or each.damaged or each.left_ledgers
            for each in self.bookies.values()
        )


async def verify(
    store: MetadataStore, transport: Transport, advance: Callable[[int], None]
) -> Verified:
    """Compare all. Raises what the metadata store raises."""
    return await _Comparison(store, transport, advance).run()


class _Comparison:
    def __init__(
        self, store: MetadataStore, transport: Transport, advance: Callable[[int], None]
    ) -> None:
        self._store = store
        self._transport = transport
        self._advance = advance
        self._found = Verified()
        self._end = 0
        """No id from there on was given. What a bookie names there it may have made up."""

    async def run(self) -> Verified:
        await self._ask_all()
        async for page in pages(self._store, LEDGERS_PATH):
            for part in _parts(page.ids, LEDGERS_AT_ONCE):
                await asyncio.gather(*map(self._compare, part))
                self._advance(len(part))
        for bookie_id in self._asked():
            await self._look_for_others(bookie_id)
        return self._found

    async def _ask_all(self) -> None:
        registry = BookieRegistry(self._store)
        running = {info.bookie_id for info in await registry.list()}
        for bookie_id in sorted({*running, *await registry.list_cookies()}):
            copies = self._found.bookies[bookie_id] = BookieCopies()
            try:
                await self._transport.describe(bookie_id, timeout_s=ANSWER_TIMEOUT_S)
            except LedgerError as error:
                copies.silent = str(error)

    def _asked(self) -> list[BookieId]:
        return [each for each, copies in self._found.bookies.items() if not copies.silent]

    async def _node(self, ledger_id: LedgerId) -> Versioned[bytes] | None:
        try:
            return await self._store.get_latest(ledger_path(ledger_id))
        except NotFoundError:
            return None

    # -- ledgers that the metadata name ------------------------------------------------------------

    async def _compare(self, ledger_id: LedgerId) -> None:
        before = await self._node(ledger_id)
        if before is None:
            self._found.changed += 1
            return
        try:
            ledger = decode_ledger(ledger_path(ledger_id), ledger_id, before.value)
        except (CorruptionError, ConfigurationError) as error:
            self._found.unknown += 1
            _tell(self._found.faults, f"ledger {ledger_id}: {error}")
            return
        if not ledger.is_closed:
            self._found.open += 1
            return
        copies, faults = await self._copies_of(ledger)
        if await self._node(ledger_id) != before:
            self._found.changed += 1
            return
        for bookie_id in {each for fragment in ledger.fragments for each in fragment.bookies}:
            self._found.bookies.setdefault(bookie_id, BookieCopies("it is not in this cluster"))
        self._found.closed += 1
        self._found.locked += ledger.has_password
        self._found.named_bytes += ledger.length * ledger.quorums.write_quorum
        for bookie_id, each in copies.items():
            _add(self._found.bookies[bookie_id], each)
        room = FAULTS_TOLD_MAX - len(self._found.faults)
        self._found.faults += faults[:room]

    async def _copies_of(
        self, ledger: LedgerMetadata
    ) -> tuple[dict[BookieId, BookieCopies], list[str]]:
        copies: dict[BookieId, _Copy] = {}
        for bookie_id in self._asked():
            ask = partial(self._held, bookie_id, ledger.ledger_id)
            held = HeldEntries(ask, ledger.last_entry_id, partial(self._silence, bookie_id))
            await held.fetch()
            if held.is_said:
                copies[bookie_id] = _Copy(ledger, bookie_id, held)
        faults: list[str] = []
        entries = length = 0
        for start in range(0, ledger.last_entry_id + 1, ENTRIES_AT_ONCE):
            end = min(start + ENTRIES_AT_ONCE, ledger.last_entry_id + 1)
            sums: dict[EntryId, tuple[int, int]] = {}
            for copy in copies.values():
                held_here = await copy.look(start, end) if copy.is_said else []
                if copy.is_said and not ledger.has_password:
                    for stretch in held_here:
                        await self._compare_bytes(copy, stretch, sums, faults)
            entries += len(sums)
            length += sum(size for size, _ in sums.values())
        for copy in copies.values():
            if copy.is_said:
                await copy.end()
            if copy.is_said and copy.found.missing:
                _tell(
                    faults,
                    f"ledger {ledger.ledger_id}: bookie {copy.bookie_id} lacks "
                    f"{copy.found.missing} of {copy.expected_count} entries, the first is "
                    f"{copy.first_missing}",
                )
        if entries == ledger.last_entry_id + 1 and length != ledger.length:
            _tell(
                faults,
                f"ledger {ledger.ledger_id}: its entries have {length} bytes, and the metadata say "
                f"{ledger.length}",
            )
        said = {bookie_id: copy.found for bookie_id, copy in copies.items() if copy.is_said}
        return said, faults

    async def _held(
        self, bookie_id: BookieId, ledger_id: LedgerId, first: EntryId
    ) -> ListedEntries:
        """A page of what a bookie holds of a ledger. One that does not say is asked no more."""
        for _ in range(BUSY_ATTEMPTS_MAX):
            page = await self._transport.list_entries(
                bookie_id, ledger_id, first, timeout_s=ANSWER_TIMEOUT_S
            )
            if page.status is not BookieStatus.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(BUSY_PAUSE_S)
        if page.status is not BookieStatus.OK and not page.status.is_denial:
            self._silence(bookie_id, _answered(page.status))
        return page

    def _silence(self, bookie_id: BookieId, why: str) -> None:
        """It is asked no more."""
        copies = self._found.bookies[bookie_id]
        copies.silent = copies.silent or why

    async def _compare_bytes(
        self,
        copy: _Copy,
        held: tuple[int, int],
        sums: dict[EntryId, tuple[int, int]],
        faults: list[str],
    ) -> None:
        """Read a stretch of entries; compare each that is named with its checksum and with the copy
        that was read first. A bookie that does not answer is asked no more, and nothing of its copy
        counts."""
        (first, last), ledger, bookie_id = held, copy.ledger, copy.bookie_id
        access_key, digest_key = derive_keys(b"", ledger.ledger_id, ledger.incarnation)
        digest = digest_for(ledger.digest_type, digest_key)

        def damaged(entry_id: int, why: str) -> None:
            copy.found.damaged += 1
            _tell(faults, f"ledger {ledger.ledger_id} entry {entry_id} on {bookie_id}: {why}")

        refused = 0
        while first <= last:
            asked, is_busy = first, False
            if self._found.bookies[bookie_id].silent:  # as it did not answer for another ledger
                copy.is_left = True
                return
            wanted = ReadEntries(0, 0, bookie_id, EntryId(first), EntryId(last), 1, fence=False)
            chunks = self._transport.read(
                bookie_id,
                ledger.ledger_id,
                wanted.first,
                wanted.last,
                access_key=access_key,
                timeout_s=ANSWER_TIMEOUT_S,
            )
            async for chunk in chunks:
                if chunk.status is BookieStatus.TOO_MANY_REQUESTS and refused < BUSY_ATTEMPTS_MAX:
                    refused, is_busy = refused + 1, True
                    await asyncio.sleep(BUSY_PAUSE_S)
                    break
                run, ended = wanted_run(ledger.ledger_id, wanted, first, chunk)
                if run is None:
                    assert ended is not None, "A chunk brings entries, or says why not."
                    if not ended.status.is_denial and ended.status not in _OF_THE_LEDGER:
                        self._silence(bookie_id, _answered(ended.status))
                        copy.is_left = True
                        return
                    damaged(ended.entry_id, f"{ended.status.name.lower()} {ended.message}".strip())
                    first = ended.entry_id + 1
                    break
                refused = 0
                entries, error = open_run(digest, run)
                for entry in entries:
                    if entry.entry_id not in copy.expected:
                        continue
                    known = len(entry.payload), zlib.crc32(entry.payload)
                    if sums.setdefault(entry.entry_id, known) != known:
                        damaged(entry.entry_id, "it differs from another copy")
                    else:
                        copy.found.user_bytes += len(entry.payload)
                first = run.last_entry + 1
                if error is not None:
                    first = run.first_entry + len(entries) + 1
                    damaged(first - 1, str(error))
                    break
            if first == asked and not is_busy:
                damaged(first, "its answer has nothing in it")
                first += 1

    # -- ledgers that they do not name -------------------------------------------------------------

    async def _look_for_others(self, bookie_id: BookieId) -> None:
        """Have a bookie list its ledgers, and look up those that the metadata do not list."""
        first, number, short, never_given = 0, -1, 0, 0
        listed: frozenset[LedgerId] = frozenset()
        self._end = await next_counted(self._store)
        while True:
            status, held = await self._list(bookie_id, LedgerId(first))
            if status is BookieStatus.BAD_REQUEST:
                return await self._ask_for_each(bookie_id)
            if status is not BookieStatus.OK:
                return self._silence(bookie_id, _answered(status))
            if not held:
                return None
            short += len(held) < BOOKIE_LEDGERS_PER_ANSWER
            never_given += sum(each >= self._end for each in held)
            if short > SHORT_ANSWERS_MAX:
                return self._silence(bookie_id, "it lists few ledgers in each of many answers")
            if never_given > NEVER_GIVEN_MAX:
                return self._silence(
                    bookie_id,
                    f"it lists more than {NEVER_GIVEN_MAX} ledgers whose ids were not given",
                )
            others: list[LedgerId] = []
            for ledger_id in held:
                if ledger_id // IDS_PER_PAGE != number:
                    number = ledger_id // IDS_PER_PAGE
                    page = await one_page(self._store, LEDGERS_PATH, number)
                    listed = frozenset(page.ids)
                if ledger_id not in listed:
                    others.append(ledger_id)
            await self._look_for_all(bookie_id, others)
            first = held[-1] + 1

    async def _ask_for_each(self, bookie_id: BookieId) -> None:
        """The same for a bookie of a former version, which cannot list: id by id."""
        for start in range(0, self._end, IDS_PER_PAGE):
            page = await one_page(self._store, LEDGERS_PATH, start // IDS_PER_PAGE)
            listed = frozenset(page.ids)
            ids = map(LedgerId, range(start, min(start + IDS_PER_PAGE, self._end)))
            await self._look_for_all(bookie_id, [each for each in ids if each not in listed])

    async def _look_for_all(self, bookie_id: BookieId, ledger_ids: Sequence[LedgerId]) -> None:
        for part in _parts(ledger_ids, QUESTIONS_AT_ONCE):
            if self._found.bookies[bookie_id].silent:
                return
            await asyncio.gather(*(self._look_for(bookie_id, each) for each in part))

    async def _list(
        self, bookie_id: BookieId, first: LedgerId
    ) -> tuple[BookieStatus, list[LedgerId]]:
        for _ in range(BUSY_ATTEMPTS_MAX):
            status, held = await self._transport.list_ledgers(
                bookie_id, first, timeout_s=ANSWER_TIMEOUT_S
            )
            if status is not BookieStatus.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(BUSY_PAUSE_S)
        return status, held

    async def _look_for(self, bookie_id: BookieId, ledger_id: LedgerId) -> None:
        page = await self._held(bookie_id, ledger_id, EntryId(0))
        if not page.ranges and page.next_entry is None:
            return
        if await self._node(ledger_id) is None:  # else it was made since the metadata were listed
            self._found.bookies[bookie_id].left_ledgers += 1


class _Copy:
    """What one bookie holds of one ledger, looked at a stretch of entries at a time."""

    def __init__(self, ledger: LedgerMetadata, bookie_id: BookieId, held: HeldEntries) -> None:
        self.ledger = ledger
        self.bookie_id = bookie_id
        self._held = held
        self.found = BookieCopies()
        self.expected: frozenset[EntryId] = frozenset()
        """What it has to hold of the stretch."""
        self.expected_count = 0
        self.first_missing: EntryId | None = None
        self.is_left = False
        """Its bookie has stopped answering."""

    @property
    def is_said(self) -> bool:
        """Whether the bookie has said what it holds; else nothing of this counts."""
        return self._held.is_said and not self.is_left

    async def look(self, start: int, end: int) -> list[tuple[int, int]]:
        """Go to the stretch from ``start`` up to ``end``, which is left out; what is held of it,
        both ends included."""
        self.expected = frozenset(_expected(self.ledger, self.bookie_id, start, end))
        held = await self._held.take(end)
        ids = {each for first, last in held for each in range(first, last + 1)}
        missing = self.expected - ids
        self.expected_count += len(self.expected)
        self.found.entries += len(self.expected) - len(missing)
        self.found.missing += len(missing)
        self.found.beyond += len(ids - self.expected)
        if missing and self.first_missing is None:
            self.first_missing = min(missing)
        return held

    async def end(self) -> None:
        """All stretches were looked at: what is held besides is behind the end."""
        while True:
            held = await self._held.take(None)
            self.found.beyond += sum(last + 1 - first for first, last in held)
            if self._held.known_until is None:
                break
            await self._held.fetch()
        self.found.ledgers = int(bool(self.expected_count))


def _expected(
    ledger: LedgerMetadata, bookie_id: BookieId, start: int, end: int
) -> Iterator[EntryId]:
    """The entries from ``start`` up to ``end`` that a bookie has to hold, by the fragments."""
    ends = [each.first_entry for each in ledger.fragments[1:]] + [ledger.last_entry_id + 1]
    for fragment, fragment_end in zip(ledger.fragments, ends, strict=True):
        for index, member in enumerate(fragment.bookies):
            if member == bookie_id:
                for entry_id in range(max(fragment.first_entry, start), min(fragment_end, end)):
                    if in_write_set(index, entry_id, ledger.quorums):
                        yield EntryId(entry_id)


def _answered(status: BookieStatus) -> str:
    return f"it answered {status.name.lower()}"


def _tell(faults: list[str], fault: str) -> None:
    """Keep a fault, if it is not one too many."""
    if len(faults) < FAULTS_TOLD_MAX:
        faults.append(fault)


def _add(total: BookieCopies, more: BookieCopies) -> None:
    total.ledgers += more.ledgers
    total.entries += more.entries
    total.user_bytes += more.user_bytes
    total.missing += more.missing
    total.damaged += more.damaged
    total.beyond += more.beyond


def _parts(ids: Sequence[int], size: int) -> Iterator[list[LedgerId]]:
    for start in range(0, len(ids), size):
        yield [LedgerId(each) for each in ids[start : start + size]]
