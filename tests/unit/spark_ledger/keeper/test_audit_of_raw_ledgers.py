"""Whatever an application has marked its ledgers with, no audit deletes them (rule K9)."""

from __future__ import annotations

import pytest

from spark_ledger.errors import CorruptionError, LedgerError
from spark_ledger.limits.keeper import STREAM_SWEEP_PASSES
from spark_ledger.metadata.codec import encode_ledger
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_audit import AUDIT_S, audited, elected
from tests.unit.spark_ledger.keeper.test_streams import ledgers, live_ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes, task


async def marked(world: World, tags: dict[str, str]) -> int:
    """A closed raw ledger, as programs of before made it with any keys."""
    client = await world.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    await writer.close()
    store = MemoryMetadataStore(world.tree)
    ledger_id = LedgerId(writer.ledger_id)
    before = await LedgerStore(store).read(ledger_id)
    data = encode_ledger(before.value.with_changes(custom_metadata=tags))
    await store.put(ledger_path(ledger_id), data, before.version)
    return int(ledger_id)


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param({"stream": "orders", "stream_id": "42"}, id="no such stream"),
        pytest.param({"stream": "s", "stream_id": "", "purpose": "index"}, id="beside a stream"),
        pytest.param(
            {"stream": "orders", "stream_id": "42", "purpose": "backup"}, id="a purpose of its own"
        ),
        pytest.param(
            {"stream": "sensors/eu", "stream_id": "42", "purpose": "segments"},
            id="a name that no stream has",
        ),
    ],
)
def test_ledger_that_an_application_has_marked_like_a_stream_s_stays(tags: dict[str, str]) -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await stream.commit_segments(await task(world, 1))
        raw = await marked(
            world, {**tags, "stream_id": tags["stream_id"] or stream.config.stream_id}
        )
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 3 * AUDIT_S)
        assert (await audited(cared)).ended_ms, "it has come to its end"
        assert await ledgers(world) == await live_ledgers(stream) | {raw}

    run(test)


def test_audit_that_fails_each_time_holds_up_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        clock = Clock()
        cared = await elected(world, clock)
        sweep, whole_ones = cared._stream_keeper.sweep, 0

        async def counted(*, whole: bool = True) -> None:
            nonlocal whole_ones
            whole_ones += whole
            await sweep(whole=whole)

        async def fails(*, may_begin: bool) -> None:
            raise CorruptionError("as at each time")

        monkeypatch.setattr(cared._stream_keeper, "sweep", counted)
        await passes(cared, clock, 10)
        monkeypatch.setattr(cared._audit, "go_on", fails)
        for _ in range(3 * STREAM_SWEEP_PASSES):
            with pytest.raises(LedgerError, match="at each time"):
                await passes(cared, clock, 10)
        assert whole_ones == 4

    run(test)
