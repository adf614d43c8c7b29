"""A pack whose transaction got no reply once stays, whatever the attempts behind it end with."""

from __future__ import annotations

import pytest

from spark_ledger.errors import LedgerError
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import (
    optimize,
    packs_of,
    planned,
    read,
    values,
    written,
)
from tests.unit.spark_ledger.stream.world import another, run


class Outage:
    """What becomes of the operations from the first transaction on, once it is ``near``."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.left = list(outcomes)
        self.is_near = False

    def __call__(self, name: str, path: str) -> Fault:
        self.is_near = self.is_near and bool(self.left)
        is_begun = self.is_near and (name == "transaction" or self.left[0] is Outcome.UNAVAILABLE)
        return Fault(self.left.pop(0)) if is_begun else Fault()


@pytest.mark.parametrize("is_in_doubt", [True, False])
def test_ledger_of_a_pack_in_doubt_survives_an_outage_behind_it(
    is_in_doubt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it was named, readers look for rows in it; if it surely was not, it is deleted."""
    lost = [Outcome.LOST_REPLY] * is_in_doubt

    async def scenario() -> None:
        ledgers = FakeLedgers()
        first = await written(ledgers)
        await first.retention.allow_packs()
        known = set(ledgers.ledgers)
        outage = Outage(*lost, Outcome.UNAVAILABLE)
        others, streams = another(ledgers, outage)
        stream: Stream = await streams.open("s")
        name = stream.optimizer._name

        async def near(*given: object) -> bool:
            outage.is_near = True
            return await name(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(stream.optimizer, "_name", near)
        with pytest.raises(LedgerError):
            await optimize(stream)
        assert not outage.left
        made = set(ledgers.ledgers) - known
        named = {pack.ledger_id for pack in packs_of(ledgers).packs}
        if is_in_doubt:
            assert named == made and len(made) == 1
            again = await another(ledgers)[1].open("s")
            assert values(await read(again, await planned(again))) == list(range(12))
        else:
            assert not named and others.deleted

    run(scenario())
