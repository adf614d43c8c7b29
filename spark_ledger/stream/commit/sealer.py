"""Seals commits: moves them from metadata nodes into manifests, after every fiftieth commit.

Whoever made that commit does it in the background: a commit never fails for it, and waits only
where too much is left undone. One transaction replaces the root and deletes the nodes that it has
in leaves (rule T11), so a crash leaves at most a ledger that no root has named. It has the purpose
``manifest`` and the id of its stream. Ledgers that leaves have left are a keeper's to delete
(rule T12).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    MetadataRestoredError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import Check, Create, Delete, Operation, Put
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.format import codec
from spark_ledger.stream.ledgers import (
    PURPOSE_MANIFEST,
    Ledgers,
    OpenLedger,
    drop_unnamed,
    named_as_made,
    new_ledger,
    written,
)
from spark_ledger.stream.manifest.format import encode_index, encode_leaf, encode_root
from spark_ledger.stream.manifest.tree import (
    ManifestRoot,
    PagePointer,
    empty_root,
    index_pointer,
    leaf_pointer,
)
from spark_ledger.stream.model import Commit
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.stream.schema_registry import SchemaRegistry
from spark_ledger.types import LedgerId, Quorums

if TYPE_CHECKING:
    from spark_ledger.stream.manifest.tree import Page

logger = logging.getLogger(__name__)

COMMITS_KEPT_AS_NODES: Final = 50
"""The newest commits stay in the metadata: readers that keep up read them there, from one node."""

SEAL_EVERY: Final = 50
"""After so many commits somebody looks whether a leaf is full."""

LEAVES_PER_SEAL_MAX: Final = 10
"""Leaves of one transaction, for a stream of the former format: a thousand nodes are deleted."""

SEAL_BUDGET_S: Final = 1.0
"""No step is begun after so long: a stream of the former format is sealed little by little."""

UNSEALED_MAX: Final = 400
"""With more commits that have nodes, a third of a megabyte, every fiftieth waits for the sealing.
They are so many where writers are faster than it, or where processes end right behind a commit, as
those that commit for Spark may: in those it would never get done."""

SEAL_WAIT_S: Final = 0.5
"""So long does it wait. A leaf takes some 30 ms."""

SEAL_CLOSE_S: Final = 2.0
"""How long the handle of a stream waits for it when it is closed."""

_READS_AT_ONCE: Final = 4
"""Leaves that are read at once to be merged: commits are made meanwhile, on the same loop."""

_SENDS_MAX: Final = 3
"""How often a transaction is sent whose replies are lost."""

_MANIFEST_QUORUMS: Final = Quorums(3, 3, 2)
"""At least so many copies: without the manifests none of the stream's rows could be found."""


class _Before(NamedTuple):
    """A root with its version, and over which connection it was read with all that is decided by
    it."""

    value: ManifestRoot
    version: int
    reading: OneConnection


