"""The audit: finds ledgers of streams that no index lists and nothing names (rule K9).

It goes in steps, some in each pass of the keeper: first it reads what all streams name, then it
looks at all other ledgers, page by page. What it found, and the page that it came to, are in nodes
of the keeper: so one that is killed is followed by one that goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.keeper.decisions import Maker, Verdict, judge_unlisted
from spark_ledger.keeper.nodes import (
    AUDIT_PATH,
    AuditPage,
    AuditState,
    Unlisted,
    audit_page_path,
    read_audit,
    read_audit_page,
)
from spark_ledger.keeper.streams import LedgerDeletions
from spark_ledger.keeper.unlisted import NamedIds, Noted, by_stream
from spark_ledger.limits.keeper import (
    AUDIT_LEDGERS_PER_STEP,
    AUDIT_STEPS_PER_PASS,
)
from spark_ledger.limits.stream import DROPPING_LEDGERS_MAX
from spark_ledger.metadata.base import Check, Create, Delete, Put
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.ledgers import LEDGERS_PATH, LedgerStore
from spark_ledger.metadata.unsettled import (
    OPEN_PATH,
    UNNAMED_PATH,
    Page,
    id_path,
    one_page,
    pages,
)
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.ledgers import TAG_STREAM_ID, TAG_STREAM_NAME
from spark_ledger.stream.nodes import STREAMS_ROOT, StreamNodes
from spark_ledger.stream.retention.names import names_of
from spark_ledger.stream.retention.reclaim import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)

Steps = AsyncGenerator[None, None]


class Finding(NamedTuple):
    """A ledger that nothing names, and what is due."""

    verdict: Verdict
    ledger: Versioned[LedgerMetadata]
    noted_s: float | None
    """Since when audits know of it, in time in which keepers worked; None: since now."""


@dataclass(slots=True)
class _Run:
    """What one audit has read so far."""

    named: NamedIds = field(default_factory=NamedIds)
    read: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Streams, by id, that were read to their end: their names, and the commit behind the last."""
    unread: list[str] = field(default_factory=list)
    makers: dict[str, Maker] = field(default_factory=dict)
    """Of streams that were not read, by id."""
    pages: set[int] = field(default_factory=set)


