"""Applies a proposed commit to a stream: one metadata transaction, repeated until it is decided.

The transaction checks the configuration (the stream still exists and knows the schema), replaces
the head, creates the commit node and sets the sink's record. Its outcome is always found out from
what the store says, never assumed: a lost race is decided anew from a fresh reading, and a lost
reply is looked up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits import ENTRY_PAYLOAD_BYTES_MAX, KIB
from spark_ledger.metadata.base import Check, Create, Operation, Put
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.commit.commit_rules import AlreadyApplied, Apply, Proposal, decide
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.codec import SegmentListPointer
from spark_ledger.stream.ledgers import PURPOSE_SEGMENT_LIST, Ledgers, ledger_tags
from spark_ledger.stream.model import Commit, Segment, SinkRecord
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, COMMITS_PER_SUMMARY_STEP, StreamNodes
from spark_ledger.stream.schema_registry import SchemaRegistry
from spark_ledger.types import Versioned

SEGMENT_LIST_NODE_BYTES_MAX = 200 * KIB
"""A longer list goes into a ledger: ZooKeeper wants a whole transaction in one MiB."""

COMMIT_TIMEOUT_S = 60.0
"""How long a commit keeps trying when others win every race, or the store cannot be reached."""

BACKOFF_S_MIN = 0.002
BACKOFF_S_MAX = 0.2


class Committer:
    """Commits to one stream. Several may work on one stream, in one process or in many."""

    def __init__(
        self,
        ledgers: Ledgers,
        nodes: StreamNodes,
        log: CommitLog,
        schemas: SchemaRegistry,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self._log = log
        self._schemas = schemas
        self._clock_ms = clock_ms
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret

    async def commit(self, proposal: Proposal) -> Commit:
        """Apply a proposal, or find that it was applied before (``Commit.applied`` is false).

        Raises ``ConflictError`` (an older transaction of the sink), ``NoSuchStreamError``,
        ``OutcomeUnknownError`` (repeat the same pair to find out), ``RetryableError``.
        """
        attempt = _Attempt(self, proposal)
        try:
            commit = await attempt.run()
        except (MetadataUnavailableError, LedgerClosedError, ConfigurationError) as error:
            if not attempt.is_undecided:
                raise
            raise self._outcome_unknown(proposal) from error
        if commit.applied and (commit.number + 1) % COMMITS_PER_SUMMARY_STEP == 0:
            await self._log.summarize(commit.number + 1)
        return commit

    def _outcome_unknown(self, proposal: Proposal) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"stream {self._nodes.name!r}: the commit of sink {proposal.sink_id!r}, transaction "
            f"{proposal.transaction_id}, may or may not have taken effect, because the metadata "
            "store did not answer; repeating the same sink id and transaction id is safe"
        )


class _Attempt:
    """One proposal on its way to a decision."""

    def __init__(self, owner: Committer, proposal: Proposal) -> None:
        self._owner = owner
        self._nodes = owner._nodes
        self._proposal = proposal
        self._schemas = owner._schemas
        self._unknown: Commit | None = None
        self._list: SegmentListPointer | None = None

    @property
    def is_undecided(self) -> bool:
        """A transaction was sent whose outcome is not known."""
        return self._unknown is not None

    async def run(self) -> Commit:
        self._check_schemas()
        await self._store_long_list()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COMMIT_TIMEOUT_S
        backoff_s = BACKOFF_S_MIN
        while True:
            try:
                done = await self._try_once()
            except (ConflictError, NotFoundError):
                # A real conflict (an older transaction, a stream that is gone) drops the list.
                await self._drop_list()
                raise
            if done is not None:
                return done
            if loop.time() > deadline:
                raise self._gave_up()
            await asyncio.sleep(self._owner._rng.uniform(0, backoff_s))
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def _try_once(self) -> Commit | None:
        """Read, decide, perform. None: lost a race, or the outcome is to be looked up."""
        proposal, nodes = self._proposal, self._nodes
        head, sink = await asyncio.gather(nodes.head(), self._sink())
        if head.value.stream_id != self._schemas.config.stream_id:
            raise nodes.no_such_stream()
        mine = await self._applied_unknown(head.value.next_commit)
        if mine is not None:
            return mine
        decision = decide(
            head.value,
            sink.value if sink else None,
            proposal,
            now_ms=self._owner._clock_ms(),
            stream_name=nodes.name,
        )
        if isinstance(decision, AlreadyApplied):
            await self._drop_list()
            return replace(await self._owner._log.get(decision.commit), applied=False)
        if decision.commit.number % COMMITS_PER_BUCKET == 0:
            await self._make_bucket(decision.commit.number)
        return await self._perform(decision, head.version, sink)

    async def _perform(
        self, decision: Apply, head_version: int, sink: Versioned[SinkRecord] | None
    ) -> Commit | None:
        nodes, commit = self._nodes, decision.commit
        operations: list[Operation] = [
            Check(nodes.identity_path(self._schemas.config.stream_id), 0),
            Check(nodes.config_path, self._schemas.versioned.version),
            Put(nodes.head_path, codec.encode_head(decision.head), head_version),
            Create(nodes.commit_path(commit.number), codec.encode_commit(commit, self._list)),
        ]
        if decision.sink is not None:
            path, data = nodes.sink_path(decision.sink.sink_id), codec.encode_sink(decision.sink)
            operations.append(Create(path, data) if sink is None else Put(path, data, sink.version))
        try:
            await nodes.store.transaction(operations)
        except OutcomeUnknownError:
            self._unknown = commit
            return None
        except (ConflictError, NotFoundError):
            await self._schemas.refresh()
            return None
        self._owner._log.remember(commit, self._list)
        return commit

    async def _sink(self) -> Versioned[SinkRecord] | None:
        if not self._proposal.is_remembered:
            return None
        return await self._nodes.sink(self._proposal.sink_id)

    async def _applied_unknown(self, next_commit: int) -> Commit | None:
        """Look up a transaction whose reply was lost: our commit, if it was applied.

        While its number is not taken it may still arrive late; then the head's version decides
        between it and the repetition, so that only one of them is applied.
        """
        unknown = self._unknown
        if unknown is None or unknown.number >= next_commit:
            return None
        stored = await self._owner._log.get(unknown.number)
        self._unknown = None
        is_ours = (stored.sink_id, stored.transaction_id, stored.run_id, stored.segments) == (
            unknown.sink_id,
            unknown.transaction_id,
            unknown.run_id,
            unknown.segments,
        )
        return stored if is_ours else None

    async def _make_bucket(self, number: int) -> None:
        path = self._nodes.bucket_path(number)
        try:
            await self._nodes.store.create(path, b"", make_parents=False)
        except (ConflictError, NotFoundError, OutcomeUnknownError):
            return  # it is there, or gone with its stream: the transaction will tell

    def _check_schemas(self) -> None:
        newest = self._schemas.config.schema_version
        for segment in self._proposal.segments:
            assert segment.schema_version <= newest, "segments are of a version the stream has"

    def _gave_up(self) -> LedgerError:
        if self.is_undecided:
            return self._owner._outcome_unknown(self._proposal)
        return RetryableError(
            f"stream {self._nodes.name!r}: other writers won every race for the next commit for "
            f"{COMMIT_TIMEOUT_S:.0f} s; nothing was committed: try again, with fewer writers"
        )

    # -- long segment lists ------------------------------------------------------------------------

    async def _store_long_list(self) -> None:
        """Put a list that is too large for a node into a ledger; its content has no numbers, so
        it stays right whatever place the commit gets."""
        segments: tuple[Segment, ...] = self._proposal.segments
        data = codec.encode_segment_list(segments)
        if len(data) <= SEGMENT_LIST_NODE_BYTES_MAX:
            return
        config = self._schemas.config
        writer = await self._owner._ledgers.create_ledger(
            ensemble_size=config.quorums.ensemble_size,
            write_quorum=config.quorums.write_quorum,
            ack_quorum=config.quorums.ack_quorum,
            custom_metadata=ledger_tags(config.name, config.stream_id, PURPOSE_SEGMENT_LIST),
        )
        size = ENTRY_PAYLOAD_BYTES_MAX // 4
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        for part in parts:
            await writer.append_nowait(part)
        await writer.close()
        self._list = SegmentListPointer(writer.ledger_id, len(parts))

    async def _drop_list(self) -> None:
        """Delete the list of a commit that will not be made."""
        if self._list is not None and not self.is_undecided:
            pointer, self._list = self._list, None
            await self._owner._ledgers.delete_ledger(pointer.ledger_id)
