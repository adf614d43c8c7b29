"""What an operator reads of packs that were made, or would be: commits, rows and entries."""

from __future__ import annotations

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.packs.optimizer import Packed
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, run, table


@pytest.mark.parametrize("dry_run", [False, True])
def test_report_counts_what_was_read_by_commits_segments_rows_and_entries(dry_run: bool) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA, entry_bytes=1024)
        for number in range(4):
            segments = []
            for rows in (1, 150):
                writer = stream.writer()
                await writer.write(table(number, rows))
                segments += await writer.finish()
                await writer.close()
            await stream.commit_segments(segments)
        before = len(ledgers.ledgers)
        commits = await stream.commits(0, 4)
        parts = [segment for commit in commits for segment in commit.segments]
        entries = [segment.entries for segment in parts]
        assert len(parts) == 8 and sum(entries) == 16, "some segments have several entries"
        (packed,) = await stream.optimizer.run_all(
            entry_bytes=1 << 20, entries_min=sum(entries), dry_run=dry_run
        )
        assert packed == Packed(
            first=0,
            commits=4,
            segments=8,
            rows=4 * 151,
            size_bytes=sum(segment.size_bytes for segment in parts),
            former_entries=sum(entries),
            pack=packed.pack,
        )
        assert (packed.pack is None) == dry_run
        assert len(ledgers.ledgers) - before == (not dry_run)
        if packed.pack is not None:
            assert (packed.pack.rows, packed.pack.entries) == (4 * 151, 1)
        more = await stream.optimizer.run_all(entry_bytes=1 << 20, entries_min=sum(entries) + 1)
        assert more == []

    run(scenario())