class Audit:
    """The audits of one keeper. Belongs to the loop of the client."""

    def __init__(
        self,
        client: LedgerClient,
        guard: Callable[[], Check],
        *,
        worked_s: Callable[[], float],
        interval_s: float,
        grace_s: float,
        deletes_per_s: float,
        dry_run: bool = False,
    ) -> None:
        """``interval_s``: of a keeper's work, from the end of one audit to the next; 0: never,
        unless somebody asks for one."""
        self._client = client
        self._store = client.store
        self._ledgers = LedgerStore(client.store)
        self._guard = guard
        self._worked_s = worked_s
        self._interval_s = interval_s
        self._grace_s = grace_s
        self._deletions = LedgerDeletions(client, guard, deletes_per_s)
        self._dry_run = dry_run
        self._steps: Steps | None = None
        self.deleted = 0
        """By this keeper."""
        self.findings: list[Finding] = []
        """Of a dry run."""

    async def look(self) -> list[Finding]:
        """One audit that does nothing: what one would find now, and what is due of it."""
        assert self._dry_run, "a keeper goes in steps"
        before = await read_audit(self._store)
        async with aclosing(self._audit(before.value if before else AuditState())) as steps:
            async for _ in steps:
                pass
        return self.findings

    async def go_on(self, *, may_begin: bool) -> None:
        """Some steps, if one is under way or due. An error ends the run: the next one goes on where
        this one came to. Raises what the metadata store raises."""
        if self._steps is None:
            state = await self._due() if may_begin else None
            if state is None:
                return
            self._steps = self._audit(state)
        try:
            for _ in range(AUDIT_STEPS_PER_PASS):
                await anext(self._steps)
        except BaseException as error:
            await self.drop()
            if not isinstance(error, StopAsyncIteration):
                raise

    async def drop(self) -> None:
        """Forget the run of now; whoever is the keeper goes on with it."""
        steps, self._steps = self._steps, None
        if steps is not None:
            await steps.aclose()

    async def _due(self) -> AuditState | None:
        found = await read_audit(self._store)
        state = AuditState() if found is None else found.value
        if state.begun_s is not None:
            return state  # another keeper has begun it
        now_s = self._worked_s()
        # Metadata that were restored, or written by hand, put no audit off for longer than that.
        since_s = now_s - min(state.ended_s, now_s)
        if not state.is_asked and not 0 < self._interval_s <= since_s:
            return None
        return await self._save(begun_s=now_s, next_page=0, so_far=Unlisted(), is_asked=False)

    async def _save(self, **changes: object) -> AuditState:
        """Change the state, as it is now. Raises ConflictError if it changes meanwhile."""
        before = await read_audit(self._store)
        state = AuditState() if before is None else before.value
        state = msgspec.structs.replace(state, **changes)
        if not self._dry_run:
            data = encode_node(state)
            put = (
                Create(AUDIT_PATH, data)
                if before is None
                else Put(AUDIT_PATH, data, before.version)
            )
            await self._store.transaction([self._guard(), put])
        return state

    async def _audit(self, state: AuditState) -> Steps:
        run, so_far = _Run(), state.so_far
        for name in await self._store.children(STREAMS_ROOT):
            async with aclosing(self._read_stream(run, name)) as steps:
                async for _ in steps:
                    yield
        async for page in pages(self._store, LEDGERS_PATH):
            run.pages.add(page.number)
            if page.number < state.next_page:
                continue
            found: list[Finding] = []
            async with aclosing(self._look_at(run, page, found)) as steps:
                async for _ in steps:
                    yield
            so_far = await self._settle(run, page, found, so_far)
            await self._save(next_page=page.number + 1, so_far=so_far)
            yield
        await self._end(run, so_far)

    async def _end(self, run: _Run, so_far: Unlisted) -> None:
        if self._dry_run:
            return
        for child in await self._store.children(AUDIT_PATH):
            if int(child) not in run.pages:  # no ledger is left there
                with contextlib.suppress(NotFoundError):
                    await self._store.transaction(
                        [self._guard(), Delete(audit_page_path(int(child)))]
                    )
        before = await read_audit(self._store)
        deleted = so_far.deleted + (before.value.deleted if before is not None else 0)
        await self._save(
            begun_s=None,
            next_page=0,
            so_far=Unlisted(),
            ended_s=round(self._worked_s(), 1),
            ended_ms=time.time_ns() // 1_000_000,
            last=so_far,
            deleted=deleted,
            unread=tuple(run.unread[:100]),
        )
        logger.info(
            "the audit found %d ledgers that nothing names, and deleted %d",
            so_far.ledgers,
            so_far.deleted,
        )

    # -- what streams name -------------------------------------------------------------------------

    async def _read_stream(self, run: _Run, name: str) -> Steps:
        """Read what a stream names; of one that cannot be read, nothing is deleted."""
        nodes = StreamNodes(self._store, name)
        try:
            config = (await nodes.config()).value
            if config.deleted:
                return  # its deletion is finished, and then it is gone
            head = (await nodes.head(latest=True)).value
            if head.stream_id != config.stream_id:
                return  # another one of the name by now: the next audit reads it
            log = CommitLog(self._client, nodes, config.stream_id)
            async with aclosing(names_of(nodes, log, head)) as parts:
                async for part in parts:
                    run.named.add(part)
                    yield
            run.read[config.stream_id] = name, head.next_commit
        except NoSuchStreamError:
            return
        except MetadataUnavailableError:
            raise
        except LedgerError as error:
            run.unread.append(name)
            logger.warning("the audit leaves the ledgers of stream %r alone: %s", name, error)

    async def _maker(self, run: _Run, ledger: LedgerMetadata) -> Maker:
        tags = ledger.custom_metadata
        name, stream_id = tags.get(TAG_STREAM_NAME), tags.get(TAG_STREAM_ID)
        if not name or not stream_id:
            return Maker.NONE
        if stream_id in run.read:
            return Maker.READ
        if stream_id not in run.makers:
            path = StreamNodes(self._store, name).identity_path(stream_id)
            run.makers[stream_id] = Maker.UNREAD if await self._exists(path) else Maker.GONE
        return run.makers[stream_id]

    # -- what nothing names ------------------------------------------------------------------------

    async def _look_at(self, run: _Run, page: Page, found: list[Finding]) -> Steps:
        listed: set[LedgerId] = set()
        for root in (OPEN_PATH, UNNAMED_PATH):
            listed.update((await one_page(self._store, root, page.number)).ids)
        note = await read_audit_page(self._store, page.number)
        noted = Noted(page.number, note.value.looks if note else (), self._worked_s())
        ids = [each for each in page.ids if each not in run.named and each not in listed]
        for start in range(0, len(ids), AUDIT_LEDGERS_PER_STEP):
            part = ids[start : start + AUDIT_LEDGERS_PER_STEP]
            for ledger in await asyncio.gather(*map(self._read, part)):
                if ledger is None:
                    continue
                noted_s = noted.since_s(ledger.value.ledger_id)
                verdict = judge_unlisted(
                    ledger.value,
                    maker=await self._maker(run, ledger.value),
                    noted_s=noted_s,
                    grace_s=self._grace_s,
                )
                if verdict is Verdict.FORGET or await self._is_listed(ledger.value.ledger_id):
                    continue
                found.append(Finding(verdict, ledger, noted_s))
            yield

    async def _read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        try:
            return await self._ledgers.read_newest(ledger_id)
        except NoSuchLedgerError:
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

    async def _settle(
        self, run: _Run, page: Page, found: list[Finding], so_far: Unlisted
    ) -> Unlisted:
        """Do what is due on a page, and note the rest; the sums with it."""
        closed = [each.ledger.value for each in found if each.ledger.value.is_closed]
        deleted, recovered = 0, 0
        if self._dry_run:
            self.findings += found
        else:
            deleted = await self._delete(run, found)
            self.deleted += deleted
            for each in found:
                if each.verdict is Verdict.RECOVER:
                    await self._deletions.recover(each.ledger.value.ledger_id)
                    recovered += 1
            await self._note(page.number, [each.ledger.value.ledger_id for each in found])
        return Unlisted(
            ledgers=so_far.ledgers + len(found),
            open=so_far.open + len(found) - len(closed),
            user_bytes=so_far.user_bytes + sum(each.length for each in closed),
            deleted=so_far.deleted + deleted,
            recovered=so_far.recovered + recovered,
        )

    async def _note(self, number: int, found: list[LedgerId]) -> None:
        """Write down what was found on a page. Those that were deleted are forgotten by the next
        audit, which does not find them."""
        before = await read_audit_page(self._store, number)
        noted = Noted(number, before.value.looks if before else (), round(self._worked_s(), 1))
        looks, path = noted.after(found), audit_page_path(number)
        if before is None and looks:
            change = Create(path, encode_node(AuditPage(looks=looks)))
            await self._store.transaction([self._guard(), change])
        elif before is not None and not looks:
            await self._store.transaction([self._guard(), Delete(path, before.version)])
        elif before is not None and looks != before.value.looks:
            data = encode_node(AuditPage(looks=looks))
            await self._store.transaction([self._guard(), Put(path, data, before.version)])

    async def _delete(self, run: _Run, found: list[Finding]) -> int:
        """Delete what is due; how many. What changes meanwhile is left to the next audit."""
        due: dict[LedgerId, str] = {}
        count = 0
        for verdict, ledger, _ in found:
            if verdict is not Verdict.DELETE:
                continue
            stream_id = ledger.value.custom_metadata[TAG_STREAM_ID]
            if stream_id in run.read:
                due[ledger.value.ledger_id] = stream_id
            else:  # the stream is gone, and nothing can ever name it (rule T7)
                count += await self._deletions.delete(ledger, ())
        for stream_id, ledger_ids in by_stream(due, DROPPING_LEDGERS_MAX):
            name, end = run.read[stream_id]
            try:
                count += await self._delete_of(name, stream_id, ledger_ids, end)
            except MetadataUnavailableError:
                raise
            except LedgerError as error:
                logger.info("ledgers of stream %r are left for the next audit: %s", name, error)
        return count

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
        "stream": ledger.custom_metadata.get(TAG_STREAM_NAME, ""),
        "state": ledger.state.value,
        "bytes": ledger.length if ledger.is_closed else None,
        "noted_s": finding.noted_s,
        "due": finding.verdict.value,
    }
