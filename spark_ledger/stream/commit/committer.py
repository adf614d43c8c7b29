"""Applies a proposed commit to a stream: one metadata transaction, repeated until it is decided.

The transaction checks the configuration (the stream still exists and has the schema versions),
replaces the head, creates the commit node and writes the sink's record (rule T2). Its outcome is
read from the store and never assumed: after a lost race the proposal is decided again from a fresh
reading, and after a lost reply the commit is looked up (rule T4).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    LedgerError,
    NoSuchLedgerError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.limits import KIB
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.limits.stream import LEDGERS_NAMED_BY_COMMIT_MAX, SEGMENT_LISTS_BYTES_MAX
from spark_ledger.metadata.base import Check, Create, Operation, Put
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.commit.commit_rules import AlreadyApplied, Apply, Proposal, decide
from spark_ledger.stream.commit.existing import ExistingLedgers, refuse_dropping
from spark_ledger.stream.commit.head_reader import HeadReader
from spark_ledger.stream.commit.new_schemas import with_new_schemas
from spark_ledger.stream.commit.proposals import with_list_within
from spark_ledger.stream.commit.readings import Reading, Readings
from spark_ledger.stream.commit.sealer import Sealer
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.codec import SegmentListPointer
from spark_ledger.stream.ledgers import (
    PURPOSE_SEGMENT_LIST,
    Ledgers,
    OpenLedger,
    drop_unnamed,
    new_ledger,
    written,
)
from spark_ledger.stream.model import Commit, StreamConfig
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.stream.retention.held import checks_to_drop
from spark_ledger.stream.schema_registry import SchemaRegistry
from spark_ledger.types import LedgerId, Versioned

T = TypeVar("T")

logger = logging.getLogger(__name__)

SEGMENT_LIST_NODE_BYTES_MAX: Final = 200 * KIB
"""A longer list goes into a ledger: ZooKeeper takes at most 1 MiB in a whole transaction."""

COMMIT_TIMEOUT_S: Final = 60.0
"""How long a commit keeps trying when others win every race, or the store cannot be reached."""

BACKOFF_S_MIN: Final = 0.002
BACKOFF_S_MAX: Final = 0.2
"""Pauses between attempts double between these bounds, each drawn at random below its bound: two
drivers that lost to each other do not meet again at once."""


class Committer:
    """Commits to one stream. Any number of them may work on one stream, in any processes."""

    def __init__(
        self,
        ledgers: Ledgers,
        nodes: StreamNodes,
        log: CommitLog,
        schemas: SchemaRegistry,
        heads: HeadReader,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        self.ledgers = ledgers
        self.nodes = nodes
        self.log = log
        self.schemas = schemas
        self.heads = heads
        self.sealer = Sealer(ledgers, nodes, log, schemas)
        self.clock_ms = clock_ms
        self.rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self.existing = ExistingLedgers(ledgers.naming)
        self.readings = Readings(nodes, heads)

    async def commit(self, proposal: Proposal) -> Commit:
        """Apply a proposal, or find that it was applied before (``Commit.applied`` is false).

        Raises ConflictError if the sink has applied a newer transaction or a hold keeps rows that
        it overwrites, NoSuchStreamError, OutcomeUnknownError if the commit may or may not have been
        made (to repeat the same pair tells), RetryableError if nothing was committed.
        """
        attempt = Attempt(self, proposal)
        try:
            commit = await attempt.run()
        except (RetryableError, LedgerClosedError, ConfigurationError) as error:
            if not attempt.is_undecided:
                raise
            raise _outcome_unknown(self.nodes.name, proposal) from error
        finally:
            await attempt.clean_up()
        if commit.applied:
            await self.sealer.after_commit(commit.number)
        return commit


async def until_decided(
    try_once: Callable[[], Awaitable[T | None]],
    gave_up: Callable[[], LedgerError],
    rng: random.Random,
) -> T:
    """What ``try_once`` finds; repeated while it is None, until ``gave_up()`` is raised."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + COMMIT_TIMEOUT_S
    backoff_s = BACKOFF_S_MIN
    while True:
        found = await try_once()
        if found is not None:
            return found
        if loop.time() > deadline:
            raise gave_up()
        await asyncio.sleep(rng.uniform(0, backoff_s))
        backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)


