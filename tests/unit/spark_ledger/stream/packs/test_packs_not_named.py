"""Packs that cannot be named: nothing is copied for nothing, and no ledger stays behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.packs import optimizer
from spark_ledger.stream.packs.format import encode_packs
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import (
    COMMITS,
    optimize,
    packs_of,
    write,
    written,
)
from tests.unit.spark_ledger.stream.world import run


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


@pytest.mark.parametrize("in_doubt", [False, True])
def test_pack_that_is_not_named_leaves_its_ledger_only_if_that_is_in_doubt(
    in_doubt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer, "_NAME_ATTEMPTS", 3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await stream.retention.allow_packs()
        known, change = set(ledgers.ledgers), ledgers.store.transaction

        async def refused(operations: Sequence[Operation]) -> None:
            if all(each.path != "streams/s/packs" for each in operations):
                await change(operations)
            elif in_doubt:
                raise OutcomeUnknownError("no answer")
            else:
                raise ConflictError("changed")

        ledgers.store.transaction = refused  # type: ignore[method-assign]
        with pytest.raises(RetryableError):
            await optimize(stream)
        assert len(set(ledgers.ledgers) - known) == in_doubt
        assert not packs_of(ledgers).packs

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

        async def late(optimizing: optimizer.Optimizer, pack: Pack) -> bool:
            before = await ledgers.store.get("streams/s/packs")
            other = Pack(100, 200, 900, 1000, LedgerId(77), entries=1, rows=1, size_bytes=1)
            await ledgers.store.put(
                "streams/s/packs", encode_packs(Packs((other,))), before.version
            )
            return await name(optimizing, pack)

        monkeypatch.setattr(optimizer.Optimizer, "_name", late)
        known = set(ledgers.ledgers)
        with pytest.raises(ConfigurationError, match="may have no more"):
            await optimize(stream)
        assert set(ledgers.ledgers) == known

    run(scenario())
