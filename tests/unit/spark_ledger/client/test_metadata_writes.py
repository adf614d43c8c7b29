"""What a handle makes of its metadata writes and reads, whatever becomes of each attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from spark_ledger.limits.metadata import METADATA_READ_AGAIN_FACTOR
from spark_ledger.protocol.events import (
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataUnread,
    MetadataWritten,
    WriteMetadata,
)
from spark_ledger.types import LedgerMetadata, Versioned
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.protocol.ledgers import ledger

WANTED = ledger((3, 3, 2), (0, "b0 b1 b2"))
OTHER = WANTED.with_changes(custom_metadata={"changed": "meanwhile"})

TIMEOUT_S = 1.0
BOUND_S = METADATA_READ_AGAIN_FACTOR * TIMEOUT_S + 1.0

AWAY = MetadataUnavailableError("nobody answers")
FINAL: list[LedgerError] = [
    NoSuchLedgerError("deleted"),
    CorruptionError("damaged"),
    ConfigurationError("of a later format"),
    MetadataRestoredError("restored"),
]
"""What no second question mends."""


class Ledgers:
    """Answers writes and reads one after the other; the last answer is repeated."""

    def __init__(self, written: int | LedgerError, found: list[LedgerMetadata | LedgerError]):
        self.written = written
        self.found = found
        self.writes = self.reads = 0

    async def compare_and_set(self, metadata: LedgerMetadata, version: int, **_: Any) -> int:
        self.writes += 1
        if isinstance(self.written, LedgerError):
            raise self.written
        return self.written

    async def read(self, _ledger_id: Any) -> Versioned[LedgerMetadata]:
        self.reads += 1
        answer = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(answer, LedgerError):
            raise answer
        return Versioned(answer, 7)

    read_latest = read


async def asked(world: World, ledgers: Ledgers, *, write: bool) -> tuple[Any, float]:
    """What comes of it, and how long it took."""
    client = await world.client(metadata_timeout_s=TIMEOUT_S)
    context, metadata = client.context, WANTED
    before, context.ledgers = context.ledgers, ledgers  # type: ignore[assignment]
    began = asyncio.get_running_loop().time()
    if write:
        outcome: Any = await context.write_metadata(WriteMetadata(metadata, 3))
    else:
        outcome = await context.read_metadata(metadata.ledger_id)
    context.ledgers = before
    return outcome, asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("outages", [0, 1, 4])
@pytest.mark.parametrize("refusal", [ConflictError("changed"), OutcomeUnknownError("lost")])
def test_write_that_was_not_confirmed_is_looked_up_and_never_repeated(
    refusal: LedgerError, outages: int
) -> None:
    async def test(world: World) -> None:
        ledgers = Ledgers(refusal, [*[AWAY] * outages, OTHER])
        outcome, _ = await asked(world, ledgers, write=True)
        assert outcome == MetadataConflict(OTHER, 7)
        assert (ledgers.writes, ledgers.reads) == (1, outages + 1)

    run_virtually(test)


@pytest.mark.parametrize("outages", [0, 2])
@pytest.mark.parametrize("error", [AWAY, *FINAL], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_known", [True, False])
def test_write_that_cannot_be_looked_up_says_what_is_known_of_it(
    is_known: bool, error: LedgerError, outages: int
) -> None:
    """An outcome that is unknown stays so: who repeats the write could change what it made."""

    async def test(world: World) -> None:
        refusal = ConflictError("changed") if is_known else OutcomeUnknownError("lost")
        ledgers = Ledgers(refusal, [*[AWAY] * outages, error])
        outcome, took_s = await asked(world, ledgers, write=True)
        assert isinstance(outcome, MetadataFailed)
        assert outcome.error is (error if is_known else refusal)
        assert is_known or outcome.error.__cause__ is error, "why nobody could look"
        assert ledgers.writes == 1
        assert took_s < BOUND_S
        if error is not AWAY:
            assert ledgers.reads == outages + 1, "to ask again mends nothing"
        else:
            assert 2 <= ledgers.reads < 100, "again, and not all the time"

    run_virtually(test)


@pytest.mark.parametrize("error", [AWAY, *FINAL], ids=lambda error: type(error).__name__)
def test_write_that_changed_nothing_is_told_as_it_is(error: LedgerError) -> None:
    async def test(world: World) -> None:
        ledgers = Ledgers(error, [OTHER])
        outcome, _ = await asked(world, ledgers, write=True)
        assert outcome == MetadataFailed(error)
        assert (ledgers.writes, ledgers.reads) == (1, 0)

    run_virtually(test)


def test_write_that_is_confirmed_is_the_new_version() -> None:
    async def test(world: World) -> None:
        outcome, _ = await asked(world, Ledgers(4, [OTHER]), write=True)
        assert outcome == MetadataWritten(WANTED, 4)

    run_virtually(test)


@pytest.mark.parametrize("outages", [0, 1, 4])
@pytest.mark.parametrize("answer", [OTHER, *FINAL], ids=lambda answer: type(answer).__name__)
def test_look_is_answered_after_an_outage(
    answer: LedgerMetadata | LedgerError, outages: int
) -> None:
    """A ledger that was deleted is an answer too: nobody else has it."""

    async def test(world: World) -> None:
        ledgers = Ledgers(0, [*[AWAY] * outages, answer])
        outcome, _ = await asked(world, ledgers, write=False)
        if isinstance(answer, LedgerMetadata):
            assert outcome == MetadataRead(answer)
        elif isinstance(answer, NoSuchLedgerError):
            assert outcome == MetadataRead(None)
        else:
            assert outcome == MetadataUnread(answer)
        assert ledgers.reads == outages + 1

    run_virtually(test)


def test_look_beside_a_store_that_stays_away_ends() -> None:
    async def test(world: World) -> None:
        ledgers = Ledgers(0, [AWAY])
        outcome, took_s = await asked(world, ledgers, write=False)
        assert outcome == MetadataUnread(AWAY)
        assert TIMEOUT_S < took_s < BOUND_S
        assert 2 <= ledgers.reads < 100

    run_virtually(test)
