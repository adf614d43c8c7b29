"""``ledger cluster usage``: sums over streams and bookies, the rate, and how many days are left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.cli import inspection, usage
from spark_ledger.cli.usage import BookieUsage, Held, Usage, measure
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import BookieUnavailableError, DataLossError, MetadataUnavailableError
from spark_ledger.limits import GIB, MIB
from spark_ledger.metadata.base import StoreSize
from spark_ledger.metadata.bookies import COOKIES_PATH, BookieRegistry
from spark_ledger.metadata.collection import (
    COLLECTION_PATH,
    CollectionNode,
    PassReport,
    collection_path,
)
from spark_ledger.metadata.cookies import BookieCookie, encode_cookie
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.ledgers import LEDGERS_PATH, LedgerStore, ledger_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.metadata.zookeeper.size import parse_size
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format.codec import encode_head
from spark_ledger.stream.ledgers import ledger_tags
from spark_ledger.stream.model import Retention
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.retention.handle import Extent
from spark_ledger.transport.base import BookieDescription
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.client.world import World
from tests.unit.spark_ledger.client.world import run as run_in_world
from tests.unit.spark_ledger.keeper.test_streams import closed_commits
from tests.unit.spark_ledger.keeper.world import new_stream

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)

NOW_S = 2_000_000_000.0
HOUR_MS = 3_600_000


class Bookies:
    """Two bookies that answer, and one that does not."""

    async def describe(self, bookie_id: str, *, timeout_s: float) -> BookieDescription:
        if bookie_id == "c":
            raise BookieUnavailableError("silent")
        return BookieDescription(
            BookieId(bookie_id), "c", "1", "writable", 7, 0, 0, 10 * GIB, 0.0, 1
        )


def ledger(
    ledger_id: int,
    length: int | None,
    *,
    hours_ago: float = 1.0,
    stream: str = "",
    entries: int = 100,
    fragments: Sequence[tuple[int, str]] = ((0, "abc"),),
) -> LedgerMetadata:
    """A ledger on bookies a, b, c; closed if it has a length."""
    parts = [
        Fragment(EntryId(first), tuple(BookieId(letter) for letter in bookies))
        for first, bookies in fragments
    ]
    return LedgerMetadata(
        LedgerId(ledger_id),
        Quorums(len(parts[0].bookies), 2, 2),
        parts,
        state=LedgerState.OPEN if length is None else LedgerState.CLOSED,
        last_entry_id=EntryId(-1 if length is None else entries - 1),
        length=length or 0,
        creation_time_ms=int(NOW_S * 1000 - hours_ago * HOUR_MS),
        custom_metadata=ledger_tags(stream, f"id-of-{stream}", "segments") if stream else {},
    )


async def no_extent(name: str) -> Extent:
    """Of a stream whose manifests cannot be read."""
    raise DataLossError(f"{name}: the manifests are on bookies that are down")


def measured(*ledgers: LedgerMetadata, store: MemoryMetadataStore | None = None) -> Usage:
    async def run() -> Usage:
        found = store or MemoryMetadataStore(MemoryTree())
        report = PassReport(reclaimable_bytes=5 * MIB)
        node = CollectionNode(mark="m", report=report)
        await found.create(collection_path(BookieId("a")), encode_node(node))
        for bookie in "abc":
            cookie = BookieCookie("c", bookie, "j", ("l",), "i")
            await found.create(f"{COOKIES_PATH}/{bookie}", encode_cookie(cookie))
        for bookie in "ac":
            await BookieRegistry(found).register(BookieInfo(BookieId(bookie), f"{bookie}:1"))
        for each in ledgers:
            await LedgerStore(found).create(each)
        transport: Any = Bookies()
        return await measure(found, transport, lambda _steps: None, no_extent, now_s=lambda: NOW_S)

    return asyncio.run(run())


def test_ledgers_count_for_their_stream_or_for_none() -> None:
    found = measured(
        ledger(1, 1000, stream="orders"), ledger(2, None, stream="orders"), ledger(3, 50)
    )
    orders = found.streams["id-of-orders"]
    assert (orders.name, orders.exists, orders.held) == ("orders", False, Held(2, 1, 1000, 2000))
    assert found.raw == Held(1, 0, 50, 100)
    assert found.total == Held(3, 1, 1050, 2100)
    assert found.metadata_nodes is not None and found.metadata_bytes is not None


def test_damaged_nodes_are_in_no_sum_and_are_told() -> None:
    store = MemoryMetadataStore(MemoryTree())
    asyncio.run(store.create(ledger_path(LedgerId(7)), b"{"))
    asyncio.run(store.create(StreamNodes(store, "orders").head_path, b"{"))
    found = measured(ledger(1, 1000), ledger(3, 50), store=store)
    assert found.total == Held(2, 0, 1050, 2100)
    assert found.unknown == 2 and "orders" in found.unknown_why


def test_bytes_of_a_ledger_are_shared_out_by_its_fragments() -> None:
    found = measured(
        ledger(1, 1000, entries=10, fragments=((0, "ab"), (4, "bc"))),
        ledger(2, 1001, entries=10, fragments=((0, "ab"), (10, "bd"))),
    )
    live = {bookie_id: bookie.live_bytes for bookie_id, bookie in found.bookies.items()}
    assert live == {"a": 400 + 1001, "b": 1000 + 1001, "c": 600, "d": 0}
    assert sum(live.values()) == found.total.replicated_bytes


def test_no_byte_of_a_ledger_is_lost_by_sharing_out() -> None:
    found = measured(ledger(1, 101, entries=7, fragments=((0, "abc"), (2, "abd"))))
    assert sum(each.live_bytes for each in found.bookies.values()) == 2 * 101


def test_bookies_say_what_is_free_and_silent_ones_are_shown() -> None:
    found = measured()
    assert found.bookies[BookieId("a")] == BookieUsage("writable", 0, 5 * MIB, 7, 10 * GIB)
    assert found.bookies[BookieId("b")] == BookieUsage("down")
    assert found.bookies[BookieId("c")] == BookieUsage("writable", 0, None, None, 0)
    assert found.free_bytes == 10 * GIB


@pytest.mark.parametrize(
    ("hours", "window_h", "bytes_of_window"),
    [((48.0, 2.0), 24.0, 200.0), ((3.0, 2.0), 3.0, 400.0), ((0.1,), 0.1, None)],
)
def test_rate_is_that_of_a_day_or_of_the_time_there_is(
    hours: Sequence[float], window_h: float, bytes_of_window: float | None
) -> None:
    found = measured(*(ledger(i, 100, hours_ago=each) for i, each in enumerate(hours)))
    assert found.rate_window_s == window_h * 3600
    if bytes_of_window is None:
        assert found.rate_bytes_s is None and found.days_left is None
        return
    assert found.rate_bytes_s == pytest.approx(bytes_of_window / (window_h * 3600))
    days_left = found.days_left
    assert found.rate_bytes_s and days_left == pytest.approx(10 * GIB / found.rate_bytes_s / 86_400)


def test_ledger_that_does_not_say_when_it_was_made_has_no_part_in_the_rate() -> None:
    old = ledger(2, 500).with_changes(creation_time_ms=0)
    alone, beside = measured(ledger(1, 7200)), measured(ledger(1, 7200), old)
    assert beside.rate_window_s == alone.rate_window_s == 3600.0
    assert beside.rate_bytes_s == alone.rate_bytes_s == 4.0


def test_disks_of_bookies_that_are_read_only_last_nobody() -> None:
    found = Usage(rate_bytes_s=1.0)
    for name, state in (("a", "readonly"), ("b", "writable")):
        found.bookies[BookieId(name)] = BookieUsage(state, free_bytes=86_400)
    assert found.free_bytes == 86_400 and found.days_left == 1.0


async def _stream_that_drops(tree: MemoryTree, *, retention: Retention) -> str:
    """A stream that has dropped its first commit; its id."""
    store = MemoryMetadataStore(tree)
    async with await LedgerClient.over(store, MemoryTransport({})) as client:
        stream = await StreamCatalog(client).create(
            "orders", pa.schema([("n", pa.int64())]), retention=retention
        )
        nodes, config = StreamNodes(store, "orders"), stream.config
        head = await nodes.head()
        after = replace(head.value, next_commit=3, next_segment=3, earliest_commit=1)
        await store.put(nodes.head_path, encode_head(after), head.version)
        await stream.close()
        return config.stream_id


@pytest.mark.parametrize("is_limited", [True, False])
def test_stream_whose_retention_drops_rows_fills_no_disk(is_limited: bool) -> None:
    """It was told to fill the disks within days, when it took the same for months."""
    store = MemoryMetadataStore(MemoryTree())
    retention = Retention(size_bytes=1000) if is_limited else Retention()
    stream_id = asyncio.run(_stream_that_drops(store.tree, retention=retention))
    tags = ledger_tags("orders", stream_id, "segments")
    made = ledger(1, 5 * MIB, hours_ago=12).with_changes(custom_metadata=tags)
    found = measured(made, ledger(2, 50, hours_ago=12), store=store)
    assert found.streams[stream_id].is_at_its_limit is is_limited
    assert found.streams[stream_id].held.replicated_bytes == 10 * MIB
    growth = 100 if is_limited else 100 + 10 * MIB
    assert found.rate_bytes_s == pytest.approx(growth / (12 * 3600))
    dropped = found.streams[stream_id].dropped_bytes, found.dropped_bytes
    assert dropped == (None, 0), "what cannot be read is not said to be nothing"


def test_each_stream_is_shown_with_what_it_dropped_and_what_is_not_given_back() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        drops, keeps = await new_stream(client), await new_stream(client, "keeps")
        for stream in (drops, keeps):
            await closed_commits(world, stream, 5)
        await drops.retention.truncate((3,))
        asked = []

        async def extent_of(name: str) -> Extent:
            asked.append(name)
            return await drops.retention.extent()

        transport: Any = Bookies()
        store = MemoryMetadataStore(world.tree)
        found = await measure(store, transport, lambda _steps: None, extent_of)
        shown = {each.name: each.dropped_bytes for each in found.streams.values()}
        size = (await drops.retention.extent()).reclaimable_bytes
        assert size > 0 and shown == {drops.name: size, "keeps": 0}
        assert found.dropped_bytes == size
        assert asked == [drops.name], "a stream that keeps all is not read"

    run_in_world(test)


def test_bookie_whose_note_is_damaged_is_shown_without_what_it_says() -> None:
    store = MemoryMetadataStore(MemoryTree())

    async def damage() -> None:
        await store.create("collection", b"")
        await store.create(collection_path(BookieId("b")), b"{")
        await BookieRegistry(store).register(BookieInfo(BookieId("b"), "b:1"))

    asyncio.run(damage())
    found = measured(ledger(1, 90), store=store)
    assert found.bookies[BookieId("a")].reclaimable_bytes == 5 * MIB
    shown = found.bookies[BookieId("b")]
    assert (shown.ledgers, shown.free_bytes, shown.reclaimable_bytes) == (7, 10 * GIB, None)


def test_metadata_that_go_away_while_bookies_answer_are_an_error_of_one_sentence() -> None:
    """And no group of errors, which the command would show as a traceback."""
    store = MemoryMetadataStore(MemoryTree())

    def interpose(_name: str, path: str) -> Fault:
        away = path.startswith((COLLECTION_PATH, LEDGERS_PATH)) and is_away
        return Fault(Outcome.UNAVAILABLE if away else Outcome.NORMAL)

    store.interpose, is_away = interpose, False

    class Away(Bookies):
        async def describe(self, bookie_id: str, *, timeout_s: float) -> BookieDescription:
            nonlocal is_away
            is_away = True
            return await super().describe(bookie_id, timeout_s=timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Bookies", Away)
        with pytest.raises(MetadataUnavailableError):
            measured(ledger(1, 90), store=store)


def test_metadata_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = most = 0

    class Counting(MemoryMetadataStore):
        async def get(self, path: str) -> Any:
            nonlocal in_flight, most
            in_flight += path.startswith(LEDGERS_PATH)
            most = max(most, in_flight)
            found = await super().get(path)
            in_flight -= path.startswith(LEDGERS_PATH)
            return found

    monkeypatch.setattr(usage, "METADATA_READS_IN_FLIGHT_MAX", 4)
    store = Counting(MemoryTree())
    found = measured(*(ledger(i, 1) for i in (*range(20), 25_000)), store=store)
    assert found.total.ledgers == 21 and most == 4


def test_size_of_the_server_is_read_from_its_words() -> None:
    mntr = "zk_version\t3.9\nzk_znode_count\t12\nzk_approximate_data_size\t3456\n"
    assert parse_size(mntr) == StoreSize(12, 3456)
    assert parse_size("Mode: standalone\nNode count: 5\n") == StoreSize(5, None)
    assert parse_size("mntr is not executed because it is not in the whitelist") == (None, None)


def test_command_prints_what_there_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(ledger(1, 5 * MIB, stream="orders", hours_ago=12), ledger(2, None))
    found.unnamed = 3
    monkeypatch.setattr(inspection, "measure_usage", lambda _uri, _advance: found)
    uri = ("--metadata", "zk://x:1/ledgers")
    text = run("cluster", "usage", *uri).out
    assert "orders (deleted)" in text and "10.0 MiB" in text
    found.streams["id-of-orders"].dropped_bytes = 3 * MIB
    assert "3.0 MiB" in run("cluster", "usage", *uri).out
    found.streams["id-of-orders"].dropped_bytes = None
    assert run("cluster", "usage", *uri).out.splitlines()[1].split()[-1] == "?"
    assert "by the closed ledgers of the last 12.0 hours" in text
    assert "512.0 days at that rate, 10.0 GiB free" in text
    fields = json.loads(run("cluster", "usage", "--json", *uri).out)
    assert fields["unnamed_ledgers"] == 3 and fields["days_left"] == 512.0
    assert fields["streams"][0]["held"]["replicated_bytes"] == 10 * MIB
    assert [bookie["state"] for bookie in fields["bookies"]] == ["writable", "down", "writable"]


def test_command_without_growth_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = ("--metadata", "zk://x:1/ledgers")
    monkeypatch.setattr(inspection, "measure_usage", lambda _uri, _advance: Usage())
    assert "rate       not known" in run("cluster", "usage", *uri).out
    idle = Usage(rate_bytes_s=0.0, rate_window_s=86_400.0)
    monkeypatch.setattr(inspection, "measure_usage", lambda _uri, _advance: idle)
    assert "no growth at that rate" in run("cluster", "usage", *uri).out
