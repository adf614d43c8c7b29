"""Appends and commits to several streams at once: all of them have the rows, or none (rule T22)."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence

import pyarrow as pa

from spark_ledger.errors import MetadataRestoredError, NoSuchStreamError
from spark_ledger.limits.stream import STREAMS_PER_COMMIT_MAX
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.proposals import columns_of, new_proposal
from spark_ledger.stream.commit.together import check_how_many, commit_together
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.format.arrow_types import AsyncRows
from spark_ledger.stream.model import Commit, Segment
from spark_ledger.stream.stream import Stream
from spark_ledger.tasks import cancel


class AppendedStreams:
    """Appends to several streams by name, and keeps their handles, with open ledgers, for the next
    time. Bound to one event loop."""

    def __init__(self, streams: StreamCatalog) -> None:
        self._streams = streams
        self._handles: OrderedDict[str, Stream] = OrderedDict()
        self._uses: Counter[Stream] = Counter()
        """Calls that use a handle now: one that is in use is not closed."""

    async def append_to(
        self,
        data: Mapping[str, AsyncRows],
        *,
        sink_id: str | None = None,
        transaction_id: int | None = None,
        run_id: str = "",
        merge_schema: bool = False,
    ) -> dict[str, Commit]:
        """Append rows to several streams, each as one commit, all in one transaction.

        A repetition of a sink id and transaction id for the same streams changes nothing. Raises as
        ``commit_to`` and ``Stream.append``: nothing is committed to any of them then.
        """
        check_how_many(list(data))  # before each has a ledger, and a thread for rows to come
        new_proposal("append_to", sink_id, transaction_id, run_id, False, None)  # checks the ids
        used: list[Stream] = []
        lost: list[Stream] = []
        try:
            opened = {name: await self._open(name, used) for name in data}
            columns = [columns_of(rows) if merge_schema else None for rows in data.values()]
            written = await run_all(
                opened[name].write(rows, merge_schema=merge_schema) for name, rows in data.items()
            )
            commits = await commit_to(
                list(zip(opened.values(), written, strict=True)),
                sink_id=sink_id,
                transaction_id=transaction_id,
                run_id=run_id,
                new_columns=columns,
            )
        except MetadataRestoredError:  # which a handle raises for good (rule T5)
            lost = used
            raise
        finally:
            self._uses -= Counter(used)
            await self._close_unused(lost)
            await self._close_oldest()
        return dict(zip(data, commits, strict=True))

    async def _open(self, name: str, used: list[Stream]) -> Stream:
        """The handle of the stream that has the name now, which is added to ``used``."""
        known = self._handles.get(name)
        if known is None:
            opened = await self._streams.open(name)
            known = self._handles.setdefault(name, opened)  # another call may have opened it too
        else:
            opened = None
        self._handles.move_to_end(name)
        self._uses[known] += 1  # before anything else is awaited
        used.append(known)
        if known is opened:
            return known
        try:
            await known.refresh()
        except NoSuchStreamError:
            if self._handles.get(name) is known:
                del self._handles[name]
            await known.close()
            return await self._open(name, used)
        return known

    async def _close_unused(self, lost: Sequence[Stream]) -> None:
        """Keep none of these. Of one that another call uses that one finds the same, or it is well:
        it is kept until then."""
        names = [n for n, each in self._handles.items() if each in lost and not self._uses[each]]
        for handle in [self._handles.pop(name) for name in names]:
            await handle.close()

    async def _close_oldest(self) -> None:
        """Keep no more than a few commits need, of those that nobody uses."""
        unused = [name for name, handle in self._handles.items() if not self._uses[handle]]
        over = max(0, len(self._handles) - 2 * STREAMS_PER_COMMIT_MAX)
        for handle in [self._handles.pop(name) for name in unused[:over]]:
            await handle.close()

    async def close(self) -> None:
        """Close the ledgers. Idempotent."""
        while self._handles:
            _, handle = self._handles.popitem()
            await handle.close()


async def wait_for_any(after: Sequence[tuple[Stream, int]], timeout_s: float) -> None:
    """Wait until one of the streams has a segment above the number given for it, is gone, or the
    time is over."""
    waits = [
        asyncio.ensure_future(each.wait_for_commit(after_segment=number, timeout_s=timeout_s))
        for each, number in after
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*waits)  # the next question meets the error


async def commit_to(
    parts: Sequence[tuple[Stream, Sequence[Segment]]],
    *,
    sink_id: str | None = None,
    transaction_id: int | None = None,
    run_id: str = "",
    new_columns: Sequence[pa.Schema | None] = (),
) -> list[Commit]:
    """Commit segments that writers finished to several streams, all in one transaction.

    ``new_columns`` has for each stream those that it gets if it lacks them. Raises ConflictError if
    the transaction was applied in some of the streams only, and as ``Stream.commit_segments``.
    """
    if not parts:
        return []
    offered = []
    for (stream, segments), columns in zip(parts, new_columns or [None] * len(parts), strict=True):
        proposal = new_proposal("commit", sink_id, transaction_id, run_id, False, columns)
        offered.append(await stream.offered(proposal, segments))
    commits = await commit_together(offered)
    for stream, _ in parts:
        stream.committed()
    return commits
