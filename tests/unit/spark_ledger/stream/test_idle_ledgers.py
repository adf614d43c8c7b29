"""A writer of segments that is given nothing closes its ledger, and never one that is in use."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.limits.client import TIMER_STEP_S
from spark_ledger.stream import segment_writer
from spark_ledger.stream.segment_writer import SegmentWriter
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.test_segment_writer import new_stream
from tests.unit.spark_ledger.stream.world import run, table

IDLE_S = 4 * TIMER_STEP_S


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "IDLE_LEDGER_S", IDLE_S)


async def until_closed(ledgers: FakeLedgers, ledger_id: int | None) -> None:
    assert ledger_id is not None
    async with asyncio.timeout(10):
        while not ledgers.ledgers[ledger_id].closed:
            await asyncio.sleep(TIMER_STEP_S)


async def micro_batch(writer: SegmentWriter, number: int) -> int:
    await writer.write(table(number))
    (segment,) = await writer.finish()
    return segment.ledger_id


def test_idle_writer_closes_its_ledger_and_goes_on_in_another() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        first = await micro_batch(writer, 1)
        await until_closed(ledgers, first)
        assert writer.ledger_id is None
        second = await micro_batch(writer, 2)
        assert second != first and not ledgers.ledgers[second].closed
        await until_closed(ledgers, second)
        await writer.close()

    run(scenario())


def test_writer_in_use_keeps_its_ledger() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        deadline = asyncio.get_running_loop().time() + 3 * IDLE_S
        first = await micro_batch(writer, 0)
        while asyncio.get_running_loop().time() < deadline:
            before = asyncio.get_running_loop().time()
            ledger_id = await micro_batch(writer, 1)
            if asyncio.get_running_loop().time() - before < IDLE_S / 2:
                assert ledger_id == first
            await asyncio.sleep(0)
        await until_closed(ledgers, first)
        await writer.close()

    run(scenario())


def test_micro_batch_that_waits_for_rows_keeps_its_ledger() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        await writer.write(table(0, 400))  # some are pushed, the rest is held
        ledger_id = writer.ledger_id
        assert ledger_id is not None
        await asyncio.sleep(3 * IDLE_S)
        assert not ledgers.ledgers[ledger_id].closed
        (segment,) = await writer.finish()
        assert segment.ledger_id == ledger_id
        await until_closed(ledgers, ledger_id)
        await writer.close()

    run(scenario())


def test_call_that_waits_for_room_finds_its_ledger_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        first = await micro_batch(writer, 0)

        async def wait_for_room(_: object) -> None:
            await asyncio.sleep(3 * IDLE_S)

        monkeypatch.setattr(type(ledgers.writers[0]), "wait_for_room", wait_for_room)
        assert await micro_batch(writer, 1) == first
        await writer.close()

    run(scenario())


def test_closed_writer_leaves_no_alarm() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        first = await micro_batch(writer, 0)
        await writer.close()
        assert ledgers.ledgers[first].closed
        await asyncio.sleep(2 * IDLE_S)
        assert len(ledgers.writers) == 1

    run(scenario())


def test_ledger_is_kept_while_there_are_too_few_bookies_for_another() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        first = await micro_batch(writer, 0)
        ledgers.bookies = 2
        await asyncio.sleep(3 * IDLE_S)
        assert await micro_batch(writer, 1) == first
        ledgers.bookies = 3
        await until_closed(ledgers, first)
        await writer.close()

    run(scenario())


def test_ledger_of_a_micro_batch_that_was_given_up_is_closed() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        await writer.write(table(0, 400))
        ledger_id = writer.ledger_id
        writer.abandon()
        await until_closed(ledgers, ledger_id)
        await writer.close()

    run(scenario())
