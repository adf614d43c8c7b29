"""Looks at all ledgers that nothing names, for an audit: page by page, past errors (rule K9)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.keeper.audit_names import NamesRead
from spark_ledger.keeper.decisions import Maker, Verdict, judge_unlisted
from spark_ledger.keeper.deletions import LedgerDeletions
from spark_ledger.keeper.nodes import AuditPage, Unlisted, audit_page_path, read_audit_page
from spark_ledger.keeper.unlisted import Noted, by_stream
from spark_ledger.limits.keeper import AUDIT_LEDGERS_PER_STEP
from spark_ledger.limits.stream import DROPPING_LEDGERS_MAX
from spark_ledger.metadata.base import Check, Create, Delete, Put
from spark_ledger.metadata.json_nodes import encode_node, read_or_renew
from spark_ledger.metadata.ledgers import LEDGERS_PATH, LedgerStore, is_unreadable
from spark_ledger.metadata.unsettled import (
    OPEN_PATH,
    UNNAMED_PATH,
    id_path,
    one_page,
    page_numbers,
)
from spark_ledger.stream.ledgers import PURPOSE_RAW, purpose_of, stream_of
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import TAG_STREAM_ID, LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)


class Finding(NamedTuple):
    """A ledger that nothing names, and what is due."""

    verdict: Verdict
    ledger: Versioned[LedgerMetadata]
    noted_s: float | None
    """Since when audits know of it, in time in which keepers worked; None: since now."""


@dataclass(slots=True)
class PageLook:
    """What was seen of one page so far."""

    number: int
    noted: Noted
    left: deque[LedgerId]
    """In no list of an index, named by nothing, and not looked at yet."""
    found: list[Finding] = field(default_factory=list)
    deleted: int = 0

    def sums(self) -> Unlisted:
        """What was found here, and done."""
        closed = [each.ledger.value for each in self.found if each.ledger.value.is_closed]
        return Unlisted(
            ledgers=len(self.found),
            open=len(self.found) - len(closed),
            user_bytes=sum(each.length for each in closed),
            deleted=self.deleted,
            recovered=sum(each.verdict is Verdict.RECOVER for each in self.found),
        )


class UnnamedPages:
    """Pages of ledgers, and what to do about those that nothing names."""

    def __init__(
        self,
        client: LedgerClient,
        guard: Callable[[], Check],
        read: NamesRead,
        deletions: LedgerDeletions,
        *,
        worked_s: Callable[[], float],
        grace_s: float,
        next_page: int,
    ) -> None:
        self._client = client
        self._store = client.store
        self._ledgers = LedgerStore(client.store)
        self._guard = guard
        self._read = read
        self._deletions = deletions
        self._worked_s = worked_s
        self._grace_s = grace_s
        self._makers: dict[str, Maker] = {}
        """Of streams that were not read, by id."""
        self._next_page = next_page
        self._left: deque[int] | None = None
        self._page: PageLook | None = None
        self.numbers: set[int] = set()
        """Of all pages that there are."""

    def done_below(self, next_page: int) -> None:
        """The pages below are done, perhaps by another keeper."""
        self._next_page = next_page
        if self._page is not None and self._page.number < next_page:
            self._page = None
        while self._left and self._left[0] < next_page:
            self._left.popleft()

    async def look(self) -> PageLook | None:
        """Look at some ledgers; their page, or None if there is none any more. With ``left`` empty
        it is to be settled, and then ``done_below`` has to say so. After an error the same ledgers
        are due again. Raises what the metadata store raises.
        """
        if self._left is None:
            numbers = await page_numbers(self._store, LEDGERS_PATH)
            self.numbers = set(numbers)
            self._left = deque(each for each in numbers if each >= self._next_page)
        if self._page is None:
            if not self._left:
                return None
            self._page = await self._begin(self._left[0])
        page = self._page
        part = [page.left[place] for place in range(min(len(page.left), AUDIT_LEDGERS_PER_STEP))]
        found: list[Finding] = []
        for ledger in await asyncio.gather(*map(self._read_ledger, part)):
            if ledger is not None:
                found += await self._judge(page, ledger)
        for _ in part:
            page.left.popleft()
        page.found += found
        return page

    async def _begin(self, number: int) -> PageLook:
        page = await one_page(self._store, LEDGERS_PATH, number)
        listed: set[LedgerId] = set()
        for root in (OPEN_PATH, UNNAMED_PATH):
            listed.update((await one_page(self._store, root, number)).ids)
        note = None
        try:
            note = await read_audit_page(self._store, number)
        except CorruptionError as error:  # ``_note`` writes it anew
            logger.warning("%s; what it noted is noted again", error)
        noted = Noted(number, note.value.looks if note else (), self._worked_s())
        named = self._read.named
        left = deque(each for each in page.ids if each not in named and each not in listed)
        return PageLook(number, noted, left)

    async def _judge(self, page: PageLook, ledger: Versioned[LedgerMetadata]) -> list[Finding]:
        noted_s = page.noted.since_s(ledger.value.ledger_id)
        verdict = judge_unlisted(
            ledger.value,
            maker=await self._maker(ledger.value),
            noted_s=noted_s,
            grace_s=self._grace_s,
        )
        if verdict is Verdict.FORGET or await self._is_listed(ledger.value.ledger_id):
            return []
        return [Finding(verdict, ledger, noted_s)]

    async def _maker(self, ledger: LedgerMetadata) -> Maker:
        if purpose_of(ledger) == PURPOSE_RAW:
            return Maker.NONE
        name, stream_id = stream_of(ledger), ledger.custom_metadata[TAG_STREAM_ID]
        try:
            nodes = StreamNodes(self._store, name)
        except ConfigurationError:  # no stream has such a name
            return Maker.NONE
        if stream_id in self._read.whole:
            return Maker.READ
        if stream_id not in self._makers:
            path = nodes.identity_path(stream_id)
            self._makers[stream_id] = Maker.UNREAD if await self._exists(path) else Maker.GONE
        return self._makers[stream_id]

    async def _read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        try:
            return await self._ledgers.read_newest(ledger_id)
        except NoSuchLedgerError:
            return None
        except LedgerError as error:
            if not is_unreadable(error):
                raise
            logger.warning("the audit leaves ledger %d alone: %s", ledger_id, error)
            return None

    async def _is_listed(self, ledger_id: LedgerId) -> bool:
        """Whether an index has it: a list of the store may not be whole. One that is in none will
        never be, as a ledger is listed when it is made (rule K1)."""
        for root in (UNNAMED_PATH, OPEN_PATH):
            if await self._exists(id_path(root, ledger_id)):
                return True
        return False

    async def _exists(self, path: str) -> bool:
        try:
            await self._store.get_latest(path)
        except NotFoundError:
            return False
        return True

    # -- what is due -------------------------------------------------------------------------------

    async def settle(self, page: PageLook) -> int:
        """Do what is due on a page, and note the rest; how many were deleted. After an error it may
        be done again."""
        before = page.deleted
        await self._delete(page)
        for each in page.found:
            if each.verdict is Verdict.RECOVER:
                await self._deletions.recover(each.ledger.value.ledger_id)
        await self._note(page.number, [each.ledger.value.ledger_id for each in page.found])
        return page.deleted - before

    async def _note(self, number: int, found: list[LedgerId]) -> None:
        """Write down what was found on a page. Those that were deleted are forgotten by the next
        audit, which does not find them."""
        path = audit_page_path(number)
        before = await read_or_renew(self._store, AuditPage(looks=()), path)
        noted = Noted(number, before.value.looks if before else (), round(self._worked_s(), 1))
        looks = noted.after(found)
        if before is None and looks:
            change = Create(path, encode_node(AuditPage(looks=looks)))
            await self._store.transaction([self._guard(), change])
        elif before is not None and not looks:
            await self._store.transaction([self._guard(), Delete(path, before.version)])
        elif before is not None and looks != before.value.looks:
            data = encode_node(AuditPage(looks=looks))
            await self._store.transaction([self._guard(), Put(path, data, before.version)])

    async def _delete(self, page: PageLook) -> None:
        """Delete what is due. What changes meanwhile is left to the next audit."""
        due: dict[LedgerId, str] = {}
        for verdict, ledger, _ in page.found:
            if verdict is not Verdict.DELETE:
                continue
            stream_id = ledger.value.custom_metadata[TAG_STREAM_ID]
            if stream_id in self._read.whole:
                due[ledger.value.ledger_id] = stream_id
            else:  # the stream is gone, and nothing can ever name it (rule T7)
                page.deleted += await self._deletions.delete(ledger, ())
        for stream_id, ledger_ids in by_stream(due, DROPPING_LEDGERS_MAX):
            name, end = self._read.whole[stream_id]
            try:
                page.deleted += await self._delete_of(name, stream_id, ledger_ids, end)
            except (MetadataUnavailableError, MetadataRestoredError):
                raise
            except LedgerError as error:
                logger.info("ledgers of stream %r are left for the next audit: %s", name, error)

    async def _delete_of(
        self, name: str, stream_id: str, ledger_ids: list[LedgerId], end: int
    ) -> int:
        nodes = StreamNodes(self._store, name)
        config = await nodes.config()
        if config.value.stream_id != stream_id or config.value.deleted:
            raise ConflictError("it was deleted")
        stream = Stream(self._client, nodes, config)
        try:
            reclaimer = stream.retention.reclaimer(self._deletions, LiveNames())
            return await reclaimer.delete_unlisted(ledger_ids, end)
        finally:
            await stream.close()


def finding_fields(finding: Finding) -> dict[str, object]:
    """For scripts."""
    ledger = finding.ledger.value
    return {
        "ledger_id": ledger.ledger_id,
        "stream": stream_of(ledger),
        "state": ledger.state.value,
        "bytes": ledger.length if ledger.is_closed else None,
        "noted_s": finding.noted_s,
        "due": finding.verdict.value,
    }
