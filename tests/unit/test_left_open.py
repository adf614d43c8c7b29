"""The look for what tests leave open sees each kind of it, and nothing where all has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest

from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.repair import locking
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.concurrency import flatten
from spark_ledger.stream.ledgers import TAG_PURPOSE
from spark_ledger.tasks import wait_at_most
from spark_ledger.transport.answer_timeout import AnswerTimeout
from spark_ledger.types import TAG_STREAM_ID, BookieId, LedgerId
from tests import left_open
from tests.unit.spark_ledger.client.world import World, world
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA

_kept: list[object] = []
"""What would be closed if it were dropped."""


async def a_task(_world: World) -> None:
    _kept.append(asyncio.ensure_future(wait_at_most(asyncio.Event(), 600)))


async def a_task_of_the_library(_world: World) -> None:
    _kept.append(asyncio.ensure_future(asyncio.Event().wait()))


async def a_generator(_world: World) -> None:
    async def chunks() -> AsyncGenerator[list[int], None]:
        yield [1, 2]

    items = flatten(chunks())
    assert await anext(items) == 1
    _kept.append(items)


async def a_timer(_world: World) -> None:
    await AnswerTimeout(600.0, lambda: None).within(asyncio.sleep(0))


async def a_lock(_world: World) -> None:
    await BookieRegistry(MemoryMetadataStore())._lock.acquire()


async def a_slot(world: World) -> None:
    await (await world.client()).context.suspects._probing.acquire()


async def a_lock_of_repair(_world: World) -> None:
    store = MemoryMetadataStore()
    locking._HELD[store] = {LedgerId(7)}
    _kept.append(store)


async def a_watch(_world: World) -> None:
    store = MemoryMetadataStore()
    BookieRegistry(store).watch(asyncio.Event().set)
    await store.close()


async def a_bookie_in_use(world: World) -> None:
    (await world.client()).context.use([BookieId("b0")], +1)


async def a_ledger_of_a_stream(world: World) -> None:
    tags = {TAG_STREAM_ID: "x", TAG_PURPOSE: "pack"}
    _kept.append(await (await world.client()).create_ledger(custom_metadata=tags, until_named=True))


async def a_ledger_of_a_stream_over_fake_ledgers(_world: World) -> None:
    await FakeLedgers().create_ledger(custom_metadata={TAG_PURPOSE: "manifest"})


async def a_writer_of_a_closed_stream(_world: World) -> None:
    stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
    await stream.close()
    stream._spare_writers.append(stream.writer())


async def an_error_that_nobody_saw(_world: World) -> None:
    asyncio.get_running_loop().create_future().set_exception(ValueError("x"))


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (a_task, "task wait_at_most at"),
        (a_task_of_the_library, "task Event.wait at"),
        (a_generator, "generator flatten"),
        (a_timer, "timer AnswerTimeout._look"),
        (a_lock, "lock of BookieRegistry.__init__"),
        (a_slot, "semaphore of Suspects.__init__"),
        (a_lock_of_repair, "repair lock of ledgers [7]"),
        (a_watch, "watch Event.set"),
        (a_bookie_in_use, "client: bookies that count as used"),
        (a_ledger_of_a_stream, "open ledger of a stream: pack"),
        (a_ledger_of_a_stream_over_fake_ledgers, "open ledger of a stream: manifest"),
        (a_writer_of_a_closed_stream, "writer of stream 's'"),
        (an_error_that_nobody_saw, "asyncio: Future exception was never retrieved"),
    ],
)
def test_what_is_left_open_is_said(leave: Callable[[World], Awaitable[None]], said: str) -> None:
    async def main() -> None:
        async with world() as made:
            await leave(made)

    before = left_open.begin()
    asyncio.run(main())
    found = left_open.end(before)
    _kept.clear()
    assert any(each.startswith(said) for each in found), found
    assert len(found) == 1 or leave is a_generator, found


def test_nothing_is_said_where_all_has_ended() -> None:
    async def main() -> None:
        async with world() as made:
            client = await made.client()
            async with await client.create_ledger() as writer:
                await writer.append(b"x")
            reader = await client.open_ledger(writer.ledger_id)
            async with aclosing(reader.tail_batches()) as batches:
                assert [len(batch) async for batch in batches] == [1]

    before = left_open.begin()
    asyncio.run(main())
    assert left_open.end(before) == []


def test_thread_and_file_that_are_left_are_said(tmp_path: Path) -> None:
    before, ends = left_open.begin(), threading.Event()
    thread = threading.Thread(target=ends.wait, name="journal")
    thread.start()
    file = (tmp_path / "entries").open("wb")
    found = left_open.end(before, waits=False)
    file.close()
    ends.set()
    thread.join()
    assert found == ["thread journal", f"file {file.name}"]


def test_what_a_test_leaves_on_purpose_is_allowed_with_a_reason() -> None:
    found = ["task Keeper._run at keeper.py:1", "repair lock of ledgers [7]"]
    mark = pytest.mark.leaves_open("Keeper._run", reason="it is killed").mark
    assert left_open.unexcused(found, [mark]) == ["repair lock of ledgers [7]"]
    with pytest.raises(AssertionError, match="says why"):
        left_open.unexcused(found, [pytest.mark.leaves_open("Keeper").mark])


def test_file_of_the_environment_is_left_to_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone in the temporary directory has its environment there, whose fonts stay open."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    before = left_open.begin()
    with ExitStack() as opened:
        for directory in (".venv", ".venv-of-others"):
            (tmp_path / directory).mkdir()
            opened.enter_context((tmp_path / directory / "font").open("wb"))
        found = left_open.end(before, waits=False)
    assert found == [f"file {tmp_path}/.venv-of-others/font"]
