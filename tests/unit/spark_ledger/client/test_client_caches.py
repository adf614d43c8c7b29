"""What caches hold is counted by name, with their bounds, as long as their owners live."""

from __future__ import annotations

import asyncio
import gc

from spark_ledger.client.caches import CacheSize, cache_sizes, watch_cache
from spark_ledger.limits.metadata import LEDGERS_SEEN_BYTES_MAX
from spark_ledger.limits.stream import COMMITS_KEPT_BYTES_MAX, PAGES_KEPT_BYTES_MAX
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.keeper.world import SCHEMA, rows


class Kept:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


def named(name: str) -> CacheSize | None:
    gc.collect()
    return next((each for each in cache_sizes() if each.name == name), None)


def test_caches_of_a_name_are_added_up_until_their_owners_are_gone() -> None:
    kept = [Kept(3), Kept(4)]
    for each in kept:
        watch_cache("of a test", each, lambda owner: owner.size_bytes, 10)
    assert named("of a test") == ("of a test", 2, 7, 20)
    kept[0].size_bytes = 9
    del kept[1], each
    assert named("of a test") == ("of a test", 1, 9, 10)
    kept.clear()
    assert named("of a test") is None


def test_every_cache_of_a_client_and_its_streams_is_counted() -> None:
    async def test(world: World) -> None:
        before = {each.name: each for each in cache_sizes()}
        stream = await StreamCatalog(await world.client()).create("s", SCHEMA)
        await stream.append(rows(1))
        bounds = {
            "commits": COMMITS_KEPT_BYTES_MAX,
            "ledgers": LEDGERS_SEEN_BYTES_MAX,
            "pages": PAGES_KEPT_BYTES_MAX,
        }
        for name, bytes_max in bounds.items():
            found = named(name)
            assert found is not None
            earlier = before.get(name, CacheSize(name, 0, 0, 0))
            assert found.caches >= 1 and found.bytes_max == found.caches * bytes_max
            assert name == "pages" or found.size_bytes > 0, (found, earlier)
        await stream.close()
        await asyncio.sleep(0)

    run_virtually(test)
