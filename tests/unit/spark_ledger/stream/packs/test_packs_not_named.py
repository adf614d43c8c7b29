"""Packs that cannot be named: nothing is copied for nothing, and no ledger stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerError,
    NoSuchStreamError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.one_connection import OneConnection
from spark_ledger.stream.packs import model, optimizer
from spark_ledger.stream.packs.format import encode_packs
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.stream.retention.handle import StreamRetention
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeNaming
from tests.unit.spark_ledger.stream.packs.test_packs import (
    COMMITS,
    optimize,
    packs_of,
    planned,
    read,
    values,
    write,
    written,
)
from tests.unit.spark_ledger.stream.world import SCHEMA, another, run
from tests.unit.virtual_time import run_in_virtual_time


def test_pack_too_many_is_refused_before_anything_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A keeper would copy a gigabyte each hour, and leave it there as long as it lives."""
    monkeypatch.setattr(optimizer, "PACKS_MAX", 1)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        await write(stream, range(COMMITS, 2 * COMMITS))
        known = set(ledgers.ledgers)
        with pytest.raises(ConfigurationError, match="may have no more"):
            await optimize(stream)
        assert set(ledgers.ledgers).union(ledgers.deleted) == known

    run(scenario())


@pytest.mark.parametrize("replies", ["ccc", "uuu", "ucc", "cuc"])
def test_pack_that_is_not_named_leaves_no_ledger_and_arrives_in_vain(
    replies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conflicts and unknown outcomes, as they come: what was sent may still arrive."""
    monkeypatch.setattr(optimizer, "_NAME_ATTEMPTS", 3)

    async def scenario() -> None:
        left = list(replies)
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await stream.retention.allow_packs()
        known, change = set(ledgers.ledgers), ledgers.store.transaction
        late = list[Sequence[Operation]]()

        async def refused(operations: Sequence[Operation]) -> None:
            if all(each.path != "streams/s/packs" for each in operations):
                await change(operations)
                return
            late.append(operations)
            if left.pop(0) == "u":
                raise OutcomeUnknownError("no answer")
            else:
                raise ConflictError("changed")

        ledgers.store.transaction = refused  # type: ignore[method-assign]
        with pytest.raises(RetryableError):
            await optimize(stream)
        assert set(ledgers.ledgers) == known and not left
        for operations in late:
            with pytest.raises((ConflictError, NotFoundError)):
                await change(operations)
        assert not packs_of(ledgers).packs

    run(scenario())


def test_pack_is_named_for_a_second_while_others_change_the_nodes_of_the_stream() -> None:
    """A keeper lists ledgers and takes the list back, some times in a row."""

    async def scenario(refusals: int) -> float:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.retention.allow_packs()
        ledger = await ledgers.create_ledger(until_named=True)
        pack = Pack(0, 6, 0, 12, ledger.ledger_id, entries=1, rows=12, size_bytes=100)
        change, loop, left = ledgers.store.transaction, asyncio.get_running_loop(), refusals
        reading = OneConnection(ledgers.store)

        async def refused(operations: Sequence[Operation]) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                raise ConflictError("changed")
            await change(operations)

        ledgers.store.transaction = refused  # type: ignore[method-assign]
        began = loop.time()
        if refusals < 20:
            assert await stream.optimizer._name(pack, ledger, reading)
            assert packs_of(ledgers).packs == (pack,)
        else:
            with pytest.raises(RetryableError, match="keep changing"):
                await stream.optimizer._name(pack, ledger, reading)
            assert not ledgers.ledgers
        return loop.time() - began

    assert [run_in_virtual_time(scenario(n)) for n in (0, 1, 19, 20)] == pytest.approx(
        [0, 0.05, 0.95, 1.0]
    )


def test_pack_of_a_stream_that_was_replaced_is_not_named_by_the_new_one() -> None:
    """The nodes of both have the same versions (rule T7)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await stream.retention.allow_packs()
        catalog, change = StreamCatalog(ledgers), ledgers.store.transaction

        async def late(operations: Sequence[Operation]) -> None:
            if any(each.path == "streams/s/packs" for each in operations):
                ledgers.store.transaction = change  # type: ignore[method-assign]
                await catalog.delete("s")
                new = await catalog.create("s", SCHEMA)
                await write(new, range(COMMITS))
                await new.retention.allow_packs()
                assert new._schemas.versioned.version == stream._schemas.versioned.version
            await change(operations)

        ledgers.store.transaction = late  # type: ignore[method-assign]
        with pytest.raises(NoSuchStreamError):
            await optimize(stream)
        assert not packs_of(ledgers).packs
        fresh = await another(ledgers)[1].open("s")
        assert values(await read(fresh, await planned(fresh))) == list(range(12))

    run(scenario())


def test_ledger_of_a_pack_may_be_deleted_until_it_is_named_and_is_not_kept_if_it_fails() -> None:
    """So that one whose optimizer was killed is not left (rule K4)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        known, create, options = set(ledgers.ledgers), ledgers.create_ledger, list[object]()

        async def created(**given: Any) -> Any:
            options.append(given["until_named"])
            return await create(**given)

        ledgers.create_ledger = created  # type: ignore[method-assign]
        for failing in (1, 2):
            ledgers.fail_append_at = ledgers.appends + failing
            with pytest.raises(LedgerError, match="no"):
                await optimize(stream)
            assert set(ledgers.ledgers) == known, "an entry, or the index"
        (packed,) = await optimize(stream)
        assert packed.pack is not None and options == [True] * 3

    run(scenario())


def test_pack_for_which_another_made_one_meanwhile_is_too_many_and_leaves_no_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer, "PACKS_MAX", 1)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await stream.retention.allow_packs()
        name = optimizer.Optimizer._name

        async def late(optimizing: optimizer.Optimizer, *words: Any) -> bool:
            before = await ledgers.store.get("streams/s/packs")
            other = Pack(100, 200, 900, 1000, LedgerId(77), entries=1, rows=1, size_bytes=1)
            await ledgers.store.put(
                "streams/s/packs", encode_packs(Packs((other,))), before.version
            )
            return await name(optimizing, *words)

        monkeypatch.setattr(optimizer.Optimizer, "_name", late)
        known = set(ledgers.ledgers)
        with pytest.raises(ConfigurationError, match="may have no more"):
            await optimize(stream)
        assert set(ledgers.ledgers) == known

    run(scenario())


@pytest.mark.parametrize("when", ["before each pack", "as each is copied", "as each is named"])
def test_packs_are_made_over_as_many_connections_as_it_takes(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a large stream takes hours, and a connection may break in any of them."""
    monkeypatch.setattr(model, "PACK_SEGMENTS_MAX", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        before, made = set(ledgers.ledgers), FakeLedgers.create_ledger
        breaks = 0

        async def breaking(*words: Any, **options: Any) -> Any:
            nonlocal breaks
            breaks += 1
            if breaks % 2:
                ledgers.store.reconnect()
            return await act(*words, **options)

        if when == "before each pack":
            act: Any = StreamRetention.allow_packs
            monkeypatch.setattr(StreamRetention, "allow_packs", breaking)
        elif when == "as each is copied":
            act = made
            monkeypatch.setattr(FakeLedgers, "create_ledger", breaking)
        else:
            act = FakeNaming.operations
            monkeypatch.setattr(FakeNaming, "operations", breaking)
        packed = await stream.optimizer.run_all(entries_min=1)
        assert [(each.first, each.commits) for each in packed] == [(n, 1) for n in range(COMMITS)]
        assert tuple(each.pack for each in packed) == packs_of(ledgers).packs
        assert set(ledgers.ledgers) - before == {each.ledger_id for each in packs_of(ledgers).packs}
        copies = len(ledgers.writers) - len(before)
        assert copies == COMMITS * (1 if when == "before each pack" else 2), (
            "looks before it copies"
        )
        assert values(await read(stream, await planned(stream))) == list(range(12))

    run(scenario())


def test_connection_that_lasts_for_no_pack_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a gigabyte is copied on end, and nobody knows."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        before, create = set(ledgers.ledgers), ledgers.create_ledger

        async def breaking(**options: Any) -> Any:
            ledgers.store.reconnect()
            return await create(**options)

        ledgers.create_ledger = breaking  # type: ignore[method-assign]
        with pytest.raises(RetryableError, match="the connection to the metadata store broke"):
            await optimize(stream)
        assert len(ledgers.writers) == len(before) + optimizer._TRIES_MAX
        assert set(ledgers.ledgers) == before and not packs_of(ledgers).packs

    run(scenario())


def test_other_errors_of_a_pack_end_it_at_once() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        tries = 0

        async def no_bookies(**_: Any) -> Any:
            nonlocal tries
            tries += 1
            raise RetryableError("too few bookies")

        ledgers.create_ledger = no_bookies  # type: ignore[method-assign]
        with pytest.raises(RetryableError, match="too few bookies"):
            await optimize(stream)
        assert tries == 1

    run(scenario())
