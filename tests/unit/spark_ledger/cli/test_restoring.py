"""``ledger cluster restored``: which ids are passed over, and whom it waits for."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from spark_ledger.cli import inspection
from spark_ledger.cli.restoring import Restored, accept_restored
from spark_ledger.errors import BookieUnavailableError, ConfigurationError
from spark_ledger.limits.metadata import LEDGER_ID_END, RESTORED_IDS_MAX
from spark_ledger.limits.metadata import RESTORED_IDS_SKIPPED as SKIPPED
from spark_ledger.metadata.bookies import BOOKIES_PATH, COOKIES_PATH
from spark_ledger.metadata.cookies import BookieCookie, decode_cookie, encode_cookie, leaving_path
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.ledger_ids import LedgerIds, next_counted, raise_counter
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.repair.nodes import CHECK_PATH, CheckState
from spark_ledger.transport.base import BookieDescription
from spark_ledger.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorums
from tests.unit.spark_ledger.cli.conftest import Run


class Bookies:
    """Answers for bookies by their next ledger ids."""

    def __init__(self, **next_ids: int) -> None:
        self.next_ids = next_ids

    async def describe(self, bookie_id: str, *, timeout_s: float) -> BookieDescription:
        if bookie_id not in self.next_ids:
            raise BookieUnavailableError(f"bookie {bookie_id} is not running")
        return BookieDescription(
            BookieId(bookie_id), "c", "1", "writable", 0, 0, 0, 0, 0.0, self.next_ids[bookie_id]
        )


async def cluster(*bookies: str, ledger: int = 0) -> MemoryMetadataStore:
    store = MemoryMetadataStore(MemoryTree())
    for bookie in bookies:
        cookie = BookieCookie("c", bookie, "j", ("l",), "i")
        await store.create(f"{COOKIES_PATH}/{bookie}", encode_cookie(cookie))
    if ledger:
        fragment = Fragment(EntryId(0), (BookieId("a"),))
        metadata = LedgerMetadata(LedgerId(ledger), Quorums(1, 1, 1), (fragment,))
        await LedgerStore(store).create(metadata)
    return store


async def accept(store: MemoryMetadataStore, bookies: Bookies, *without: str) -> Restored:
    transport: Any = bookies
    return await accept_restored(store, transport, without)


async def next_id(store: MemoryMetadataStore) -> int:
    import random

    return await LedgerIds(store, random.Random(0)).take()


@pytest.mark.parametrize(
    ("held", "ledger", "highest"),
    [((7, 3), 0, 7), ((3, 9), 5, 9), ((2, 2), 50, 51), ((1, 1), 0, 1)],
)
def test_no_id_that_a_bookie_or_the_metadata_know_is_given_again(
    held: tuple[int, int], ledger: int, highest: int
) -> None:
    async def main() -> None:
        store = await cluster("a", "b", ledger=ledger)
        assert await next_id(store) == 1
        done = await accept(store, Bookies(a=held[0], b=held[1]))
        assert done.next_ledger_id == highest + SKIPPED
        assert await next_id(store) == highest + SKIPPED
        assert done.next_ids == {"a": held[0], "b": held[1]}
        check = await read_node(store, CheckState, CHECK_PATH)
        assert check is not None and check.value.restored, "copies are looked for at once"
        assert abs(check.value.begun_ms / 1000 - time.time()) < 60 and not check.value.after
        again = await accept(store, Bookies(a=held[0], b=held[1]))
        assert again.next_ledger_id == again.next_ledger_id_before > done.next_ledger_id

    asyncio.run(main())


@pytest.mark.parametrize("bookies", [Bookies(a=5), Bookies(a=5, b=0)])
def test_bookie_that_does_not_say_is_named_and_may_start(bookies: Bookies) -> None:
    async def main() -> None:
        store = await cluster("a", "b")
        said = r"^b did not say .*: start them \(they may start now\) and run .*--without-bookie"
        with pytest.raises(BookieUnavailableError, match=said):
            await accept(store, bookies)
        assert await next_id(store) == 1, "no id was passed over"
        node = await store.get(f"{COOKIES_PATH}/b")
        assert decode_cookie(BookieId("b"), node.value).accepts_newer
        with pytest.raises(ConfigurationError, match="'c' is not part"):
            await accept(store, bookies, "c")
        done = await accept(store, bookies, "b")
        assert done.without == ["b"] and done.next_ledger_id == 5 + SKIPPED

    asyncio.run(main())


@pytest.mark.parametrize("state", ["writable", "readonly"])
def test_bookie_that_serves_and_is_not_in_the_backup_is_asked_and_named(state: str) -> None:
    """It was formatted since. Nobody was told before its next start, which is refused."""

    async def main() -> None:
        store = await cluster("a", "d")
        for name in ("a", "c"):
            await store.create(f"{BOOKIES_PATH}/{state}/{name}", b"", ephemeral=True)
        relocate = r"for c, .* run `ledger bookie relocate --config FILE` there, start it and run "
        with pytest.raises(BookieUnavailableError, match=rf"^c did not say .*: {relocate}") as one:
            await accept(store, Bookies(a=5, d=6))
        assert "may start now" not in str(one.value), "it is refused at its start"
        start = r"start them \(they may start now\)"
        with pytest.raises(BookieUnavailableError, match=rf"^c, d did .*: {start}; {relocate}"):
            await accept(store, Bookies(a=5))
        done = await accept(store, Bookies(a=5, d=6), "c")
        assert done.without_cookie == ["c"] and done.without == ["c"]
        done = await accept(store, Bookies(a=5, c=9, d=6))
        assert done.next_ids == {"a": 5, "c": 9, "d": 6}
        assert done.next_ledger_id == 9 + SKIPPED
        assert done.without_cookie == ["c"] and done.may_start == ["a", "d"]

    asyncio.run(main())


def test_bookie_that_was_decommissioned_and_runs_is_neither_asked_nor_named() -> None:
    async def main() -> None:
        store = await cluster("a")
        await store.create(f"{BOOKIES_PATH}/readonly/b", b"", ephemeral=True)
        await store.create(leaving_path(BookieId("b")), b"")
        done = await accept(store, Bookies(a=5))
        assert done.next_ids == {"a": 5} and done.without_cookie == []

    asyncio.run(main())


@pytest.mark.parametrize("lie", [2**64 - 1, 2**63, LEDGER_ID_END, 50 + RESTORED_IDS_MAX + 1])
def test_bookie_that_says_what_cannot_be_is_named_and_uses_no_ids_up(lie: int) -> None:
    """Otherwise one liar had all ids passed over, for good: no ledger could be made any more."""

    async def main() -> None:
        store = await cluster("a", "b", ledger=20)
        await raise_counter(store, 50)
        with pytest.raises(BookieUnavailableError, match=r"^b says .*--without-bookie b$"):
            await accept(store, Bookies(a=30, b=lie))
        assert await next_counted(store) == 50
        done = await accept(store, Bookies(a=30, b=lie), "b")
        assert done.next_ledger_id == 30 + SKIPPED

    asyncio.run(main())


def test_bookie_that_knows_many_more_ids_than_the_backup_is_believed() -> None:
    async def main() -> None:
        store = await cluster("a", ledger=20)
        done = await accept(store, Bookies(a=21 + RESTORED_IDS_MAX))
        assert await next_counted(store) == done.next_ledger_id == 21 + RESTORED_IDS_MAX + SKIPPED

    asyncio.run(main())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_counter_is_raised_also_when_a_reply_is_lost(outcome: Outcome) -> None:
    async def main() -> None:
        faults = [Fault(), Fault(outcome)]
        tree = MemoryTree()
        store = MemoryMetadataStore(
            tree, interpose=lambda _name, _path: faults.pop(0) if faults else Fault()
        )
        _, now = await raise_counter(store, 700)
        assert now == 700 and await next_id(MemoryMetadataStore(tree)) == 700

    asyncio.run(main())


def test_command_asks_and_prints_what_it_did(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def after_a_restore(uri: str, without: tuple[str, ...]) -> Restored:
        asked.append((uri, without))
        return Restored(3, 1_000_009, 2, {BookieId("a"): 9}, [BookieId("b")], [BookieId("a")])

    monkeypatch.setattr(inspection, "after_a_restore", after_a_restore)
    monkeypatch.setenv("SPARK_LEDGER_METADATA", "zk://h:1/l")
    assert run("cluster", "restored", stdin=b"n\n").status == 130 and not asked
    outcome = run("cluster", "restored", "--yes", "--without-bookie", "b")
    assert outcome.status == 0 and "next ledger id is 1000009 (was 3)" in outcome.out
    assert asked == [("zk://h:1/l", ("b",))]
    outcome = run("cluster", "restored", "--yes", "--json")
    assert json.loads(outcome.out)["next_ids"] == {"a": 9}
