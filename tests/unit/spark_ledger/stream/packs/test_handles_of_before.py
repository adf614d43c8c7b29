"""A handle that was open before reads what was packed since from the pack (rule T24)."""

from __future__ import annotations

import pytest

from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.stream.packs import store
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import optimize, packs_of, write, written
from tests.unit.spark_ledger.stream.world import another, numbers, run


@pytest.mark.parametrize("is_old", [False, True])
def test_handle_of_before_reads_from_the_pack_once_its_list_is_old(
    is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        reader = await another(ledgers)[1].open("s")
        assert await numbers(reader.read()) == list(range(12))
        await write(stream, range(6, 12))
        await optimize(stream)
        pack = packs_of(ledgers).packs[-1].ledger_id
        other = reader._ledgers
        assert isinstance(other, FakeLedgers)
        if is_old:
            monkeypatch.setattr(store, "PACKS_KNOWN_S", 0.0)
        assert await numbers(reader.read()) == list(range(24))
        assert (pack in {each[0] for each in other.reads}) is is_old

    run(scenario())


def test_list_that_cannot_be_read_again_stops_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(nodes: object) -> None:
        raise MetadataUnavailableError("away")

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        reader = await another(ledgers)[1].open("s")
        assert await numbers(reader.read()) == list(range(12))
        monkeypatch.setattr(store, "PACKS_KNOWN_S", 0.0)
        monkeypatch.setattr(store, "read_packs", unavailable)
        assert await numbers(reader.read()) == list(range(12))

    run(scenario())