class Prepared(NamedTuple):
    """A transaction that is ready to be sent.

    Those parts that are ``of_ledgers`` come last in it: were they the first to fail, nobody would
    know whether the head is still the one that was read, and a lost transaction of before may have
    been applied.
    """

    commit: Commit
    operations: list[Operation]
    of_ledgers: list[Operation]
    config: Versioned[StreamConfig]
    """The configuration once the transaction took effect."""
    grows: bool
    """Whether that is a new one."""
    named: list[LedgerId]
    first_named: list[LedgerId]
    again: list[LedgerId]
    leaves: Reading
    """What is there once the transaction took effect."""


class Attempt:
    """One proposal until it is decided."""

    def __init__(
        self, committer: Committer, proposal: Proposal, *, together: Sequence[Proposal] = ()
    ) -> None:
        """``together``: this proposal and those that share the transaction, and so what it may
        have; none: it has its own."""
        together = together or [proposal]
        count = len(together)
        self._list_bytes_max = SEGMENT_LIST_NODE_BYTES_MAX // count
        if not any(each.may_grow for each in together):  # then it has no configurations
            share = SEGMENT_LISTS_BYTES_MAX // count
            self._list_bytes_max = min(SEGMENT_LIST_NODE_BYTES_MAX, share)
        # Where lists of several have their room, a name may be three operations and need a check.
        names = LEDGERS_NAMED_BY_COMMIT_MAX // (count if count == 1 else 2 * count)
        self._ledgers_max = max(1, names)
        self._committer = committer
        self._nodes, self._schemas = committer.nodes, committer.schemas
        self._proposal = proposal
        self._unanswered: Commit | None = None
        """The commit of a transaction that was sent and has no reply: that was lost, or is on its
        way, and then who leaves does not know either what came of it."""
        self._list: SegmentListPointer | None = None
        """Where the segment list is, if it is too long for the commit's node."""
        self._list_ledger: OpenLedger | None = None
        """The ledger that was made for it."""
        self._is_list_used = False
        """Whether a commit names the list."""
        self._has_seen_list = False
        """One of the ledgers was about to be deleted, for all that was known (rule T17)."""
        self._naming = committer.ledgers.naming
        self._existing = committer.existing

    @property
    def is_undecided(self) -> bool:
        """A transaction was sent, and whether it took effect is not known."""
        return self._unanswered is not None

    @property
    def unanswered(self) -> Commit | None:
        """The commit of that transaction."""
        return self._unanswered

    def sends(self, commit: Commit | None) -> None:
        """A transaction with this commit is on its way; None: it did not take effect."""
        self._unanswered = commit

    def was_applied(self, commit: Commit) -> Commit:
        """The transaction that had this commit took effect, as another part of it has told."""
        self._unanswered = None
        self._is_list_used = True
        return commit

    async def run(self) -> Commit:
        await self.begin()
        return await until_decided(self._try_once, self._gave_up, self._committer.rng)

    async def begin(self) -> None:
        """What comes before the transaction: the list of segments, if it is long, and ledgers."""
        await self._store_long_list()
        await self._name_ahead()

    async def _try_once(self) -> Commit | None:
        """Read, decide, write. None: a lost race, or a lost reply that is looked up next time."""
        found = await self.prepare()
        return await self._send(found) if isinstance(found, Prepared) else found

    async def prepare(self) -> Commit | Prepared | None:
        """Read, and decide what is to be written. A commit: that is done. None: look again."""
        proposal, nodes = self._proposal, self._nodes
        reading = await self._committer.readings.of(proposal, latest=self.is_undecided)
        head, sink, _ = reading
        # The sink's record may be newer than the head, and its commit's number is taken as well.
        taken = max(head.value.next_commit, sink.value.commit + 1 if sink else 0)
        ours = await self._find_unanswered(taken)
        if ours is not None:
            return ours
        decision = decide(
            head.value,
            sink.value if sink else None,
            proposal,
            now_ms=self._committer.clock_ms(),
            stream_name=nodes.name,
        )
        if isinstance(decision, AlreadyApplied):
            assert sink is not None, "it was applied before"
            return replace(await self._committer.log.of_record(sink.value), applied=False)
        if decision.commit.time_ms < head.value.time_ms:
            logger.warning(
                "stream %r: commit %d is dated %d s ahead of this clock, so its writer's clock or "
                "this one is wrong; the next commit takes the time of this clock",
                nodes.name,
                head.value.next_commit - 1,
                (head.value.time_ms - decision.commit.time_ms) // 1000,
            )
        if decision.commit.number % COMMITS_PER_BUCKET == 0:
            await self._make_bucket(decision.commit.number)
        return await self._prepared(decision, reading)

    async def _prepared(self, decision: Apply, reading: Reading) -> Prepared | None:
        """The transaction of a decision (rule T2). None: look again."""
        head, sink, over = reading
        nodes, config = self._nodes, await self._schemas.of_now()
        after, segments = with_new_schemas(
            config.value, decision.commit.segments, self._proposal.new_columns
        )
        commit = replace(decision.commit, segments=segments)
        grows = after is not config.value
        named = self._ledger_ids()
        try:
            refuse_dropping(named, config.value)
        except NoSuchLedgerError:
            if self._has_seen_list:
                raise
            self._has_seen_list = True  # it may be withdrawn by now, or our commit made before it
            await self._schemas.refresh()
            return None
        if not await self._check_ahead(named, config):
            return None
        assert commit.number == head.value.next_commit, "commits are numbered without gaps"
        assert commit.first_segment == head.value.next_segment, "so are segments"
        assert decision.head.next_segment == commit.end_segment, "the new head is behind its commit"
        operations: list[Operation] = [
            Check(nodes.identity_path(config.value.stream_id), 0),
            # A new schema version is there with its commit, or not at all (rule T19).
            Put(nodes.config_path, codec.encode_config(after), config.version)
            if grows
            else Check(nodes.config_path, config.version),
            Put(nodes.head_path, codec.encode_head(decision.head), head.version),
            Create(nodes.commit_path(commit.number), codec.encode_commit(commit, self._list)),
        ]
        operations += await checks_to_drop(
            nodes, config.value, head.value, decision.head, is_undecided=self.is_undecided
        )
        record = None
        if decision.sink is not None:
            record = Versioned(decision.sink, 0 if sink is None else sink.version + 1)
            path, data = nodes.sink_path(decision.sink.sink_id), codec.encode_sink(decision.sink)
            operations.append(Create(path, data) if sink is None else Put(path, data, sink.version))
        first_named = self._naming.unsettled(named)  # for all that is known (rule K4)
        again = self._existing.unknown(set(named).difference(first_named), config)
        of_ledgers = await self._naming.operations(first_named, self._whose())
        of_ledgers += self._existing.checks(again)
        return Prepared(
            commit=commit,
            operations=operations,
            of_ledgers=of_ledgers,
            config=Versioned(after, config.version + grows),
            grows=grows,
            named=named,
            first_named=first_named,
            again=again,
            leaves=Reading(Versioned(decision.head, head.version + 1), record, over),
        )

    async def _send(self, prepared: Prepared) -> Commit | None:
        """Send a transaction. None: it failed, its reply was lost, or it is outdated."""
        if prepared.leaves.over.has_ended:
            return None
        before, self._unanswered = self._unanswered, prepared.commit
        try:
            await self._nodes.store.transaction([*prepared.operations, *prepared.of_ledgers])
        except OutcomeUnknownError:
            return None
        except LedgerError as error:
            self._unanswered = before
            if not isinstance(error, ConflictError | NotFoundError):
                raise
            await self.refused(prepared, error)
            return None
        return self.applied(prepared)

    async def refused(self, prepared: Prepared, error: LedgerError) -> None:
        """Another commit was first, the configuration changed, or the stream is gone: read again.
        Raises NoSuchStreamError, and NoSuchLedgerError if rows of the commit were deleted."""
        self._committer.readings.refused()
        await self._schemas.refresh()
        if isinstance(error, NotFoundError):
            await self._refuse_deleted([*prepared.first_named, *prepared.again])

    def applied(self, prepared: Prepared) -> Commit:
        """The transaction took effect: keep what is known by that."""
        self._naming.named(prepared.first_named)
        if prepared.grows:
            self._schemas.grown(prepared.config)
        self._existing.exist(prepared.named, prepared.config.version)
        self._committer.heads.saw(prepared.leaves.head.value, prepared.leaves.over)
        self._committer.log.remember(prepared.commit, self._list)
        self._committer.readings.left(prepared.leaves)
        self._is_list_used = True
        return prepared.commit

    async def _find_unanswered(self, taken: int) -> Commit | None:
        """Our commit of the transaction whose reply was lost, if it was applied (rule T4).

        While its number is free the transaction may still arrive. Then it and its repetition
        expect the same version of the head, so at most one of them is applied. Once the number is
        taken, the commit that has it tells: it is ours only if the segments are the same as well,
        because a second driver may offer the same pair, with what it has written itself.
        """
        sent = self._unanswered
        if sent is None or sent.number >= taken:
            return None
        stored = await self._committer.log.get(sent.number)
        self._unanswered = None
        is_ours = (stored.sink_id, stored.transaction_id, stored.run_id, stored.segments) == (
            sent.sink_id,
            sent.transaction_id,
            sent.run_id,
            sent.segments,
        )
        self._is_list_used = is_ours
        if is_ours and self._proposal.may_grow:
            await self._schemas.refresh()  # the schema versions that it has added
        return stored if is_ours else None

    async def _make_bucket(self, number: int) -> None:
        """Create the parent node of a bucket's commits, unless it is there."""
        path = self._nodes.bucket_path(number)
        try:
            await self._nodes.store.create(path, b"", make_parents=False)
        except (ConflictError, NotFoundError, OutcomeUnknownError):
            return  # it is there, or gone with its stream: the transaction will tell

    # -- the ledgers of the commit -----------------------------------------------------------------

    def _ledger_ids(self) -> list[LedgerId]:
        """The ledgers that this commit names, each once."""
        ledger_ids = {segment.ledger_id for segment in self._proposal.segments}
        if self._list_ledger is not None:
            ledger_ids.add(self._list_ledger.ledger_id)
        return sorted(ledger_ids)

    def _whose(self) -> set[tuple[LedgerId, bytes]]:
        """Which ledgers of these ids are meant."""
        made = [] if self._list_ledger is None else [self._list_ledger]
        return self._proposal.incarnations | {(each.ledger_id, each.incarnation) for each in made}

    async def _name_ahead(self) -> None:
        """Name the ledgers that are too many for one transaction before the commit does.

        If it is not made then, they are nobody's: they stay until their stream is deleted.
        """
        lost = 0
        while len(unsettled := self._naming.unsettled(self._ledger_ids())) > self._ledgers_max:
            part, over = unsettled[: self._ledgers_max], OneConnection(self._nodes.store)
            try:
                await over.transaction(await self._naming.operations(part, self._whose()))
            except (ConflictError, NotFoundError, OutcomeUnknownError) as error:
                await self._refuse_deleted(part)
                lost += 1
                if lost == METADATA_ATTEMPTS:
                    raise self._gave_up() from error
            else:
                self._naming.named(part)

    async def _check_ahead(
        self, named: Sequence[LedgerId], config: Versioned[StreamConfig]
    ) -> bool:
        """See that ledgers exist that are too many for one transaction; false: look again."""
        nodes = self._nodes
        unsettled = set(self._naming.unsettled(named))
        settled = [each for each in named if each not in unsettled]
        unknown = self._existing.unknown(settled, config)
        ahead = max(0, len(unknown) - self._ledgers_max)
        for start in range(0, ahead, LEDGERS_NAMED_BY_COMMIT_MAX):
            part = unknown[start : start + LEDGERS_NAMED_BY_COMMIT_MAX]
            checks = [Check(nodes.config_path, config.version), *self._existing.checks(part)]
            try:
                await nodes.store.transaction(checks)
            except (ConflictError, NotFoundError, OutcomeUnknownError):
                await self._schemas.refresh()
                await self._refuse_deleted(part)
                return False
            self._existing.exist(part, config.version)
        return True

    async def _refuse_deleted(self, ledger_ids: Sequence[LedgerId]) -> None:
        """Raises NoSuchLedgerError, and nothing is committed, if one of the ledgers is gone."""
        try:
            await run_all(self._committer.ledgers.ledger_metadata(each) for each in ledger_ids)
        except NoSuchLedgerError as error:
            raise NoSuchLedgerError(
                f"stream {self._nodes.name!r}: nothing was committed by sink "
                f"{self._proposal.sink_id!r} in transaction {self._proposal.transaction_id}, "
                f"because a ledger with its rows was deleted: {error}. Its writer had ended so "
                "long before that no commit was expected; write the rows again"
            ) from error

    def _gave_up(self) -> LedgerError:
        if self.is_undecided:
            return _outcome_unknown(self._nodes.name, self._proposal)
        return RetryableError(
            f"stream {self._nodes.name!r}: other writers won every race for the next commit for "
            f"{COMMIT_TIMEOUT_S:.0f} s; nothing was committed: try again, with fewer writers"
        )

    # -- long segment lists ------------------------------------------------------------------------

    async def _store_long_list(self) -> None:
        """Put a segment list that is too long for a node into a ledger of its own.

        The list has no segment numbers, so it stays right whatever number the commit gets.
        """
        self._proposal, data = with_list_within(self._proposal, self._list_bytes_max)
        if len(data) <= self._list_bytes_max:
            return
        ledgers, config = self._committer.ledgers, self._schemas.config
        writer = await new_ledger(ledgers, config, PURPOSE_SEGMENT_LIST)
        self._list_ledger = writer
        size = ENTRY_PAYLOAD_BYTES_MAX // 4
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        async with written(self._committer.ledgers, writer):
            for part in parts:
                await writer.append_nowait(part)  # confirmed before a commit names it (rule T1)
        self._list = SegmentListPointer(writer.ledger_id, len(parts))

    async def clean_up(self) -> None:
        """Delete the list of a commit that was not made, whatever kept it from being made.

        Not after a lost reply: the commit may be there, and then its list is needed.
        """
        if self._list_ledger is None or self._is_list_used or self.is_undecided:
            return
        ledger, self._list_ledger = self._list_ledger, None
        whose = f"stream {self._nodes.name!r}, segment list of a commit that was not made"
        removal = drop_unnamed(self._committer.ledgers, [ledger], whose)
        await asyncio.shield(removal)  # also for a caller that was cancelled


def _outcome_unknown(stream_name: str, proposal: Proposal) -> OutcomeUnknownError:
    """The error for a commit whose transaction was sent, and then the store did not answer."""
    return OutcomeUnknownError(
        f"stream {stream_name!r}: the commit of sink {proposal.sink_id!r}, transaction "
        f"{proposal.transaction_id}, may or may not have taken effect, because the metadata "
        "store did not answer; repeating the same sink id and transaction id is safe"
    )
