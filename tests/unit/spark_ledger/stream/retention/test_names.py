"""What a stream names, as far as dropped commits can be read (rule K9)."""

from __future__ import annotations

import pytest

from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.retention.names import names_of
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_streams import closed_commits
from tests.unit.spark_ledger.keeper.world import new_stream
from tests.unit.spark_ledger.stream.world import small_manifests


async def named_by_all(world: World, stream: Stream) -> set[LedgerId]:
    """As one who comes now finds it."""
    log = CommitLog(await world.client(), stream._nodes, stream.config.stream_id)
    found: set[LedgerId] = set()
    async for part in names_of(stream._nodes, log, await stream.head()):
        found |= part.ledgers
    return found


def test_names_of_dropped_commits_where_a_page_is_gone_lack_only_those_of_that_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch)

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await closed_commits(world, stream, 9)
        named = await stream._log.ledgers(range(9))
        await stream.retention.truncate((8,))
        assert await named_by_all(world, stream) >= {each for n in named for each in named[n].rows}
        log = CommitLog(client, stream._nodes, stream.config.stream_id)
        await log.manifests.read_root(latest=True)
        places = {
            page.first: LedgerId(page.pointer.ledger_id)
            async for page in log.manifests.walk()
            if not page.level
        }
        # A keeper was killed behind the first ledger of pages that it deleted.
        await LedgerStore(client.store).delete(places[0])
        there = [n for n in range(8) if places.get(n - n % 2) != places[0]]
        assert 0 < len(there) < 8
        left = await named_by_all(world, stream)
        assert left >= {each for n in there for each in named[n].rows}

    run(test)
