"""Commits to several streams in one metadata transaction: to all of them, or to none (rule T22).

Each stream's part is prepared as a commit of its own; the parts are sent as one. After a lost reply
any of the streams tells what came of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    LedgerError,
    NoSuchStreamError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits.stream import (
    MIXED_READINGS_MAX,
    STREAMS_PER_COMMIT_MAX,
    TRANSACTION_BYTES_MAX,
)
from spark_ledger.metadata.base import Create, Operation, Put
from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.commit.committer import Attempt, Committer, Prepared, until_decided
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.model import Commit


def check_how_many(names: Sequence[str]) -> None:
    """Raises ConfigurationError if these are too many streams for one transaction."""
    if len(names) > STREAMS_PER_COMMIT_MAX:
        raise ConfigurationError(
            f"{len(names)} streams in one commit ({names[0]!r}, {names[1]!r}, ...): one "
            f"transaction takes {STREAMS_PER_COMMIT_MAX} at most; divide the rows over several"
        )


async def commit_together(parts: Sequence[tuple[Committer, Proposal]]) -> list[Commit]:
    """Apply a proposal to each of several streams, all in one transaction; their commits.

    A sink's transaction that was applied before is found in all of them (``Commit.applied`` is
    false). Raises ConflictError if it was in some only, or if the sink has applied a newer one in
    any, ConfigurationError if there are too many streams for one transaction, NoSuchStreamError,
    OutcomeUnknownError, RetryableError: as ``Committer.commit``. Nothing is committed then, or
    everything may be (OutcomeUnknownError).
    """
    assert parts, "there is something to commit"
    names = [committer.nodes.name for committer, _ in parts]
    check_how_many(names)
    assert len(set(names)) == len(names), "each stream once"
    together = _Together(parts)
    try:
        commits = await together.run()
    except (RetryableError, LedgerClosedError, ConfigurationError) as error:
        if not together.is_undecided:
            raise
        raise together.outcome_unknown() from error
    finally:
        await together.clean_up()
    await run_all(
        committer.sealer.after_commit(commit.number)
        for (committer, _), commit in zip(parts, commits, strict=True)
        if commit.applied
    )
    return commits


class _Together:
    """Proposals to several streams until they are decided, all in the same way."""

    def __init__(self, parts: Sequence[tuple[Committer, Proposal]]) -> None:
        proposals = [proposal for _, proposal in parts]
        self._attempts = [Attempt(*part, together=proposals) for part in parts]
        self._names = ", ".join(repr(committer.nodes.name) for committer, _ in parts)
        first, self._proposal = parts[0]
        self._store = first.nodes.store
        self._rng = first.rng
        self._mixed_readings = 0
        self._gone_readings = 0

    @property
    def is_undecided(self) -> bool:
        """A transaction was sent, and whether it took effect is not known."""
        return any(attempt.is_undecided for attempt in self._attempts)

    async def run(self) -> list[Commit]:
        await run_all(attempt.begin() for attempt in self._attempts)
        return await until_decided(self._try_once, self._gave_up, self._rng)

    async def clean_up(self) -> None:
        for attempt in self._attempts:
            await attempt.clean_up()

    async def _try_once(self) -> list[Commit] | None:
        """Read, decide, write. None: a lost race, or a lost reply that is looked up next time."""
        sent = [attempt.unanswered for attempt in self._attempts]
        found = await asyncio.gather(
            *(attempt.prepare() for attempt in self._attempts), return_exceptions=True
        )
        applied = self._found_applied(sent, found)
        if applied is not None:
            return applied
        if any(sent) and any(attempt.unanswered is None for attempt in self._attempts):
            # In one stream the number is taken by another commit: so the transaction failed, in
            # all of them (rule T22).
            self._forget_sent()
        gone = [each for each in found if isinstance(each, NoSuchStreamError)]
        if gone and self.is_undecided and self._gone_readings == 0:
            # The others were perhaps read before the transaction took effect, and the stream was
            # deleted then. What is read from now on is of later than that.
            self._gone_readings += 1
            return None
        if gone:
            self._forget_sent()
        for each in found:
            if isinstance(each, BaseException):
                raise each
        before = [each for each in found if isinstance(each, Commit)]
        if len(before) == len(found):
            return before
        if before:
            self._mixed(before)
            return None
        prepared = [each for each in found if isinstance(each, Prepared)]
        return await self._send(prepared) if len(prepared) == len(found) else None

    def _found_applied(
        self, sent: Sequence[Commit | None], found: Sequence[object]
    ) -> list[Commit] | None:
        """The commits of the transaction whose reply was lost, if one stream has its part of it:
        then all had theirs at that time."""
        if not any(isinstance(each, Commit) and each.applied for each in found):
            return None
        commits = []
        for attempt, part, each in zip(self._attempts, sent, found, strict=True):
            assert part is not None, "all parts were sent"
            is_ours = isinstance(each, Commit) and each.applied
            commits.append(attempt.was_applied(each if is_ours else part))  # type: ignore[arg-type]
        return commits

    def _forget_sent(self) -> None:
        for attempt in self._attempts:
            attempt.sends(None)

    def _mixed(self, before: Sequence[Commit]) -> None:
        """Some streams have the transaction and others do not: read again, as they were read one
        after the other. Raises ConflictError if it stays so."""
        self._mixed_readings += 1
        if self._mixed_readings < MIXED_READINGS_MAX:
            return
        proposal = self._proposal
        raise ConflictError(
            f"streams {self._names}: sink {proposal.sink_id!r} has committed transaction "
            f"{proposal.transaction_id} to {len(before)} of these {len(self._attempts)} streams "
            "before, and nothing was committed now: either it had rows for other streams then, or "
            "one of the streams was deleted and created again. To go on without the rows that are "
            "missing, use a higher transaction"
        )

    async def _send(self, prepared: Sequence[Prepared]) -> list[Commit] | None:
        """Send one transaction with all parts. None: it failed, its reply was lost, or a part of it
        is outdated."""
        if any(part.leaves.over.has_ended for part in prepared):
            return None
        operations = [each for part in prepared for each in part.operations]
        operations += [each for part in prepared for each in part.of_ledgers]
        self._check_size(operations)
        before = [attempt.unanswered for attempt in self._attempts]
        for attempt, part in zip(self._attempts, prepared, strict=True):
            attempt.sends(part.commit)
        try:
            await self._store.transaction(operations)
        except OutcomeUnknownError:
            return None
        except LedgerError as error:
            for attempt, commit in zip(self._attempts, before, strict=True):
                attempt.sends(commit)
            if not isinstance(error, ConflictError | NotFoundError):
                raise
            await self._refused(prepared, error)
            return None
        for attempt in self._attempts:
            attempt.sends(None)
        return [a.applied(part) for a, part in zip(self._attempts, prepared, strict=True)]

    async def _refused(self, prepared: Sequence[Prepared], error: LedgerError) -> None:
        for attempt, part in zip(self._attempts, prepared, strict=True):
            try:
                await attempt.refused(part, error)
            except NoSuchStreamError:
                if not self.is_undecided:  # else the next reading tells what came of it
                    raise

    def _check_size(self, operations: Sequence[Operation]) -> None:
        size = sum(
            len(each.path) + (len(each.data) if isinstance(each, Put | Create) else 0) + 64
            for each in operations
        )
        if size > TRANSACTION_BYTES_MAX:
            raise ConfigurationError(
                f"streams {self._names}: the commit to {len(self._attempts)} streams takes {size} "
                f"bytes of metadata, and one transaction of ZooKeeper {TRANSACTION_BYTES_MAX}: "
                "commit to fewer streams at once, or add new columns (mergeSchema) before"
            )

    def _gave_up(self) -> LedgerError:
        if self.is_undecided:
            return self.outcome_unknown()
        return RetryableError(
            f"streams {self._names}: other writers won every race for their next commits; nothing "
            "was committed: try again, with fewer writers"
        )

    def outcome_unknown(self) -> OutcomeUnknownError:
        """The error if the transaction was sent, and then the store did not answer."""
        proposal = self._proposal
        return OutcomeUnknownError(
            f"streams {self._names}: the commit of sink {proposal.sink_id!r}, transaction "
            f"{proposal.transaction_id}, may or may not have taken effect, in all of them, because "
            "the metadata store did not answer; repeating the same sink id and transaction id for "
            "the same streams is safe"
        )