class Sealer:
    """Seals the commits of one stream. Any number of them may work on one stream."""

    def __init__(
        self, ledgers: Ledgers, nodes: StreamNodes, log: CommitLog, schemas: SchemaRegistry
    ) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self._log = log
        self._manifests = log.manifests
        self._schemas = schemas
        self._work: asyncio.Task[None] | None = None
        self._wanted = 0
        self._told = ""

    async def after_commit(self, number: int) -> None:
        """Have sealed what is to be sealed now that this commit was made. Never raises."""
        if (number + 1) % SEAL_EVERY:
            return
        self._wanted = max(self._wanted, number + 1)
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._seal_quietly())
        known = self._manifests.versioned
        if number + 1 - (0 if known is None else known.value.sealed) > UNSEALED_MAX:
            await asyncio.wait([self._work], timeout=SEAL_WAIT_S)

    async def close(self) -> None:
        """Wait for the sealing under way, for a moment."""
        if self._work is not None:
            await asyncio.wait([self._work], timeout=SEAL_CLOSE_S)

    async def _seal_quietly(self) -> None:
        """Seal until nothing is left of what was wanted, also meanwhile; or until it fails."""
        end = 0
        while end < self._wanted:
            end = self._wanted
            try:
                await self.seal(end)
            except LedgerError as error:
                self._tell(f"commits up to {end - 1} are left to the next that seals", error)
                return

    def _tell(self, what: str, error: LedgerError) -> None:
        """Log why something is not done: loudly, once, what does not pass by itself."""
        lasts = isinstance(error, (CorruptionError, ConfigurationError, NotFoundError))
        if isinstance(error, NoSuchStreamError) or str(error) == self._told:
            lasts = False
        self._told = str(error) if lasts else self._told
        level = logging.WARNING if lasts else logging.DEBUG
        logger.log(level, "stream %r: %s: %s", self._nodes.name, what, error)

    async def seal(self, end: int) -> None:
        """Seal commits below ``end``, of which all are made, in whole leaves.

        Raises what the metadata and the bookies answer; then the commits stay where they are. Pages
        that cannot be merged, as one of them is lost, keep no commit from being sealed. What was
        read before the connection broke is not sealed behind it: it may be of lost commits.
        """
        if not self._schemas.config.has_manifests and not await self._upgrade():
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SEAL_BUDGET_S
        reading = OneConnection(self._nodes.store)
        await self._manifests.read_root()
        failure: LedgerError | None = None
        may_merge = True
        while loop.time() < deadline and not reading.has_ended:
            known = self._manifests.versioned
            if known is None:
                return  # this metadata server lags, or the stream is gone
            root = known.value
            before = _Before(root, known.version, reading)
            level = root.level_to_merge() if may_merge else None
            leaves = (end - COMMITS_KEPT_AS_NODES - root.sealed) // root.leaf_commits
            if level is not None:
                try:
                    may_merge = await self._merge(before, level)
                except LedgerError as error:
                    may_merge, failure = False, error
                if not may_merge:
                    await self._manifests.read_root()
            elif leaves <= 0 or not await self._seal_leaves(
                before, min(leaves, LEAVES_PER_SEAL_MAX)
            ):
                break
        if failure is not None:
            raise failure

    async def _upgrade(self) -> bool:
        """Give a stream of the former format manifests; whether it has them now (rule T13)."""
        before = await self._schemas.of_now()  # nothing is waited for until it is sent
        after = replace(before.value, has_manifests=True)
        root = empty_root(after.stream_id)
        # Refused: somebody else did it, the schema changed, or the stream is gone.
        with suppress(ConflictError, NotFoundError, OutcomeUnknownError):
            await self._nodes.store.transaction(
                [
                    Check(self._nodes.identity_path(after.stream_id), 0),
                    Put(self._nodes.config_path, codec.encode_config(after), before.version),
                    Create(self._nodes.manifests_path, encode_root(root)),
                ]
            )
        return (await self._schemas.refresh()).has_manifests

    # -- leaves ------------------------------------------------------------------------------------

    async def _seal_leaves(self, before: _Before, leaves: int) -> bool:
        """Move the oldest commits that have nodes into so many leaves; whether it was done."""
        root, first = before.value, before.value.sealed
        gone = min(leaves, root.dropped_leaves())
        if gone:
            after = root.without_leaves(gone)
            return await self._replace(before, after, self._node_deletes(first, after.sealed))
        numbers = range(first, first + leaves * root.leaf_commits)
        parts = [range(start, start + root.leaf_commits) for start in numbers[:: root.leaf_commits]]
        stored = await self._log.stored(numbers)
        commits = {number: each.commit for number, each in stored.items()}
        for page in root.pages()[-1:]:
            # A root whose pages are not in order cannot be read, and with it none of their commits.
            known = page.pointer
            reached = (known.first_segment, known.rows_before, known.bytes_before)
            self._check_order(page.first, reached, commits[first])
        for number in numbers[1:]:
            one = commits[number - 1]
            reached = (one.end_segment, one.rows_before, one.bytes_before)
            self._check_order(one.number, reached, commits[number])
        stream_id = root.stream_id
        pages = [encode_leaf(stream_id, part[0], [stored[n].node for n in part]) for part in parts]
        ledger = await self._write(lambda _: pages)
        after = root.with_leaves(
            [
                leaf_pointer(ledger.ledger_id, entry, [commits[n] for n in part])
                for entry, part in enumerate(parts)
            ]
        )
        deletes = self._node_deletes(first, after.sealed)
        if not await self._replace(before, after, deletes, made=[ledger], holds=first):
            return False
        self._manifests.keep(ledger.ledger_id, pages)  # to be merged without being read
        return True

    def _node_deletes(self, first: int, end: int) -> list[Operation]:
        """The nodes of these commits go, and the buckets that are empty then."""
        full = range(first // COMMITS_PER_BUCKET, end // COMMITS_PER_BUCKET)
        commits = [Delete(self._nodes.commit_path(number)) for number in range(first, end)]
        return [*commits, *(Delete(self._nodes.bucket_path_of(bucket)) for bucket in full)]

    def _check_order(self, number: int, reached: tuple[int, int, int], other: Commit) -> None:
        """Nothing damaged is sealed: its node, which says what is wrong, would be gone. A commit
        before it has reached so many segments, rows and bytes."""
        after = (other.first_segment, other.rows_before, other.bytes_before)
        if any(late < early for early, late in zip(reached, after, strict=True)):
            raise CorruptionError(
                f"stream {self._nodes.name!r}: commit {other.number} begins before commit "
                f"{number} ends; commits from there on are not moved into manifests"
            )

    # -- pages above -------------------------------------------------------------------------------

    async def _merge(self, before: _Before, level: int) -> bool:
        """Put a page above the oldest pages of a level that are named by the root alone.

        Leaves move along, into the ledger of that page: otherwise each hundred commits would keep
        a ledger of their own. Pages above leaves stay where they are, and so do all leaves if one
        of them is lost or damaged: else the root would name each of those behind it, for ever.
        """
        root = before.value
        pages = [page for page in root.pages() if page.level == level][: root.fan_out]
        leaves, damage = await self._leaves(root, pages) if level == 0 else ([], None)
        named: list[PagePointer] = [page.pointer for page in pages]
        left = sorted(await self._left(root, pages)) if leaves else []

        def written(ledger_id: LedgerId) -> list[bytes]:
            if leaves:
                named[:] = _moved(pages, ledger_id)
            above = encode_index(root.stream_id, level + 1, pages[0].first, named, left)
            return [*leaves, above]

        ledger = await self._write(written)
        above = index_pointer(ledger.ledger_id, len(leaves), named)
        after = root.merged(level, above)
        if not await self._replace(before, after, [], made=[ledger], holds=pages[0].first):
            return False
        self._manifests.forget(left)
        if damage is not None:  # not only a root that was old
            first, end = pages[0].first, pages[-1].first + root.leaf_commits
            self._tell(f"manifests of commits {first} to {end - 1} stay where they are", damage)
        return True

    async def _leaves(
        self, root: ManifestRoot, pages: Sequence[Page]
    ) -> tuple[list[bytes], LedgerError | None]:
        """The bytes of leaves that are to move; none if one of them cannot be read, and why."""
        leaves: list[bytes] = []
        try:
            for start in range(0, len(pages), _READS_AT_ONCE):
                some = pages[start : start + _READS_AT_ONCE]
                leaves += await run_all(self._manifests.leaf_bytes(root, page) for page in some)
        except MetadataRestoredError:
            raise
        except (NotFoundError, CorruptionError) as error:
            return [], error
        return leaves, None

    async def _left(self, root: ManifestRoot, pages: Sequence[Page]) -> set[LedgerId]:
        """The ledgers in which no page is any more once these leaves have moved."""
        left = {LedgerId(page.pointer.ledger_id) for page in pages}
        left -= {LedgerId(p.pointer.ledger_id) for p in root.pages() if p not in pages}
        first, ledger_id = pages[0].first, LedgerId(pages[0].pointer.ledger_id)
        if pages[0].pointer.entry_id and first > root.dropped:
            # The leaf before it was sealed with it, and has moved; or it stayed where it is.
            try:
                page = (await self._manifests.path(root, first - 1))[-1]
            except MetadataRestoredError:
                raise
            except (NotFoundError, CorruptionError):
                return left - {ledger_id}
            left.discard(LedgerId(page.pointer.ledger_id))
        return left

    # -- ledgers and the root ----------------------------------------------------------------------

    async def _write(self, make: Callable[[LedgerId], Sequence[bytes]]) -> OpenLedger:
        """A new ledger with these entries, all confirmed (rule T1), and closed."""
        ledger = await self._create()
        appends: list[asyncio.Future[int]] = []
        try:
            async with written(self._ledgers, ledger):
                for page in make(ledger.ledger_id):
                    await ledger.wait_for_room()
                    appends.append(ledger.append_nowait(page))
                ended = await asyncio.gather(*appends, return_exceptions=True)
                for failure in ended:
                    if isinstance(failure, BaseException):
                        raise failure
                assert ended == list(range(len(ended))), "nothing else is in this ledger"
        except LedgerError:
            await self._drop([ledger])
            raise
        return ledger

    async def _create(self) -> OpenLedger:
        config = self._schemas.config
        own, least = config.quorums, _MANIFEST_QUORUMS
        safer = Quorums(*(max(pair) for pair in zip(_sizes(own), _sizes(least), strict=True)))
        try:
            return await self._create_with(safer)
        except NotEnoughBookiesError:
            return await self._create_with(own)

    async def _create_with(self, quorums: Quorums) -> OpenLedger:
        return await new_ledger(self._ledgers, self._schemas.config, PURPOSE_MANIFEST, quorums)

    async def _replace(
        self,
        before: _Before,
        after: ManifestRoot,
        deletes: Sequence[Operation],
        *,
        made: Sequence[OpenLedger] = (),
        holds: int = 0,
    ) -> bool:
        """Replace the root in the version that was read, and delete the nodes; whether it was done.
        It is sent over the connection over which all of it was read, and over no other (rule T2).

        ``made`` are the ledgers with the new pages, if there are any, and ``holds`` a commit behind
        them. If the transaction has not named them they are deleted, and it takes no effect any
        more (rule T12).
        """
        try:
            return await self._send(before, after, deletes, made, holds)
        except LedgerError:
            await self._drop(made)
            raise

    async def _send(
        self,
        before: _Before,
        after: ManifestRoot,
        deletes: Sequence[Operation],
        made: Sequence[OpenLedger],
        holds: int,
    ) -> bool:
        nodes = self._nodes
        operations = [
            Check(nodes.identity_path(after.stream_id), 0),
            Check(nodes.config_path, (await self._schemas.of_now()).version),
            Put(nodes.manifests_path, encode_root(after), before.version),
            *deletes,
            *await named_as_made(self._ledgers, made),
        ]
        is_undecided = False
        for _ in range(_SENDS_MAX):
            try:
                await before.reading.transaction(operations)
            except OutcomeUnknownError:
                is_undecided = True
            except (ConflictError, NotFoundError):
                if not is_undecided:
                    await self._drop(made)
                    await self._schemas.refresh()
                    return False
            else:
                self._ledgers.naming.named([each.ledger_id for each in made])
                if not before.reading.has_ended:  # else it may be undone
                    self._manifests.wrote(after, before.version + 1)
                return True
            found = await self._find(before, made, holds)
            if found is not None:
                return found
        await self._drop(made)  # if it still arrives it is refused then
        return False

    async def _find(self, before: _Before, made: Sequence[OpenLedger], holds: int) -> bool | None:
        """Whether a transaction whose reply was lost was applied; None while it may still be."""
        await self._manifests.read_root(latest=True)
        newest = self._manifests.versioned
        if newest is None or newest.version == before.version:
            return None
        if not made:
            return True  # of whoever replaced it: the next look says what is left to do
        if await self._manifests.search(lambda root: self._names(root, made, holds)):
            return True
        await self._drop(made)
        return False

    async def _names(self, root: ManifestRoot, made: Sequence[OpenLedger], commit: int) -> bool:
        """Whether a page behind which a commit lies is in one of these ledgers."""
        if commit >= root.sealed:
            return False
        path = await self._manifests.path(root, commit)
        named = {page.pointer.ledger_id for page in path}
        return any(each.ledger_id in named for each in made)

    async def _drop(self, made: Sequence[OpenLedger]) -> None:
        """Delete ledgers that no root names and none will."""
        whose = f"stream {self._nodes.name!r}, manifests"
        await drop_unnamed(self._ledgers, made, whose)


def _sizes(quorums: Quorums) -> tuple[int, int, int]:
    return (quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum)


def _moved(pages: Sequence[Page], ledger_id: LedgerId) -> list[PagePointer]:
    """The pointers of leaves that are the first entries of another ledger."""
    return [
        msgspec.structs.replace(page.pointer, ledger_id=ledger_id, entry_id=entry)
        for entry, page in enumerate(pages)
    ]
