"""Finds what was stored of commits, by number: in manifests, or in metadata nodes of their own.

A commit is in one of the two (rule T11). The root of the manifests that is known here may be old:
a node that is not there any more was sealed since, so the root is read again. Nothing is decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from spark_ledger.errors import CorruptionError, DataLossError, NotFoundError
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.manifest.format import decode_leaf
from spark_ledger.stream.manifest.store import ManifestStore
from spark_ledger.stream.manifest.tree import COMMITS_PER_LEAF, ManifestRoot
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes, bucket_of

T = TypeVar("T")

GETS_IN_FLIGHT_MAX: Final = 64
"""Parallel metadata reads: enough to hide the round trip, few enough to be polite."""

UNSEALED_IN_BUCKET_MANY: Final = 2 * COMMITS_PER_LEAF
"""More commits of one bucket are without manifests only in a stream of the former format. Its
buckets have summaries; to read a thousand commits one by one takes most of a second."""

logger = logging.getLogger(__name__)


class CommitNodes:
    """The stored commits of one stream. Bound to one event loop."""

    def __init__(
        self,
        nodes: StreamNodes,
        manifests: ManifestStore,
        stream_id: str,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``check`` looks whether the stream is as it was seen before (``History.check``); it is
        called behind each look, and its error raised in place of what was found."""
        self._nodes = nodes
        self._manifests = manifests
        self._stream_id = stream_id
        self._gets = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)
        self._check = check

    async def get(self, number: int) -> bytes:
        """The node of a commit.

        Raises NoSuchStreamError if the stream was deleted, DataLossError if the commit was
        truncated, NotFoundError if it is not made yet, CorruptionError if it is missing, and what
        ``check`` raises.
        """
        return await self._checked(self._find(number))

    async def _checked(self, look: Awaitable[T]) -> T:
        """What a look finds, of a stream that is the one that was seen before."""
        try:
            found = await look
        except (NotFoundError, CorruptionError):
            if self._check is not None:
                await self._check()
            raise
        if self._check is not None:
            await self._check()
        return found

    async def _find(self, number: int) -> bytes:
        sealed = await self._sealed(number)
        if sealed is not None:
            return sealed
        path = self._nodes.commit_path(number)
        async with self._gets:
            with suppress(NotFoundError):
                return (await self._nodes.store.get(path)).value
            if number >= (await self._manifests.root()).sealed:
                await self._manifests.read_root(latest=True)
            sealed = await self._sealed(number)
            if sealed is not None:
                return sealed
            try:  # a server that lagged did not know it yet
                return (await self._nodes.store.get_latest(path)).value
            except NotFoundError as error:
                raise await self._why_missing(number) from error

    async def _sealed(self, number: int) -> bytes | None:
        async def look(root: ManifestRoot) -> bytes | None:
            if number >= root.sealed:
                return None
            first, nodes = await self._manifests.leaf(root, number)
            return nodes[number - first]

        return await self._manifests.search(look)

    async def get_all(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """The nodes of ascending commits, in parallel. Raises as ``get``."""
        return await self._checked(self._find_all(numbers)) if numbers else {}

    async def _find_all(self, numbers: Sequence[int]) -> dict[int, bytes]:
        root = await self._manifests.root()
        if numbers[-1] >= root.sealed + root.leaf_commits:
            root = await self._manifests.read_root()  # by now more may be sealed
        leaves: defaultdict[int, list[int]] = defaultdict(list)
        buckets: defaultdict[int, list[int]] = defaultdict(list)
        sealed, leaf_commits = root.sealed, root.leaf_commits
        for number in numbers:
            if number < sealed:
                leaves[number // leaf_commits].append(number)
            else:
                buckets[bucket_of(number)].append(number)
        if leaves:
            await self._load(leaves)
        found: dict[int, bytes] = {}
        for part in await run_all(
            [
                *(self._of_leaf(members) for members in leaves.values()),
                *(self._of_bucket(bucket, members) for bucket, members in buckets.items()),
            ]
        ):
            found.update(part)
        return found

    async def _load(self, leaves: Mapping[int, Sequence[int]]) -> None:
        """Have the manifests read several leaves together, if all between are wanted."""
        first, last = min(leaves), max(leaves)
        if len(leaves) > 1 and len(leaves) == last - first + 1:
            ends = leaves[first][0], leaves[last][-1] + 1
            await self._manifests.search(lambda root: self._manifests.load(root, *ends))

    async def _of_leaf(self, numbers: list[int]) -> dict[int, bytes]:
        async def look(root: ManifestRoot) -> dict[int, bytes] | None:
            if numbers[-1] >= root.sealed:
                return None
            first, nodes = await self._manifests.leaf(root, numbers[0])
            return {number: nodes[number - first] for number in numbers}

        found = await self._manifests.search(look)
        if found is None:  # a restored store has sealed less, or those commits are gone with it
            nodes = await run_all(self._find(number) for number in numbers)
            found = dict(zip(numbers, nodes, strict=True))
        return found

    async def _of_bucket(self, bucket: int, numbers: list[int]) -> dict[int, bytes]:
        summary: tuple[bytes, ...] = ()
        first = bucket * COMMITS_PER_BUCKET
        if len(numbers) > UNSEALED_IN_BUCKET_MANY:
            summary = await self._summary(bucket, first)
        found = {n: summary[n - first] for n in numbers if n - first < len(summary)}
        found = {number: node for number, node in found.items() if node}
        rest = [number for number in numbers if number not in found]
        found.update(zip(rest, await run_all(self._find(n) for n in rest), strict=True))
        return found

    async def _summary(self, bucket: int, first: int) -> tuple[bytes, ...]:
        """The nodes that the summary of a bucket repeats, which a program of before wrote. Those
        that it left out are empty. Without it the commits' own nodes tell."""
        path = self._nodes.bucket_path_of(bucket)
        try:
            async with self._gets:
                node = await self._nodes.store.get(path)
            return decode_leaf(node.value, self._stream_id, first, path) if node.value else ()
        except NotFoundError:
            return ()
        except CorruptionError as error:
            logger.warning("%s; its commits are read one by one", error)
            return ()

    async def _why_missing(self, number: int) -> Exception:
        """The error that says why a commit is not there."""
        name = self._nodes.name
        config = await self._nodes.config()
        if config.value.deleted:
            return self._nodes.no_such_stream()
        head = (await self._nodes.head()).value
        if number < head.earliest_commit:
            return DataLossError(
                f"stream {name!r}: commit {number} was truncated; the earliest is "
                f"{head.earliest_commit}"
            )
        if number >= head.next_commit:
            return NotFoundError(f"stream {name!r}: commit {number} is not made yet")
        return CorruptionError(
            f"stream {name!r}: metadata node {self._nodes.commit_path(number)} is missing, "
            f"although the stream has commits up to {head.next_commit - 1}"
        )
