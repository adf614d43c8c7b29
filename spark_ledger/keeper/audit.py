"""The audit: finds ledgers of streams that no index lists and nothing names (rule K9).

It goes in steps, some in each pass of the keeper: first it reads what all streams name, then it
looks at all other ledgers, page by page. An error costs a step. How far it is stands in nodes of
the keeper: so one that is killed is followed by one that goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError, NotFoundError
from spark_ledger.keeper.audit_names import NamesRead, NamesReader, SavedNames, Step
from spark_ledger.keeper.audit_pages import Finding, PageLook, UnnamedPages
from spark_ledger.keeper.deletions import LedgerDeletions
from spark_ledger.keeper.nodes import (
    AUDIT_PATH,
    AuditState,
    Unlisted,
    audit_page_path,
    read_or_renew_audit,
)
from spark_ledger.limits.keeper import AUDIT_SAVED_STEPS, AUDIT_STEPS_PER_PASS
from spark_ledger.metadata.base import Check, Create, Delete, Put
from spark_ledger.metadata.json_nodes import encode_node

logger = logging.getLogger(__name__)

_PAUSE_S = 0.2
"""Of a dry run, before it tries again what failed."""


@dataclass(slots=True)
class _Run:
    """One audit, as far as it is."""

    reader: NamesReader
    pages: UnnamedPages
    so_far: Unlisted
    steps: int = 0
    """Since what was read was written down."""
    has_names: bool = False

    @property
    def read(self) -> NamesRead:
        return self.reader.read


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
        self._guard = guard
        self._worked_s = worked_s
        self._interval_s = interval_s
        self._grace_s = grace_s
        self._deletions = LedgerDeletions(client, guard, deletes_per_s)
        self._saved = SavedNames(client, guard)
        self._dry_run = dry_run
        self._run: _Run | None = None
        self._is_sure = False
        """Nothing happened since which another keeper may have gone on with the run."""
        self.deleted = 0
        """By this keeper."""

    async def look(self) -> AsyncGenerator[list[Finding], None]:
        """One audit that does nothing: what one would find now, page by page, and what is due."""
        assert self._dry_run, "a keeper goes in steps"
        run = self._new_run(NamesRead(0.0), AuditState())
        while (step := await run.reader.step()) is not Step.DONE:
            if step is Step.PAUSE:
                await asyncio.sleep(_PAUSE_S)
        while (page := await run.pages.look()) is not None:
            if not page.left:
                yield page.found
                run.pages.done_below(page.number + 1)

    async def go_on(self, *, may_begin: bool) -> None:
        """Some steps, if one is under way or due. After an error the next call tries the step
        again. Raises what the metadata store raises."""
        run = await self._run_of_now(may_begin=may_begin)
        if run is None:
            return
        self._is_sure = False
        for _ in range(AUDIT_STEPS_PER_PASS):
            if not await self._step(run):
                break
        self._is_sure = True

    def check_again(self) -> None:
        """Another keeper may have gone on with the run meanwhile."""
        self._is_sure = False

    def drop(self) -> None:
        """Forget the run of now: what this keeper has read may be of other metadata."""
        self._run = None

    # -- which audit it is -------------------------------------------------------------------------

    async def _run_of_now(self, *, may_begin: bool) -> _Run | None:
        """The run that is under way, or begins; None if none is due."""
        if self._run is not None and not self._is_sure:
            found = await read_or_renew_audit(self._store)
            if found is None or found.value.begun_s != self._run.read.begun_s:
                self.drop()  # another keeper has ended it
            else:
                self._run.pages.done_below(found.value.next_page)
                self._run.so_far = found.value.so_far
        if self._run is None and may_begin:
            state = await self._due()
            if state is not None:
                assert state.begun_s is not None, "it has begun"
                self._run = self._new_run(await self._saved.load(state.begun_s), state)
        return self._run

    def _new_run(self, read: NamesRead, state: AuditState) -> _Run:
        pages = UnnamedPages(
            self._client,
            self._guard,
            read,
            self._deletions,
            worked_s=self._worked_s,
            grace_s=self._grace_s,
            next_page=state.next_page,
        )
        return _Run(NamesReader(self._client, read), pages, state.so_far)

    async def _due(self) -> AuditState | None:
        found = await read_or_renew_audit(self._store)
        state = AuditState() if found is None else found.value
        if state.begun_s is not None:
            return state  # another keeper has begun it
        now_s = self._worked_s()
        # The work may be counted anew, as that node was damaged: then the last one ended at a time
        # that is far to come. One a little ahead is of a keeper that was killed before it saved.
        since_s = abs(now_s - state.ended_s)
        if not state.is_asked and not 0 < self._interval_s <= since_s:
            return None
        return await self._save(begun_s=now_s, next_page=0, so_far=Unlisted(), is_asked=False)

    async def _save(self, **changes: object) -> AuditState:
        """Change the state, as it is now. Raises ConflictError if it changes meanwhile."""
        before = await read_or_renew_audit(self._store)
        state = AuditState() if before is None else before.value
        state = msgspec.structs.replace(state, **changes)
        data = encode_node(state)
        put = Create(AUDIT_PATH, data) if before is None else Put(AUDIT_PATH, data, before.version)
        await self._store.transaction([self._guard(), put])
        return state

    # -- one step ----------------------------------------------------------------------------------

    async def _step(self, run: _Run) -> bool:
        """Read some names, or look at some ledgers; whether the next step may follow at once."""
        if not run.has_names:
            return await self._read_names(run)
        page = await run.pages.look()
        if page is None:
            await self._end(run)
            self.drop()
            return False
        if not page.left:
            await self._settle(run, page)
        return True

    async def _read_names(self, run: _Run) -> bool:
        step = await run.reader.step()
        run.steps += 1
        if step is Step.DONE or run.steps >= AUDIT_SAVED_STEPS:
            await self._saved.save(run.read)
            run.steps = 0
        run.has_names = step is Step.DONE
        return step is not Step.PAUSE

    async def _settle(self, run: _Run, page: PageLook) -> None:
        self.deleted += await run.pages.settle(page)
        here, sums = page.sums(), run.so_far
        so_far = Unlisted(
            ledgers=sums.ledgers + here.ledgers,
            open=sums.open + here.open,
            user_bytes=sums.user_bytes + here.user_bytes,
            deleted=sums.deleted + here.deleted,
            recovered=sums.recovered + here.recovered,
        )
        await self._save(next_page=page.number + 1, so_far=so_far)
        run.so_far = so_far
        run.pages.done_below(page.number + 1)

    async def _end(self, run: _Run) -> None:
        for child in await self._store.children(AUDIT_PATH):
            if int(child) not in run.pages.numbers:  # no ledger is left there
                with contextlib.suppress(NotFoundError):
                    await self._store.transaction(
                        [self._guard(), Delete(audit_page_path(int(child)))]
                    )
        with contextlib.suppress(LedgerError):  # the next audit does it
            await self._saved.forget()
        before, so_far = await read_or_renew_audit(self._store), run.so_far
        deleted = so_far.deleted + (before.value.deleted if before is not None else 0)
        await self._save(
            begun_s=None,
            next_page=0,
            so_far=Unlisted(),
            ended_s=round(self._worked_s(), 1),
            ended_ms=time.time_ns() // 1_000_000,
            last=so_far,
            deleted=deleted,
            unread=tuple(run.read.unread[:100]),
        )
        logger.info(
            "the audit found %d ledgers that nothing names, and deleted %d",
            so_far.ledgers,
            so_far.deleted,
        )
